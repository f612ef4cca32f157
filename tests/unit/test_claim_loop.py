"""The claim loop continues after any number of failures."""

from __future__ import annotations

import threading
from contextlib import suppress

from outboxq import Outbox
from outboxq.store import ClaimCursor
from outboxq.worker import claim_loop
from outboxq.worker.claim_loop import ClaimLoop
from outboxq.worker.leases import Leases
from outboxq.worker.options import WorkerSettings
from tests.unit.test_executor import claim_of


class AwayStore:
    """A store whose database is down for this number of claims. At the last one, it tells the worker to stop."""

    def __init__(self, times, stopping):
        self.left, self.stopping = times, stopping

    def claim_ready_task(self, *_arguments, **_options):
        self.left -= 1
        if not self.left:
            self.stopping.set()
        raise ConnectionError("the database is away")

    def unusable(self, _error):
        return None


class Idle:
    """A thread pool and a completer with nothing to do."""

    size = 1
    prefetch_limit = in_flight = handled = 0
    queued = False
    prefetch = 0
    can_write = threading.Event()
    can_write.set()

    def wait_until_at_most(self, *_arguments):
        return True


def test_claims_that_fail_a_thousand_times_do_not_end_the_worker(monkeypatch):
    """The pause doubles with each failure, and 2 to the power of 1024 is too large for a float."""
    monkeypatch.setattr(claim_loop, "_LONGEST_PAUSE", 0.00001)
    stopping, deaths = threading.Event(), []
    store = AwayStore(1100, stopping)
    one = ClaimLoop(
        store,
        {},
        WorkerSettings(),
        leases=Leases(store),
        pool=Idle(),
        completer=Idle(),
        distributor=None,
        unknown=None,
        worker_id=None,
        cursor=ClaimCursor(),
        stopping=stopping,
        on_finished=lambda: None,
        on_thread_failure=deaths.append,
    )
    with suppress(OverflowError):
        one.run()
    assert deaths == []
    assert store.left == 0


def test_a_task_declared_while_its_claim_is_dispatched_is_released():
    outbox, given_back = Outbox(), []

    class Declaring(threading.Event):
        def wait(self, _timeout=None):
            outbox.task(name="late")(lambda: None)
            return False

    class Unknown:
        def outcomes(self, claims):
            return list(claims)

    completer = Idle()
    completer.put, completer.give_back = given_back.append, lambda *_arguments, **_options: None
    loop = ClaimLoop(
        None,
        outbox.tasks,
        WorkerSettings(),
        leases=Leases(None),
        pool=Idle(),
        completer=completer,
        distributor=None,
        unknown=Unknown(),
        worker_id=None,
        cursor=ClaimCursor(),
        stopping=Declaring(),
        on_finished=lambda: None,
        on_thread_failure=lambda _: None,
    )
    claim = claim_of(Outbox().task(name="late")(lambda: None))
    loop._dispatch([claim], 0.0)
    assert given_back == [claim]
