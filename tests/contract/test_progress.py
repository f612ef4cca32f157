"""A handler's progress is written with the heartbeats, is shown to people, and never costs a lease."""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from uuid import uuid4

import pytest

from outboxq import InvalidArgument, Outbox, TaskContext
from outboxq.model import EventType, Outcome
from outboxq.model.running import Progress
from outboxq.store import Reason
from outboxq.worker.executor import context_of
from outboxq.worker.leases import Leases
from tests.contract.helpers import claimed, recovered
from tests.waiting import until

LEASE = timedelta(seconds=60)
SOME = Progress(fraction=0.4, note="12 of 30")
OTHER = Progress(fraction=1.0, note="")


def test_a_heartbeat_writes_new_progress_and_keeps_that_of_other_tasks(database):
    claims = [claimed(database) for _ in range(3)]
    first, second, third = (claim.id for claim in claims)
    database.frozen.heartbeat(claims, progress={first: SOME, second: OTHER})
    assert database.frozen.progress([first, second, third, uuid4()]) == {first: SOME, second: OTHER}
    database.frozen.heartbeat(claims, progress={second: SOME})
    assert database.frozen.progress([first, second, third]) == {first: SOME, second: SOME}


def test_a_heartbeat_without_progress_keeps_the_old_progress_and_extends_the_lease(database):
    claim = claimed(database, lease=LEASE)
    database.frozen.heartbeat([claim], progress={claim.id: SOME})
    database.clock.advance(10)
    beat = database.frozen.heartbeat([claim])[claim.id]
    assert (beat.lease_expires_at - database.clock()).total_seconds() == 60
    assert database.frozen.progress([claim.id]) == {claim.id: SOME}
    database.clock.advance(10)
    beat = database.frozen.heartbeat([claim], progress={claim.id: OTHER})[claim.id]
    assert (beat.lease_expires_at - database.clock()).total_seconds() == 60


def test_a_worker_that_has_lost_the_lease_writes_no_progress(database):
    claim = claimed(database)
    database.frozen.heartbeat([claim], progress={claim.id: SOME})
    recovered(database, claim)
    (newer,) = database.claim()
    assert database.frozen.progress([claim.id]) == {}, "the next attempt begins without progress"
    assert database.frozen.heartbeat([claim], progress={claim.id: OTHER}) == {}
    assert database.frozen.progress([claim.id]) == {}
    assert newer.id == claim.id


def test_explain_reports_the_progress_of_the_handler(database):
    claim = claimed(database)
    database.frozen.workers.register(claim.worker_id, label="ant:7", concurrency=1, task_names=["tests.work"])
    before = database.frozen.explain(claim.id)
    assert (before.reason, before.progress) == (Reason.RUNNING, None)
    database.frozen.heartbeat([claim], progress={claim.id: SOME})
    found = database.frozen.explain(claim.id)
    assert (found.reason, found.progress) == (Reason.RUNNING, SOME)
    assert "its handler reported 40 %: 12 of 30; its lease expires in" in found.sentence
    detail = database.frozen.task_detail(claim.id)
    assert detail.explanation == found
    database.frozen.complete(claim)
    assert database.frozen.explain(claim.id).progress is None
    assert database.frozen.progress([claim.id]) == {}


def test_the_event_of_an_end_records_the_last_progress(database):
    outbox = Outbox(database.engine)

    @outbox.task(name="count")
    def count(ctx: TaskContext, upto: int) -> int:
        for done in range(upto):
            ctx.progress(done / 4, f"{done} of 4")
        if upto < 4:
            raise ValueError("no more")
        return upto

    whole, part, nothing = (count.using(outbox).enqueue(upto) for upto in (4, 3, 0))
    assert outbox.worker(poll=0.05).run(burst=True) == 0
    ends = {handle: outbox.store.attempts(handle.id)[-1] for handle in (whole, part, nothing)}
    assert ends[whole].outcome is EventType.COMPLETED
    assert ends[whole].progress == Progress(fraction=0.75, note="3 of 4")
    assert ends[part].outcome is EventType.RETRY_SCHEDULED
    assert ends[part].progress == Progress(fraction=0.5, note="2 of 4")
    assert (ends[part].number, ends[part].error) == (1, "ValueError: no more")
    assert ends[nothing].progress is None


def test_a_worker_writes_progress_with_its_heartbeats(database):
    outbox, going_on, steps = Outbox(database.engine), threading.Event(), threading.Semaphore(0)

    @outbox.task(name="long")
    def long(ctx: TaskContext) -> None:
        for done in range(3):
            ctx.progress(done / 2)
            steps.acquire(timeout=60)
        going_on.wait(60)

    task_id = long.using(outbox).enqueue().id
    worker = outbox.worker(heartbeat=0.02, poll=0.05)
    worker.start()
    try:
        for fraction in (0.0, 0.5, 1.0):
            wanted = Progress(fraction=fraction)
            until(lambda wanted=wanted: outbox.store.progress([task_id]).get(task_id) == wanted)
            steps.release()
    finally:
        going_on.set()
        worker.stop()


@pytest.mark.parametrize(
    ("note", "stored"),
    [
        ("\x00\ud800", "\ufffd\ufffd"),
        ("a\nb\tc  d", "a b c d"),
        (None, "None"),
        ("\N{ELEPHANT}", "\N{ELEPHANT}"),
        ("'; DROP TABLE task_leases; --", "'; DROP TABLE task_leases; --"),
    ],
    ids=["unstorable", "lines", "none", "elephant", "sql"],
)
def test_invalid_characters_in_a_note_are_replaced(database, note, stored):
    claim = claimed(database)
    leases, one = held(database.frozen, claim)
    one.context.progress(0.5, note)
    leases.run_once()
    assert database.frozen.progress([claim.id]) == {claim.id: Progress(fraction=0.5, note=stored)}


def test_a_long_note_is_cut(database):
    claim = claimed(database)
    leases, one = held(database.frozen, claim)
    one.context.progress(0.5, "\N{ELEPHANT}" * 100_000)
    leases.run_once()
    note = database.frozen.progress([claim.id])[claim.id].note
    assert 400 < len(note.encode()) <= 500


@pytest.mark.parametrize(
    ("given", "kept"), [(-1, 0.0), (0, 0.0), (True, 1.0), (1.0000001, 1.0), (10**400, None), (1 / 3, 1 / 3)]
)
def test_a_fraction_outside_the_range_is_moved_to_the_nearest_bound(database, given, kept):
    context = held(database.frozen, claimed(database))[1].context
    if kept is None:
        with pytest.raises(InvalidArgument):
            context.progress(given)
        return
    context.progress(given)
    assert context.reported.fraction == kept


@pytest.mark.parametrize(
    "given", [float("nan"), "0.5", "half", None, object], ids=["nan", "text", "word", "none", "type"]
)
def test_a_value_that_is_not_a_number_is_refused_and_the_last_report_kept(database, given):
    context = held(database.frozen, claimed(database))[1].context
    context.progress(0.3)
    with pytest.raises(InvalidArgument, match="a number from 0 to 1"):
        context.progress(given)
    assert context.reported == Progress(fraction=0.3)


def test_percentages_are_rounded_down_so_that_only_1_is_100():
    assert [str(Progress(fraction=one)) for one in (0.0, 0.29, 0.57, 0.999, 1.0)] == [
        "0 %",
        "29 %",
        "57 %",
        "99 %",
        "100 %",
    ]
    assert str(SOME) == "40 %: 12 of 30"


class Beating:
    """A store that records the heartbeats."""

    def __init__(self, store):
        self.store, self.sent, self.error = store, [], None

    def heartbeat(self, claims, **more):
        self.sent.append(more)
        if more and self.error is not None:
            raise self.error
        return self.store.heartbeat(claims, **more)

    def __getattr__(self, name):
        return getattr(self.store, name)


def test_a_heartbeat_includes_progress_only_if_it_was_newly_reported(database):
    store = Beating(database.frozen)
    leases, one = held(store, claimed(database))
    leases.run_once()
    one.context.progress(0.1)
    one.context.progress(0.2)
    leases.run_once()
    leases.run_once()
    one.context.progress(0.2)
    leases.run_once()
    wanted = {"progress": {one.claim.id: Progress(fraction=0.2)}}
    assert store.sent == [{}, wanted, {}, wanted]


def test_progress_that_the_database_refuses_is_discarded(database, caplog):
    store = Beating(database.frozen)
    leases, one = held(store, claimed(database))
    store.error = ValueError("never")
    one.context.progress(0.1)
    leases.run_once()
    assert len(store.sent) == 2, "the lease is extended immediately"
    leases.run_once()
    assert store.sent[2:] == [{}]
    [record] = caplog.records
    assert (record.levelname, record.name) == ("WARNING", "outboxq.worker")
    assert one.next_beat > time.monotonic() + 1


def test_progress_is_written_once_the_database_is_available_again(database):
    store = Beating(database.frozen)
    leases, one = held(store, claimed(database))
    store.error = TimeoutError("away")
    store.may_pass = lambda error: isinstance(error, TimeoutError)
    one.context.progress(0.1)
    leases.run_once()
    store.error = None
    leases.run_once()
    assert database.frozen.progress([one.claim.id]) == {one.claim.id: Progress(fraction=0.1)}


def test_progress_for_a_locked_lease_is_written_later(postgresql):
    claim = claimed(postgresql)
    leases, one = held(postgresql.frozen, claim)
    one.context.progress(0.5)
    with postgresql.host.connect() as other:
        other.exec_driver_sql("SELECT * FROM task_leases FOR UPDATE")
        leases.run_once()
        assert one.was_locked
    leases.run_once()
    assert not one.was_locked
    assert postgresql.frozen.progress([claim.id]) == {claim.id: Progress(fraction=0.5)}


UPDATES = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = 'task_leases'"


@pytest.mark.parametrize("note", ["", "x" * 20, "x" * 200], ids=["without", "short", "long"])
def test_heartbeats_with_progress_stay_heap_only(postgresql, note):
    """The first two heartbeats may move growing rows to another page; later ones do not."""
    for _ in range(100):
        postgresql.add()
    claims, hot = postgresql.claim(100), []
    for beat in range(5):
        progress = {one.id: Progress(fraction=beat / 10, note=note) for one in claims}
        with postgresql.engine.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            before = connection.exec_driver_sql(UPDATES).one()
            postgresql.frozen.heartbeat(claims, progress=progress, using=connection)
            after = connection.exec_driver_sql(UPDATES).one()
            connection.exec_driver_sql("COMMIT")
        assert after.n_tup_upd - before.n_tup_upd == 100
        hot.append(after.n_tup_hot_upd - before.n_tup_hot_upd)
    assert hot[1] >= 60
    assert min(hot[2:]) >= 90


def test_a_transactional_task_reports_progress_too(database):
    outbox = Outbox(database.engine)

    @outbox.task(name="pay", transactional=True)
    def pay(ctx: TaskContext) -> None:
        ctx.progress(0.9, "nearly")

    task_id = pay.using(outbox).enqueue().id
    assert outbox.worker(poll=0.05).run(burst=True) == 0
    assert outbox.store.attempts(task_id)[0].progress == Progress(fraction=0.9, note="nearly")


def test_data_that_outboxq_did_not_write_is_ignored(database):
    claim = claimed(database)
    for odd in ({"progress": "x"}, {"progress": {"fraction": "x"}}, {"progress": None}, {"log": [1, {"at": "x"}]}):
        data = {**odd, "log_omitted": "many"}
        database.frozen.finish([Outcome(claim=claim, event_type=EventType.RELEASED, data=data)])
        last = database.frozen.attempts(claim.id)[-1]
        assert (last.progress, last.log, last.log_omitted) == (None, (), 0)
        (claim,) = database.claim()


def held(store, claim):
    """`Leases` with one claim, and their entry for it."""
    leases = Leases(store, None, lambda _: None)
    task = Outbox().task(name="tests.work")(lambda: None)
    [one] = leases.hold([context_of(claim, task, threading.Event())], sent=time.monotonic())
    return leases, one


@pytest.fixture(autouse=True)
def _only_warnings(caplog):
    caplog.set_level(logging.WARNING)
