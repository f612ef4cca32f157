"""A TaskTimeout that is raised during a statement. Nothing of the transaction remains, and the connection is not used again."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from outboxq import Outbox, RetryPolicy, TaskContext, TaskStatus
from tests.waiting import until


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_timeout_during_a_statement_rolls_back_and_retries(postgresql, isolation):
    """A child process raises the exception immediately. A thread raises it when the driver has its answer, because the driver waits in C."""
    outbox = Outbox(postgresql.engine)
    postgresql.run("CREATE TABLE ledger (number INTEGER)")

    # On a busy machine, the second attempt may also take more than half a second.
    @outbox.task(
        name="long", timeout=0.5, timeout_action="raise", transactional=True, retry=RetryPolicy(max_attempts=50, wait=0)
    )
    def long(ctx: TaskContext) -> int:
        ctx.connection.execute(text("INSERT INTO ledger VALUES (1)"))
        if ctx.attempt == 1:
            ctx.connection.execute(
                text("SELECT pg_sleep(:seconds)"), {"seconds": 600 if isolation == "process" else 1.5}
            )
        return ctx.attempt

    handle = long.using(outbox).enqueue()
    worker = outbox.worker(isolation=isolation, concurrency=1, poll=0.05)
    worker.start()
    try:
        task = until(lambda: (found := outbox.store.get(handle.id)).completed_at and found)
    finally:
        worker.stop()
    assert (task.status, task.result) == (TaskStatus.COMPLETED, str(task.attempt))
    assert task.attempt >= 2
    assert postgresql.rows("SELECT number FROM ledger") == [(1,)]
    postgresql.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND position('pg_sleep' in query) > 0 AND pid <> pg_backend_pid()"
    )
    postgresql.run("DROP TABLE ledger")
