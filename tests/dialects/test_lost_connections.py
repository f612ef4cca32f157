"""Lost connections to PostgreSQL: a worker notes each loss, because the server may have crashed and lost committed claims."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import create_engine

from outboxq.store import Store
from outboxq.worker.assembly import Connections

KILL = (
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name = 'lost' AND pid <> pg_backend_pid()"
)


@pytest.mark.parametrize("options", [{}, {"pool_pre_ping": True}], ids=["plain", "tested"])
@pytest.mark.parametrize("name", ["outcomes", "urgent", "claims"])
def test_the_next_transaction_after_a_lost_connection_notes_the_loss(postgresql, name, options):
    """A pool that tests its connections replaces the broken one, so no transaction fails."""
    engine = create_engine(postgresql.engine.url, connect_args={"application_name": "lost"}, **options)
    own, notes = Connections(Store(engine), stopping=threading.Event(), stopped=threading.Event()), []
    own.watch(lambda: notes.append(name))
    try:
        store = getattr(own, name)
        store.now()
        store.now()
        assert notes == []
        postgresql.rows(KILL)
        store.now()
        assert set(notes) == {name}
    finally:
        own.close(for_good=True)
        engine.dispose()
