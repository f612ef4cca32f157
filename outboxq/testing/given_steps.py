"""The results that a test gives to steps in advance, and a check of their names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..model.unknown_options import nearest
from ..model.wording import plural


@dataclass(eq=False, kw_only=True)
class GivenSteps:
    """Results of steps by name, and the steps that ran while these results were in force."""

    results: Mapping[str, Any] = field(default_factory=dict)
    within: GivenSteps | None = None
    """The results of the block around this one, whose names may be used here."""
    _used: set[str] = field(default_factory=set)
    _is_complete: bool = False
    """True if a task with steps has completed."""

    def note(self, names: Collection[str], *, is_complete: bool) -> None:
        """Note the names of the steps that one run has used, and whether it completed the task."""
        self._used.update(names)
        self._is_complete = self._is_complete or (is_complete and bool(names))
        if self.within is not None:
            self.within.note(names, is_complete=is_complete)

    def ensure_used(self, names: Collection[str]) -> None:
        """Raise AssertionError if a task with steps has completed, but no step had one of these names: it may be
        mistyped, so that the function of the step was called.
        """
        __tracebackhide__ = True
        unused = sorted(set(names) - self._used)
        if not unused or not self._is_complete:
            return
        known = sorted(self._used)
        hint = nearest(unused[0], known) if len(unused) == 1 else ""
        raise AssertionError(
            f"steps() was given {plural(len(unused), 'a result', 'results')} for {' and '.join(map(repr, unused))}, but no step "
            f"had {plural(len(unused), 'this name', 'these names')}{hint or '.'} The steps were: {', '.join(map(repr, known))}"
        )
