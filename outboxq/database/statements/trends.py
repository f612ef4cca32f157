"""What was counted and what was sampled in each step of time, in one statement."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Select, Text, bindparam, cast, literal_column, null, select, union_all

from ..column_types import Instant
from . import metrics, samples
from .grammar import Grammar

STATES = ("ready", "delayed", "running", "failed")
"""The numbers of a sample, which stand in the columns `sampled_…`."""
_since = bindparam("since", type_=Instant, required=True)
_step = bindparam("step", type_=BigInteger, required=True)


def trends(g: Grammar) -> Select[Any]:
    """Select the rows of `metrics.series`, and those of `samples.series` with the number of their step.

    `kind` is counted or sampled; the columns of the other kind are NULL.
    """
    counted, sampled = metrics.series(g).subquery("counted"), samples.series(g).subquery("sampled")
    nothing: Any = cast(null(), BigInteger)
    numbers = [column for column in counted.c if column.key != "step"]
    of_counts = select(
        literal_column("'counted'", Text).label("kind"),
        counted.c.step,
        *numbers,
        *(nothing.label(f"sampled_{state}") for state in STATES),
    )
    of_samples = select(
        literal_column("'sampled'", Text).label("kind"),
        (g.between(_since, sampled.c.begins_at) // _step).label("step"),
        *(nothing.label(column.key) for column in numbers),
        *(sampled.c[state].label(f"sampled_{state}") for state in STATES),
    )
    both = union_all(of_counts, of_samples).subquery("both")
    return select(both)
