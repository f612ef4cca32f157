"""Numbers that were counted up to a bound, and the moment of the count, by which a change of many is bounded."""

from __future__ import annotations

from dataclasses import dataclass, field
from re import ASCII, fullmatch
from typing import Any, Self

from ...database.target import Target
from ...errors import InvalidArgument
from . import event_log


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The events that were committed at one moment. `str(snapshot)` can be stored; `Snapshot.parse()` reads it.

    A change of many that is given the snapshot of a count changes nothing that was not counted, whatever the clocks of the tasks'
    makers say, and however late a transaction commits. A snapshot is valid in its own database only.
    """

    head: int
    """Sequence number of the newest event that was committed."""
    open: frozenset[int] = frozenset()
    """Ids of transactions that were open: their events have smaller numbers too. SQLite has none."""
    begun: range = range(0)
    """Ids of the newest ones: all above those of the transactions that had ended."""

    @classmethod
    def take(cls, target: Target) -> Self:
        """Return the snapshot of this moment, or that of the transaction if it reads everything as of one moment."""
        row = target.run(event_log.snapshot)[0]
        _, beyond, others = row["snapshot"].split(":")
        return cls(head=row["head"], open=_numbers(others), begun=range(int(beyond), row["next_transaction"]))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a stored snapshot. Raises InvalidArgument for any text that is not the `str()` of one."""
        if not fullmatch(r"\d{1,18}:(\d{1,18}(,\d{1,18})*)?:\d{1,18}-\d{1,18}", str(text), ASCII):
            raise InvalidArgument(f"{text!r} is not a snapshot; store str(snapshot), and pass that unchanged")
        head, others, begun = str(text).split(":")
        return cls(head=int(head), open=_numbers(others), begun=range(*map(int, begun.split("-"))))

    def __str__(self) -> str:
        return f"{self.head}:{','.join(map(str, sorted(self.open)))}:{self.begun.start}-{self.begun.stop}"

    @property
    def values(self) -> dict[str, Any]:
        """The parameters of a statement that leaves out what came later."""
        spans = [f"[{one},{one}]" for one in sorted(self.open)]
        if self.begun:
            spans.append(f"[{self.begun.start},{self.begun.stop})")
        return {"head": self.head, "open": f"{{{','.join(spans)}}}"}


def _numbers(text: str) -> frozenset[int]:
    return frozenset(int(one) for one in text.split(",") if one)


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """A number of rows, counted up to a bound."""

    number: int
    at_least: bool = False
    """True: there may be more than `number`, where the count was ended."""
    snapshot: Snapshot | None = field(default=None, compare=False)
    """The moment of the count, for `snapshot=` of the change that follows; None: the count has no such change."""


def counted_to(most: int, found: int, *, cut: bool = False, snapshot: Snapshot | None = None) -> Count:
    """Return the count of rows of which at most one more than `most` were counted. `cut`: the look was ended before."""
    return Count(number=min(found, most), at_least=cut or found > most, snapshot=snapshot)
