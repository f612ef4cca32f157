"""The OPTIONS of one backend in `TASKS`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import tenacity

from ...model import OnDeadLetter
from ...retry import RetryPolicy
from .compat import InvalidTask, InvalidTaskBackend
from .django_task import unvalidated, validate


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The database of a backend, and the defaults of its tasks."""

    database: str = "default"
    """Alias of the database in DATABASES."""
    modules: Sequence[str] = ()
    """Packages and modules outside the installed apps in which tasks are declared."""
    retry: RetryPolicy | tenacity.BaseRetrying | None = None
    """Retry policy; None: a task has one attempt, as in Django."""
    lease: timedelta | float | None = None
    timeout: timedelta | float | None = None
    transactional: bool = False
    on_dead_letter: OnDeadLetter | str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any], alias: str) -> Options:
        """Read OPTIONS. Raises InvalidTaskBackend for an unknown option, or a value out of its range."""
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(given) - set(known)):
            raise InvalidTaskBackend(
                f"TASKS[{alias!r}] has unknown OPTIONS: {', '.join(unknown)}; outboxq knows {', '.join(known)}"
            )
        options = cls(**given)
        if isinstance(options.modules, str):
            raise InvalidTaskBackend(f"TASKS[{alias!r}]: modules takes a list; write [{options.modules!r}]")
        try:
            validate(unvalidated("OPTIONS.of.TASKS", backend=alias), options)
        except InvalidTask as error:
            raise InvalidTaskBackend(f"TASKS[{alias!r}]: {error}") from None
        return options
