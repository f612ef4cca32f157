"""The log, followed."""

from __future__ import annotations

from functools import cached_property

from ...statements import tail
from ..prepared import Prepared
from .base import Catalogue


class Replay(Catalogue):
    @cached_property
    def tail_head(self) -> Prepared:
        return self._dialect.prepare(tail.head(self._g))

    @cached_property
    def tail_following(self) -> Prepared:
        return self._dialect.prepare(tail.following())
