"""What one claimer remembers from claim to claim."""

from __future__ import annotations

from .aside import Search
from .partition_keys import KeyTurns
from .passed import Passed


class ClaimCursor:
    """Hints for the next claim of one claimer: what it begins with, and what it need not look at.

    A claim without them finds the same tasks, only later or in another order. So it belongs to whoever claims: a worker's claim
    loop makes one, and a store has one for those who claim by hand.
    """

    def __init__(self) -> None:
        self.others_first = False
        """Tasks without a key took all of the last claim, and there may be others."""
        self.may_be_more = False
        """The last claim took all that it asked for: where a claim looks before it writes, this look is spared."""
        self.turn = 0
        """Counts the claims of others, so that each kind is the first by turns."""
        self.search = Search()
        self.passed = Passed()
        self.keys = KeyTurns()
