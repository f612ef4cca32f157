"""The poolers that tests put between clients and the server: a simulated one and, in a full run, PgBouncer if it is installed."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest

from tests.pgbouncer import PgBouncer, is_wanted
from tests.pooler import Pooler

AnyPooler = Pooler | PgBouncer
KINDS = ["pretended", *([pytest.param("pgbouncer", marks=pytest.mark.full)] if is_wanted() else [])]


def pooling(kind: str, url: str, pool_size: int) -> AbstractContextManager[AnyPooler]:
    """Return a pooler for the server with this URL. Clients connect to the pooler's `url`."""
    return PgBouncer(url, pool_size) if kind == "pgbouncer" else Pooler(url, pool_size)
