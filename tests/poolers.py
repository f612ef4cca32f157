"""What stands between clients and the server in a test: our own pretended pooler, and in a full run a real one, if it is installed."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest

from tests.pgbouncer import PgBouncer, is_wanted
from tests.pooler import Pooler

AnyPooler = Pooler | PgBouncer
KINDS = ["pretended", *([pytest.param("pgbouncer", marks=pytest.mark.full)] if is_wanted() else [])]


def pooling(kind: str, url: str, pool_size: int) -> AbstractContextManager[AnyPooler]:
    """A pooler in front of the server of this URL; its `url` is what clients connect to."""
    return PgBouncer(url, pool_size) if kind == "pgbouncer" else Pooler(url, pool_size)
