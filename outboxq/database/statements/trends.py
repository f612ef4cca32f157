"""Read the counts and the samples of each step of time, and the keys that dead letters hold, in one statement."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    Double,
    Select,
    Text,
    Uuid,
    bindparam,
    cast,
    literal_column,
    null,
    select,
    type_coerce,
    union_all,
)

from ..column_types import Instant
from ..grammar import Builder, Grammar
from . import metrics, overview, samples

SAMPLED = "sampled_"
"""Beginning of the names of the columns of a sample."""
HELD: Mapping[str, Any] = {
    "partition_key": Text(),
    "dead_letter": Uuid(),
    "failed_at": Instant,
    "waiting": BigInteger(),
}
_COLUMNS: Mapping[str, Any] = {
    "step": BigInteger(),
    **{name: BigInteger() for name in metrics.SERIES},
    **{f"{SAMPLED}{state}": Double() for state in samples.STATES},
    **HELD,
}
_since = bindparam("since", type_=Instant, required=True)
_step = bindparam("step", type_=BigInteger, required=True)


def _trends(g: Grammar, *, with_keys: bool) -> Select[Any]:
    """Select rows of several kinds, of which each uses some of the columns: those of `metrics.series` (counted), those of
    `samples.series` with the number of their step (sampled), and those of `overview.held_keys` (held).
    """
    counted, sampled = metrics.series(g).subquery("counted"), samples.series(g).subquery("sampled")
    step = g.between(_since, sampled.c.begins_at) // _step
    parts = [
        _row("counted", {column.key: column for column in counted.c}),
        _row("sampled", {"step": step, **{f"{SAMPLED}{one}": sampled.c[one] for one in samples.STATES}}),
    ]
    if with_keys:
        held = overview.held_keys(g).subquery("held")
        parts.append(_row("held", {name: held.c[name] for name in HELD}))
    found = union_all(*parts).subquery("found")
    return select(found)


def _row(kind: str, values: Mapping[str, Any]) -> Select[Any]:
    """Select the kind and these values, and NULL for all other columns."""
    cells: list[Any] = []
    for name, type_of in _COLUMNS.items():
        value = values.get(name)
        cells.append((cast(null(), type_of) if value is None else type_coerce(value, type_of)).label(name))
    return select(literal_column(f"'{kind}'", Text).label("kind"), *cells)


TRENDS: Mapping[str, Builder] = {
    "all": partial(_trends, with_keys=False),
    "of_queue": partial(_trends, with_keys=True),
}
"""The statements, by what is asked."""
