"""Every statement of outboxq, compiled for one database; a room for each kind."""

from __future__ import annotations

from .fanout import Fanout
from .hand import Hand
from .keeping import Keeping
from .reading import Reading
from .replay import Replay
from .statistics import Statistics
from .working import Working
from .writing import Writing

__all__ = ["Statements"]


class Statements(Working, Writing, Fanout, Hand, Reading, Keeping, Statistics, Replay):
    """Every statement of outboxq for one dialect and schema, compiled at its first use."""
