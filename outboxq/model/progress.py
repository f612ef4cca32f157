"""The progress of a running task, as its handler reports it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgument

MAX_NOTE = 500
"""Largest size of a note in bytes of UTF-8. A longer one is cut."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The progress of one attempt, as its handler reported it last."""

    fraction: float
    """Part of the work that is done, from 0 to 1."""
    note: str = ""
    """A few words about it: ``12 of 30``."""

    def __str__(self) -> str:
        percent = f"{math.floor(self.fraction * 100 + 1e-9)} %"  # rounded down: 100 % is the end
        return f"{percent}: {self.note}" if self.note else percent

    def as_data(self) -> dict[str, Any]:
        """Return the progress as the data of an event has it."""
        return {"fraction": self.fraction, "note": self.note}


def fraction_of(value: object) -> float:
    """Return the part of the work as a float from 0 to 1. A number outside counts as the nearer of the two.

    Raises InvalidArgument for what is no number.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number) or isinstance(value, str | bytes):
        raise InvalidArgument(f"the progress must be a number from 0 to 1, such as done / total, not {value!r}")
    return min(max(number, 0.0), 1.0)


def progress_of(data: Any) -> Progress | None:
    """Return the progress in the data of an event; None for what outboxq did not write."""
    if not isinstance(data, Mapping):
        return None
    try:
        return Progress(fraction=fraction_of(data.get("fraction")), note=str(data.get("note") or ""))
    except InvalidArgument:
        return None
