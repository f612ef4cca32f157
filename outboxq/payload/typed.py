"""Plain JSON whose type is compared with the annotation when it is enqueued."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from .strict import Unfit, Walk, jsonable
from .values import ANY_KIND, Codec, Plain


class Typed(Plain):
    """A value that a type checker would take for the annotation, but no bool where a number is meant.

    Only what is enqueued is compared. What is stored is read as it is: another release, `emit`, or SQL may have written it.
    """

    def __init__(
        self,
        label: str,
        kinds: frozenset[str] = ANY_KIND,
        *,
        classes: Iterable[type],
        members: Sequence[Codec] = (),
    ) -> None:
        """`classes` are those of the values; `members` are the other types of a union, which look inside of their values."""
        super().__init__(label, kinds)
        self.classes, self.members = frozenset(classes), members
        self.bases = tuple(self.classes)

    def fits(self, value: object) -> bool:
        cls = type(value)
        if cls in self.classes or (cls is not bool and isinstance(value, self.bases)):
            return True
        return any(_takes(member, value) for member in self.members)

    def encode(self, value: Any, walk: Walk) -> object:
        if type(value) in self.classes:
            return jsonable(value, walk)
        if value is None:
            self.expect(value)
        stored = jsonable(value, walk)  # first, for what is no JSON at all is told what would make it so
        if not self.fits(value):
            remedy = "pass a value of that type, or declare the task with check_types=False"
            raise Unfit(f"{type(value).__name__} does not fit {self.label}: {remedy}")
        return stored


def _takes(member: Codec, value: object) -> bool:
    """Return whether a member of a union takes a value that is known to be JSON within its limits."""
    try:
        member.encode(value, Walk(sys.maxsize))
    except Unfit:
        return False
    return True
