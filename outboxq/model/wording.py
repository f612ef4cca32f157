"""Words beside numbers: "1 task was", "2 tasks were"."""

from __future__ import annotations


def plural(number: int, one: str, many: str = "") -> str:
    """Return the word that stands beside the number: ``task`` for 1, else ``tasks``; `many` where the plural is not made with an s."""
    return one if number == 1 else many or f"{one}s"
