"""What stands between clients and the server in a test: our own pretended pooler, and a real one where it is installed."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.pgbouncer import PgBouncer, is_wanted
from tests.pooler import Pooler

AnyPooler = Pooler | PgBouncer
KINDS = ["pretended", *(["pgbouncer"] if is_wanted() else [])]


def pooling(kind: str, url: str, pool_size: int) -> AbstractContextManager[AnyPooler]:
    """A pooler in front of the server of this URL; its `url` is what clients connect to."""
    return PgBouncer(url, pool_size) if kind == "pgbouncer" else Pooler(url, pool_size)
