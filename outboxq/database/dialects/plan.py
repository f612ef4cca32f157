"""A transition that can be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .prepared import Execute, Row


class Plan(Protocol):
    """A transition, compiled for one database."""

    @property
    def sql(self) -> str: ...

    def compile(self) -> None:
        """Now, and not at its first use."""

    def run(
        self, execute: Execute, values: Mapping[str, Any], rows: Sequence[Sequence[Any]] | None = None
    ) -> list[Row]:
        """Run it, on the batch `rows` where it takes one; its outcome, in no particular order."""
        ...
