"""A server that only follows another takes no writes: a worker on it would never get anything done."""

from __future__ import annotations

import pytest

from outboxq import ConfigurationError, Outbox
from tests import postgres


@pytest.fixture
def standby():
    server = postgres.start(prefer="own")
    try:
        outbox = Outbox(server.create_database())
        outbox.upgrade()
        outbox.store.engine.dispose()
        (server.data_directory / "standby.signal").touch()
        server.restart()
        yield outbox
        outbox.store.engine.dispose()
    finally:
        server.stop()


def test_a_worker_on_a_standby_is_refused(standby):
    with pytest.raises(ConfigurationError, match="primary"):
        standby.worker().start()
