"""Notifications on PostgreSQL: only sleepers are notified, and no wake-up is lost. The proof is in
`outboxq/store/claims/sleeping_workers.py`.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import ExitStack, closing
from datetime import timedelta
from itertools import combinations
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from outboxq import migrations
from outboxq.database.privileges import Role
from outboxq.database.using import target_of
from outboxq.model import EventType, NewTask, Outcome
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from outboxq.store.claims import sleeping_workers
from outboxq.store.claims.sleeping_workers import Place
from outboxq.worker.distributor import PostgresDistributor, create_work_distributor
from outboxq.worker.distributor import postgresql as module
from outboxq.worker.distributor.listener import Listener
from tests.contract import helpers
from tests.reuse import OTHERS
from tests.sleeper import Claimer, Sleeper, ear
from tests.waiting import PROMPTLY, until

MINUTE = timedelta(minutes=1)


@pytest.fixture
def sleeping(postgresql):
    return Store(postgresql.engine).sleeping_workers


@pytest.fixture
def heard(postgresql_url):
    with ear(postgresql_url) as heard:
        yield heard


@pytest.fixture
def start(postgresql):
    made = []

    def start_one(store=None, **options):
        distributor = create_work_distributor(store or postgresql.store, **{"poll": MINUTE, **options})
        made.append(distributor)
        distributor.start()
        until(lambda: distributor.health.listening)
        return distributor

    yield start_one
    for distributor in made:
        distributor.close()


@pytest.fixture
def distributor(start):
    return start()


@pytest.fixture
def sleeper(distributor):
    return Sleeper(distributor)


def new(**fields):
    return NewTask(**{"id": uuid7(), "task_name": "tests.work", "args": "{}", **fields})


def add(postgresql, **fields):
    handle = postgresql.store.enqueue(new(**fields))
    return handle.id, time.monotonic()


def plain(url):
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def rows_of_sleepers(postgresql):
    return postgresql.rows("SELECT queue, wakes_at > clock_timestamp() FROM sleeping_workers ORDER BY queue")


def until_empty(postgresql, sleeping, horizon):
    """Check until all transactions before the horizon have ended. (Another session of the cluster may delay this.)"""
    return until(lambda: (seen := sleeping.look(horizon, None)).settled and seen, every=0.001)


# The trigger


def test_no_notification_is_sent_while_no_worker_sleeps(postgresql, heard):
    add(postgresql)
    assert heard() == []


@pytest.mark.parametrize("queues", [None, ["mail"], ["other", "mail"]])
def test_a_sleeper_is_notified_once_per_queue_and_statement(postgresql, sleeping, heard, queues):
    """A sleeper that serves all queues is notified for each queue."""
    sleeping.announce(uuid4(), queues, MINUTE)
    sleeping.announce(uuid4(), queues, MINUTE)
    postgresql.store.enqueue_many([new(queue=("mail", "news")[n % 2]) for n in range(200)])
    assert sorted(heard()) == (["mail", "news"] if queues is None else ["mail"])


def test_a_sleeper_of_another_queue_causes_no_notification(postgresql, sleeping, heard):
    sleeping.announce(uuid4(), ["news", "mailing", "Mail"], MINUTE)
    add(postgresql, queue="mail")
    assert heard() == []


def test_the_trigger_ignores_the_search_path(postgresql, sleeping, heard):
    """The search path affects neither its tables and functions nor its operators and types."""
    evil = """
        CREATE SCHEMA evil;
        CREATE DOMAIN evil.text AS integer;
        CREATE TABLE evil.sleeping_workers (nothing int);
        CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz';
        CREATE FUNCTION evil.never(pg_catalog.text, pg_catalog.text) RETURNS boolean LANGUAGE sql AS 'SELECT false';
        CREATE FUNCTION evil.never(timestamptz, timestamptz) RETURNS boolean LANGUAGE sql AS 'SELECT false';
        CREATE OPERATOR evil.= (LEFTARG = pg_catalog.text, RIGHTARG = pg_catalog.text, FUNCTION = evil.never);
        CREATE OPERATOR evil.> (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = evil.never);
    """
    row = "INSERT INTO public.task_outbox (task_execution_id, queue, priority, position, available_at, created_at)"
    sleeping.announce(uuid4(), ["mail"], MINUTE)
    with psycopg.connect(plain(postgresql.url)) as connection:
        connection.execute(evil)
        connection.execute("SET LOCAL search_path = evil, pg_catalog, public")
        connection.execute(f"{row} VALUES (gen_random_uuid(), 'mail', 0, 0, now(), now())")
    assert heard() == ["mail"]
    postgresql.corrupted = True


def test_an_expired_sleeper_row_causes_no_notification(postgresql, sleeping, heard):
    sleeping.announce(uuid4(), None, timedelta(microseconds=1))
    add(postgresql)
    assert heard() == []


def test_busy_or_stopped_workers_are_not_notified(postgresql, sleeping, heard):
    worker = uuid4()
    for leave in (sleeping.withdraw, sleeping.forget):
        sleeping.announce(worker, ["default"], MINUTE)
        add(postgresql)
        assert heard() == ["default"]
        leave(worker)
        add(postgresql)
        assert heard() == []
    assert rows_of_sleepers(postgresql) == []


def test_one_row_per_worker_and_queue_is_kept_and_reused(postgresql, sleeping):
    worker = uuid4()
    for _ in range(3):
        assert sleeping.announce(worker, ["a", "b"], MINUTE) == Place()
        sleeping.withdraw(worker)
    sleeping.announce(worker, ["a", "b"], MINUTE)
    assert rows_of_sleepers(postgresql) == [("a", True), ("b", True)]


@pytest.mark.parametrize("by", ["a worker's start", "a recovery"])
def test_rows_of_killed_sleepers_are_deleted_at_a_worker_start_or_a_recovery(postgresql, sleeping, by):
    lost = [sleeping.announce(uuid4(), queues, timedelta(microseconds=1)) for queues in (None, ["a", "b"], ["c"])]
    sleeping.announce(asleep := uuid4(), ["other"], MINUTE)
    assert len(rows_of_sleepers(postgresql)) == len(lost) + 2
    if by == "a recovery":
        claim = helpers.claimed(postgresql)
        postgresql.run("UPDATE task_leases SET lease_expires_at = clock_timestamp() - interval '1 s'")
        assert [task.id for task in postgresql.store.recover()] == [claim.id]
    else:
        postgresql.store.workers.register(uuid4(), label="new", concurrency=1, task_names=[])
    assert rows_of_sleepers(postgresql) == [("other", True)]
    sleeping.forget(asleep)
    assert rows_of_sleepers(postgresql) == []


def test_a_worker_that_stops_deletes_only_its_sleeper_row(postgresql, sleeping):
    for queue in ("mine", "another's"):
        sleeping.announce(worker := uuid4(), [queue], timedelta(microseconds=1))
    sleeping.forget(worker)
    assert rows_of_sleepers(postgresql) == [("mine", False)]


def test_deleting_expired_rows_skips_a_locked_row_without_waiting(postgresql, sleeping):
    for _ in range(2):
        sleeping.announce(uuid4(), ["a"], timedelta(microseconds=1))
    with postgresql.host_engine().begin() as connection:
        [(busy,)] = connection.execute(text("SELECT worker_id FROM sleeping_workers LIMIT 1 FOR UPDATE")).all()
        postgresql.store.workers.register(uuid4(), label="new", concurrency=1, task_names=[])
        assert postgresql.rows("SELECT worker_id FROM sleeping_workers") == [(busy,)]


def test_a_recovery_succeeds_if_sleeper_rows_cannot_be_deleted(postgresql, sleeping):
    sleeping.announce(uuid4(), ["a"], timedelta(microseconds=1))
    claim = helpers.claimed(postgresql)
    postgresql.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$;"
        "CREATE TRIGGER refuse BEFORE DELETE ON sleeping_workers FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    try:
        helpers.recovered(postgresql, claim)
    finally:
        postgresql.run("DROP FUNCTION refuse CASCADE")


def test_only_a_task_due_before_the_sleeper_wakes_notifies_it(postgresql, sleeping, heard):
    sleeping.announce(uuid4(), None, timedelta(seconds=30))
    add(postgresql, delay=timedelta(seconds=40))
    assert heard() == []
    add(postgresql, delay=timedelta(seconds=20))
    assert heard() == ["default"]
    postgresql.store.enqueue_many([new(delay=timedelta(seconds=40)), new(delay=timedelta(seconds=20))])
    assert heard() == ["default"]


def test_the_place_of_a_sleeper_counts_the_workers_that_can_claim_the_same_tasks(postgresql, sleeping):
    low, middle, high = sorted(uuid4() for _ in range(3))
    assert sleeping.announce(low, ["mail"], MINUTE, session=1) == Place()
    assert sleeping.announce(middle, ["mail"], MINUTE, session=1) == Place(before=1, others=1)
    assert sleeping.announce(middle, ["mail", "news"], MINUTE, session=1) == Place(), "no other worker serves news"
    assert sleeping.announce(high, None, MINUTE, session=1) == Place(), "the others do not serve every queue"
    assert sleeping.announce(low, ["mail"], MINUTE, session=1) == Place(before=0, others=2)
    sleeping.withdraw(middle)
    assert sleeping.announce(low, ["mail"], MINUTE, session=1) == Place(before=0, others=1)
    sleeping.forget(high)
    sleeping.announce(high, ["mail"], MINUTE)
    assert sleeping.announce(low, ["mail"], MINUTE, session=1) == Place(), "the topics of the tasks are unknown"


def test_each_sleeper_has_a_turn_and_the_first_one_changes():
    places = [Place(before=before, others=4) for before in range(5)]
    for occasion in (0, 4, 1_700_000_000_123):
        assert sorted(place.turn(occasion) for place in places) == [0, 1, 2, 3, 4]
    assert {places[0].turn(occasion) for occasion in range(5)} == {0, 1, 2, 3, 4}
    assert Place().turn(123) == 0


def test_the_first_sleepers_have_the_most_time_to_answer_for_the_others():
    waits = [Place(before=turn, others=49).share(0) for turn in range(50)]
    assert (waits[0], waits[-1], Place().share(0)) == (0, 1, 0)
    assert waits == sorted(waits)
    assert len([wait for wait in waits if wait < 0.5]) < 10


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_with_an_older_snapshot_always_notifies(postgresql, heard, level):
    with postgresql.host_engine().connect().execution_options(isolation_level=level) as connection:
        postgresql.store.enqueue(new(), using=connection)
        connection.commit()
    assert heard() == ["default"]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize(("said", "asleep", "expected"), [("always", False, ["default"]), ("off", True, [])])
def test_a_transaction_may_set_whether_it_notifies(postgresql, sleeping, heard, said, asleep, expected, level):
    if asleep:
        sleeping.announce(uuid4(), None, MINUTE)
    with postgresql.host_engine().connect().execution_options(isolation_level=level) as connection:
        connection.exec_driver_sql(f"SET LOCAL outboxq.notify = '{said}'")
        postgresql.store.enqueue(new(), using=connection)
        connection.commit()
        assert heard() == expected


@pytest.mark.parametrize("whose", ["ROLE", "DATABASE"])
@pytest.mark.parametrize(("said", "asleep", "expected"), [("always", False, ["default"]), ("off", True, [])])
def test_a_setting_of_a_role_or_database_decides_whether_it_notifies(
    postgresql, sleeping, heard, whose, said, asleep, expected
):
    url = make_url(postgresql.url)
    name = url.database if whose == "DATABASE" else f"{url.username} IN DATABASE {url.database}"
    if asleep:
        sleeping.announce(uuid4(), None, MINUTE)
    postgresql.run(f"ALTER {whose} {name} SET outboxq.notify = '{said}'")
    with psycopg.connect(plain(postgresql.url)) as connection:
        postgresql.store.enqueue(new(), using=connection)
    assert heard() == expected


def test_a_role_that_may_only_enqueue_notifies_sleepers(postgresql, sleeping, heard):
    role = f"outboxq_{uuid4().hex[:12]}"
    postgresql.run(f"CREATE ROLE {role}")
    Store(postgresql.engine).rights.grant(Role.PRODUCER, role)
    sleeping.announce(uuid4(), None, MINUTE)
    try:
        with postgresql.host_engine().begin() as connection:
            connection.exec_driver_sql(f"SET LOCAL ROLE {role}")
            postgresql.store.enqueue(new(queue="mail"), using=connection)
        assert heard() == ["mail"]
    finally:
        postgresql.run(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("way", ["release", "retry", "schedule_retry", "redrive", "recover"])
def test_a_task_that_becomes_ready_again_notifies_sleepers(postgresql, sleeping, heard, way):
    store = postgresql.store
    task, _ = add(postgresql, lease=timedelta(microseconds=1))
    (claim,) = postgresql.claim(store=store)
    if way == "redrive":
        store.fail(claim, "broken")
    sleeping.announce(uuid4(), ["default"], MINUTE)
    {
        "release": lambda: store.release(claim),
        "retry": lambda: store.finish([Outcome(claim=claim, event_type=EventType.RETRY_SCHEDULED)]),
        "schedule_retry": lambda: store.schedule_retry(task, store.now(), 2),
        "redrive": lambda: store.redrive(task),
        "recover": store.recover,
    }[way]()
    assert set(heard()) == {"default"}


# The protocol, in every interleaving


class Producer:
    """A transaction that enqueues one task, one step at a time."""

    steps = ("begin", "insert", "end")

    def __init__(self, postgresql, kind, connection=None):
        self.postgresql, self.kind = postgresql, kind
        self.committed, self.inserted = False, False
        self._gid = f"outboxq_{uuid4().hex[:8]}"
        self._connection = connection or psycopg.connect(plain(postgresql.url))

    def begin(self):
        if self.kind == "repeatable read":
            self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        if self.kind == "serializable":
            self._connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        self._connection.execute("SELECT count(*) FROM sleeping_workers")  # takes the transaction's snapshot, if any
        if self.kind == "prepared":
            self._connection.execute("SET LOCAL outboxq.notify = off")
        if self.kind == "savepoint":
            self._connection.execute("SAVEPOINT one")

    def insert(self):
        self.postgresql.store.enqueue(new(), using=self._connection)
        self.inserted = True
        if self.kind == "savepoint":
            self._connection.execute("RELEASE one")
        if self.kind == "prepared":
            self._connection.execute(f"PREPARE TRANSACTION '{self._gid}'")

    def end(self):
        if self.kind == "prepared":
            self._connection.rollback()
            self._connection.autocommit = True
            self._connection.execute(f"COMMIT PREPARED '{self._gid}'")
            self._connection.autocommit = False
        elif self.kind == "rolled back":
            self._connection.rollback()
        else:
            self._connection.commit()
        self.committed = self.kind != "rolled back"

    def close(self):
        self._connection.close()


class Protocol:
    """A worker that falls asleep, one step at a time. Its announcement is a transaction that may stay open."""

    steps = ("write", "commit", "draw", "look")

    def __init__(self, postgresql, connection):
        self.worker, self.seen = uuid4(), None
        self._store = Store(postgresql.engine)
        self._sleeping = self._store.sleeping_workers
        self._connection = connection

    def write(self):
        target = target_of(self._connection)
        values = self._store.values(target, worker_id=self.worker, longest_seconds=60.0)
        target.run(sleeping_workers.ANNOUNCE[False], values | {"session": None})

    def commit(self):
        self._connection.commit()

    def draw(self):
        self.horizon = self._sleeping.horizon()

    def look(self):
        self.seen = self._sleeping.look(self.horizon, None)

    @property
    def asleep(self):
        return self.seen is not None and self.seen.settled and not self.seen.due

    def close(self):
        self._connection.rollback()
        self._sleeping.forget(self.worker)


def interleavings():
    """Yield every possible order of both sides' steps."""
    ours, theirs = Protocol.steps, Producer.steps
    for places in combinations(range(len(ours) + len(theirs)), len(theirs)):
        left, right = iter(ours), iter(theirs)
        yield tuple(next(right) if place in places else next(left) for place in range(len(ours) + len(theirs)))


@pytest.fixture
def connections(postgresql):
    """Yield connections for a producer and a worker. All orders of the steps run on these connections, one after another."""
    url = plain(postgresql.url)
    with psycopg.connect(url) as one, psycopg.connect(url, options="-c jit=off") as other:
        yield one, other


def play(postgresql, heard, connections, kind, order):
    """Run the steps in this order. Return the worker, and whether it was notified."""
    producer, worker = Producer(postgresql, kind, connections[0]), Protocol(postgresql, connections[1])
    with closing(worker):
        for step in order:
            getattr(producer if step in Producer.steps else worker, step)()
        notified = heard() == ["default"]
        last = until_empty(postgresql, worker._sleeping, worker.horizon)
        assert last.due == producer.committed, order
        postgresql.claim(10, store=postgresql.store)
        return worker, notified


KINDS = ["read committed", "savepoint", "repeatable read", "serializable", "prepared", "rolled back"]


@pytest.mark.parametrize(
    "kind",  # a serializable transaction has the snapshot of a repeatable read
    [pytest.param(kind, marks=[pytest.mark.full] if kind == "serializable" else []) for kind in KINDS],
)
def test_no_order_of_the_steps_makes_a_worker_miss_a_committed_task(postgresql, heard, connections, kind):
    """The worker is notified, or sees that the task is due, or sees that a transaction is open and checks again (`last` above)."""
    orders = list(interleavings())
    assert len(orders) == len(set(orders)) == 35
    outcomes = set()
    for order in orders:
        worker, notified = play(postgresql, heard, connections, kind, order)
        before_the_horizon = order.index("insert") < order.index("draw")
        outcomes.add((notified, worker.asleep))
        if kind == "rolled back":
            assert not notified, order
        elif kind == "prepared" and not before_the_horizon:
            # This producer may not notify. If a task is inserted after the horizon without a notification, the fallback finds it.
            assert not notified, order
        else:
            assert notified or not worker.asleep, order
    assert len(outcomes) > 1, "every order ended in the same way, so the test proved nothing"


def test_a_check_is_not_settled_while_a_producer_is_open(postgresql, heard, connections):
    """This order breaks pg_snapshot_xmax: the latest completed id plus one is the id of the open producer."""
    order = ("write", "begin", "insert", "commit", "draw", "look", "end")
    worker, notified = play(postgresql, heard, connections, "read committed", order)
    assert not notified, "its trigger read the table before the row was committed"
    assert not worker.seen.settled


def test_the_horizon_is_above_every_transaction_that_has_written(postgresql, sleeping):
    with helpers.transaction(postgresql) as one, helpers.transaction(postgresql) as other:
        ids = [int(c.scalar(text("SELECT pg_current_xact_id()::text::bigint"))) for c in (one, other)]
        other.commit()
        horizon = sleeping.horizon()
        assert horizon > max(ids)
        assert not sleeping.look(horizon, None).settled
        one.commit()
    assert until_empty(postgresql, sleeping, horizon)
    assert sleeping.horizon() > horizon


def test_a_transaction_that_only_reads_or_began_later_keeps_no_worker_awake(postgresql, sleeping):
    with helpers.transaction(postgresql) as reader, helpers.transaction(postgresql) as later:
        reader.execute(text("SELECT count(*) FROM task_outbox"))
        horizon = sleeping.horizon()
        later.execute(text("SELECT pg_current_xact_id()"))
        assert until_empty(postgresql, sleeping, horizon)


@pytest.mark.parametrize("queues", [None, ["default", "other"]])
def test_a_check_returns_whether_a_task_is_due_and_the_next_due_time(postgresql, sleeping, queues):
    horizon = sleeping.horizon()
    seen = sleeping.look(horizon, queues)
    assert (seen.due, seen.seconds) == (False, None)
    add(postgresql, queue="other", delay=timedelta(seconds=30))
    add(postgresql, queue="other", delay=timedelta(seconds=20), priority=5)
    add(postgresql, queue="theirs" if queues else "other", delay=timedelta(seconds=20))
    seen = sleeping.look(horizon, queues)
    assert not seen.due
    assert 20 - PROMPTLY < seen.seconds <= 20
    add(postgresql, queue="default", priority=-5)
    assert sleeping.look(horizon, queues).due


# The same with the distributor


def test_a_task_of_a_producer_open_while_the_worker_falls_asleep_is_claimed_promptly(postgresql, distributor):
    """The producer's trigger saw no sleeper, so the producer does not notify when it commits."""
    sleeper = Sleeper(distributor)
    with helpers.transaction(postgresql) as producer:
        task = postgresql.store.enqueue(new(), using=producer).id
        with Claimer(postgresql.store, distributor) as claimer:
            until(lambda: sleeper.waits > 5)  # it pauses while the check is not settled
            assert rows_of_sleepers(postgresql) == [("", True)]
            producer.commit()
            assert claimer.lag(task, time.monotonic()) < PROMPTLY


def test_a_worker_pauses_between_checks_although_a_task_is_delayed(postgresql, distributor, monkeypatch):
    """While the transaction is open, the worker checks repeatedly. It knows when the delayed task is due, but this must not end the pauses."""
    add(postgresql, delay=MINUTE)
    look, began = distributor._sleeping.look, []

    def counted(*given):
        began.append(time.monotonic())
        return look(*given)

    monkeypatch.setattr(distributor._sleeping, "look", counted)
    with helpers.transaction(postgresql) as producer:
        producer.execute(text("SELECT pg_current_xact_id()"))
        distributor._wakeup.wait(0)  # clears the wake-up that says that it is listening
        distributor.wait_for_work(1.0)
    doubled = math.ceil(math.log2(module._LONGEST_PAUSE / module._FIRST_PAUSE))
    assert 1 < len(began) <= 2 + doubled + (began[-1] - began[0]) / module._LONGEST_PAUSE


@pytest.mark.parametrize("kind", ["savepoint", "repeatable read", "prepared"])
def test_tasks_from_savepoints_snapshots_or_prepared_transactions_are_claimed(postgresql, distributor, kind):
    producer = Producer(postgresql, kind)
    producer.begin()
    producer.insert()
    sleeper = Sleeper(distributor)
    with Claimer(postgresql.store, distributor) as claimer:
        until(lambda: sleeper.waits > 5)
        producer.end()
        committed = time.monotonic()
        until(lambda: claimer.claimed)
        assert min(claimer.claimed.values()) - committed < PROMPTLY
    producer.close()


def test_the_sleeper_row_is_committed_before_the_horizon_is_read(postgresql, distributor, monkeypatch):
    """A producer that inserts between the two steps sees the row, or its id is below the horizon. In the other order, neither would be
    true.
    """
    producer, steps = Producer(postgresql, "read committed"), []

    def seen(name):
        real = getattr(distributor._sleeping, name)

        def call(*arguments, **options):
            if len(steps) == 1:
                producer.begin()
                producer.insert()
            steps.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(distributor._sleeping, name, call)

    seen("announce")
    seen("horizon")
    sleeper = Sleeper(distributor)
    with Claimer(postgresql.store, distributor) as claimer:
        until(lambda: len(steps) == 2)
        waits = sleeper.waits
        until(lambda: sleeper.waits > waits + 3 or sleeper.slept)
        producer.end()
        committed = time.monotonic()
        until(lambda: claimer.claimed)
        assert min(claimer.claimed.values()) - committed < PROMPTLY
    producer.close()
    assert steps[:2] == ["announce", "horizon"]


def test_the_trigger_reads_the_sleepers_when_rows_are_written_not_when_the_statement_began(postgresql, sleeping, heard):
    """Otherwise, it would miss a statement that began before the announcement and drew its id after the horizon."""
    insert = (
        "INSERT INTO task_outbox (task_execution_id, queue, priority, position, available_at, created_at) "
        "SELECT gen_random_uuid(), 'default', 0, 1, clock_timestamp(), clock_timestamp() "
        "FROM (SELECT pg_advisory_xact_lock(7)) AS waited"
    )
    worker = uuid4()
    with helpers.transaction(postgresql) as holder:
        holder.execute(text("SELECT pg_advisory_xact_lock(7)"))
        with helpers.stuck(postgresql, lambda: postgresql.run(insert)) as inserting:
            sleeping.announce(worker, None, MINUTE)
            seen = until_empty(postgresql, sleeping, sleeping.horizon())
            assert not seen.due, "the worker may sleep"
            holder.rollback()
            inserting.result(60)
    assert heard() == ["default"]
    postgresql.run("DELETE FROM task_outbox")


def test_a_wait_with_an_open_producer_still_ends_with_the_fallback(postgresql, start):
    """A transaction may be open for hours, and the worker's row expires long before that."""
    distributor = start(poll=0.3)
    with helpers.transaction(postgresql) as other:
        other.execute(text("SELECT pg_current_xact_id()"))
        distributor.wait_for_work(0.01)
        for _ in range(2):
            waiting = threading.Thread(target=distributor.wait_for_work, daemon=True)
            waiting.start()
            waiting.join(20)
            late = waiting.is_alive()
            distributor.wake()
            waiting.join(60)
            assert not late, "the fallback comes after 0.3 s"


def test_a_wait_with_an_open_producer_ends_with_the_timeout_of_the_caller(postgresql, distributor):
    with helpers.transaction(postgresql) as other:
        other.execute(text("SELECT pg_current_xact_id()"))
        distributor.wait_for_work(0.01)
        began = time.monotonic()
        distributor.wait_for_work(0.3)
        assert 0.3 <= time.monotonic() - began < 0.3 + PROMPTLY


def test_a_due_task_that_is_locked_does_not_delay_new_tasks(postgresql, distributor, monkeypatch):
    """A task is due that no claim gets, so the worker checks less and less often. A new task is nevertheless claimed immediately."""
    locked, _ = add(postgresql)
    with helpers.transaction(postgresql) as holder:
        holder.execute(text("SELECT 1 FROM task_outbox FOR UPDATE"))
        sleeper = Sleeper(distributor)
        with Claimer(postgresql.store, distributor) as claimer:
            for delay in (0.0, 0.3):
                until(lambda: sleeper.last > 0.4)
                before = time.monotonic()
                task, _ = add(postgresql, delay=timedelta(seconds=delay))
                assert 0 <= claimer.lag(task, before + delay) < PROMPTLY
                # The next task arrives after the sleeper's row has expired, if the row ends at that due time.
                task, committed = add(postgresql)
                assert claimer.lag(task, committed) < PROMPTLY
            assert claimer.claims < 200
            holder.rollback()
            claimer.lag(locked, 0)


def test_a_thousand_notifications_during_work_cause_one_wake_up(postgresql, start):
    distributor = start()
    sleeper = Sleeper(distributor)
    distributor.wait_for_work(0.01)
    before = sleeper.rings
    postgresql.rows("SELECT pg_notify('task_ready', '* ' || number) FROM generate_series(1, 1000) AS number")
    until(lambda: sleeper.rings == before + 1000)
    began = time.monotonic()
    distributor.wait_for_work()
    assert time.monotonic() - began < PROMPTLY
    with sleeper.asleep() as woken:
        assert sleeper.sleeps_on(woken)


def test_a_task_without_a_notification_is_claimed_within_the_fallback(postgresql, start):
    distributor = start(poll=0.5)
    postgresql.run("ALTER TABLE task_outbox DISABLE TRIGGER task_outbox_notify")
    sleeper = Sleeper(distributor)
    with Claimer(postgresql.store, distributor) as claimer:
        for _ in range(2):
            until(lambda: sleeper.slept is not None)
            sleeper.slept = None
            task, committed = add(postgresql)
            assert claimer.lag(task, committed) < 0.5 + PROMPTLY
    postgresql.run("ALTER TABLE task_outbox ENABLE TRIGGER task_outbox_notify")


# Which worker is woken

ODD_QUEUES = [
    'a "quoted" name',
    "it's",
    "é" * 200,
    "%s",
    *(pytest.param(name, marks=pytest.mark.full) for name in ("UPPER", " two  words ", "task_ready", "日本語 🎈")),
]


@pytest.mark.parametrize("queue", ODD_QUEUES)
def test_a_queue_with_any_name_wakes_only_its_workers(postgresql, start, queue):
    mine, all_of_them = Sleeper(start(queues=[queue])), Sleeper(start())
    others = Sleeper(start(queues=[queue.swapcase() + ".", "default", queue[:-1] or "x"]))
    with mine.asleep() as woken, all_of_them.asleep() as woken_too, others.asleep() as not_woken:
        postgresql.store.enqueue_many([new(queue=queue), new(queue=queue)])
        committed = time.monotonic()
        assert woken.result(30) - committed < PROMPTLY
        assert woken_too.result(30) - committed < PROMPTLY
        assert others.sleeps_on(not_woken)
    assert len(postgresql.claim(2, queues=[queue], store=postgresql.store)) == 2


def test_outboxes_in_separate_schemas_do_not_wake_each_other(postgresql, start):
    for schema in ("tasks_a", "tasks_b"):
        migrations.upgrade(postgresql.url, schema=schema)
    stores = {schema: Store(postgresql.engine, schema=schema) for schema in (None, "tasks_a", "tasks_b")}
    sleepers = {schema: Sleeper(start(store)) for schema, store in stores.items()}
    for schema, store in stores.items():
        with ExitStack() as stack:
            woken = {one: stack.enter_context(sleeper.asleep()) for one, sleeper in sleepers.items()}
            store.enqueue(new())
            assert woken[schema].result(30)
            for other in stores.keys() - {schema}:
                assert sleepers[other].sleeps_on(woken[other]), (schema, other)
        store.claim_ready_task(1, worker_id=uuid4())


# Busy and idle


def test_a_busy_worker_is_not_notified_until_it_is_idle_again(postgresql, distributor, heard):
    sleeper = Sleeper(distributor)
    with sleeper.asleep() as woken:
        add(postgresql)
        assert woken.result(30)
    assert heard() == ["default"]
    for _ in range(20):
        distributor.at_work()
    assert rows_of_sleepers(postgresql) == [("", False)]
    add(postgresql)
    assert heard() == [], "the worker polls"
    postgresql.claim(10, store=postgresql.store)
    with sleeper.asleep() as woken:
        assert rows_of_sleepers(postgresql) == [("", True)]
        add(postgresql)
        assert woken.result(30)
    assert heard() == ["default"]


def test_a_worker_that_works_rarely_keeps_its_row(postgresql, distributor, heard):
    sleeper = Sleeper(distributor)
    for _ in range(3):
        with sleeper.asleep() as woken:
            add(postgresql)
            assert woken.result(30)
            postgresql.claim(store=postgresql.store)
            distributor.at_work()
        assert rows_of_sleepers(postgresql) == [("", True)]
    assert heard() == ["default"] * 3


def test_a_flood_of_tasks_is_claimed_without_a_notification_for_each(postgresql, distributor, heard, monkeypatch):
    # Two claims a second count as a flood, so that a slow machine reaches the limit too.
    monkeypatch.setattr("outboxq.worker.distributor.postgresql._BUSY_RATE", 2.0)
    monkeypatch.setattr("outboxq.worker.distributor.postgresql._RATE_WINDOW", 5.0)
    with Claimer(postgresql.store, distributor) as claimer:
        for _ in range(30):
            claimer.lag(add(postgresql)[0], 0)
        heard()
        tasks = [add(postgresql)[0] for _ in range(300)]
        for task in tasks:
            claimer.lag(task, 0)
    assert len(heard()) < 100


@pytest.mark.parametrize("state", ["deaf", "busy"])
def test_a_worker_that_does_not_sleep_checks_only_once_for_a_call(postgresql, distributor, monkeypatch, state):
    """A deaf worker polls, and a busy one claims after a pause. Neither may check repeatedly for a call that it has received."""
    module, looks = "outboxq.worker.distributor.postgresql", []
    for name in ("_EVERYBODY_AFTER", "_LATEST"):
        monkeypatch.setattr(f"{module}.{name}", 0.0)
    rate = math.inf if state == "busy" else 0.0
    monkeypatch.setattr(PostgresDistributor, "_rate", lambda _: looks.append(None) or rate)
    look_ahead = postgresql.store.look_ahead
    monkeypatch.setattr(
        postgresql.store, "look_ahead", lambda *given, **named: looks.append(None) or look_ahead(*given, **named)
    )
    if state == "deaf":
        distributor._listener.close()
        until(lambda: not distributor.health.listening)
    distributor.wait_for_work(timeout=0)
    looks.clear()
    distributor._on_notify("1,7,12 default")
    waiting = threading.Thread(target=distributor.wait_for_work, daemon=True)
    waiting.start()
    waiting.join(20)
    assert not waiting.is_alive()
    assert len(looks) <= 2


def test_a_closed_distributor_leaves_no_sleeper_row(postgresql, distributor):
    sleeper = Sleeper(distributor)
    with sleeper.asleep():
        assert rows_of_sleepers(postgresql) == [("", True)]
    distributor.close()
    assert rows_of_sleepers(postgresql) == []


def test_a_busy_distributor_leaves_no_row(postgresql, start):
    distributor = start(queues=["a", "b"])
    with Sleeper(distributor).asleep():
        pass
    for _ in range(20):
        distributor.at_work()
    assert rows_of_sleepers(postgresql) == [("a", False), ("b", False)]
    distributor.close()
    assert rows_of_sleepers(postgresql) == []


# The cost


def backends(postgresql):
    return postgresql.rows(f"SELECT pid, state, backend_xmin FROM pg_stat_activity WHERE {OTHERS}")


def test_the_listener_has_one_connection_outside_the_pool_and_transactions(postgresql, distributor):
    """A listener in a transaction receives nothing, and keeps the server from discarding any notification."""
    with Sleeper(distributor).asleep():
        assert postgresql.engine.pool.checkedout() == 0
        postgresql.engine.dispose()
        ((_, state, xmin),) = until(lambda: len(found := backends(postgresql)) == 1 and found)
    assert (state, xmin) == ("idle", None)
    assert postgresql.rows("SELECT pg_notification_queue_usage()") == [(0.0,)]
    distributor.close()
    postgresql.engine.dispose()
    until(lambda: backends(postgresql) == [])


def test_a_distributor_listens_although_the_pool_is_exhausted(postgresql):
    from sqlalchemy import create_engine

    engine = postgresql.own(create_engine(postgresql.url, pool_size=1, max_overflow=0))
    distributor = create_work_distributor(Store(engine), poll=MINUTE)
    with engine.connect():
        distributor.start()
        until(lambda: distributor.health.listening)
        postgresql.rows("SELECT pg_notify('task_ready', '* default')")
        sleeper = Sleeper(distributor)
        distributor.wait_for_work()  # the wake-up that it gets when it starts to listen
        postgresql.rows("SELECT pg_notify('task_ready', '* default')")
        until(lambda: sleeper.rings)
        distributor.wait_for_work()
    distributor.close()


def test_pings_of_the_listener_lose_no_notification(postgresql):
    """Here, most notifications arrive between two calls of `notifies()`."""
    heard, listens = [], threading.Event()
    listener = Listener(
        lambda: psycopg.connect(plain(postgresql.url)),
        postgresql.store.dialect,
        on_notify=heard.append,
        on_change=listens.set,
        ping_every=0.0005,
    )
    listener.start()
    until(lambda: listener.health.listening)
    with psycopg.connect(plain(postgresql.url), autocommit=True) as speaker:
        for number in range(500):
            speaker.execute("SELECT pg_notify('task_ready', %s)", [str(number)])
    until(lambda: len(heard) >= 500)
    assert heard == [str(number) for number in range(500)]
    listener.close()
    assert not listener.is_alive()


def test_a_listener_reports_listening_only_once_it_does(postgresql):
    """A notification that is sent as soon as a waiting worker knows that it listens is received."""
    heard, health = [], []

    def changed():
        health.append(listener.health.listening)
        if listener.health.listening:
            postgresql.rows("SELECT pg_notify('task_ready', 'at once')")

    listener = Listener(
        lambda: psycopg.connect(plain(postgresql.url)),
        postgresql.store.dialect,
        on_notify=heard.append,
        on_change=changed,
    )
    listener.start()
    until(lambda: heard)
    assert heard == ["at once"]
    assert health == [True]
    listener.close()
