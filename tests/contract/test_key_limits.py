"""Limits per key: how many tasks of a concurrency key run at once, and how many tasks of a key start per period."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from click.testing import CliRunner

from outboxq import Outbox, TaskContext
from outboxq.cli import main
from outboxq.database.tables import key_rates
from outboxq.errors import InvalidArgument
from outboxq.model import NewTask, TaskStatus
from outboxq.model.uuid7 import uuid7
from outboxq.store import Reason
from outboxq.store.claims.due import Look
from outboxq.store.claims.limits import Bucket
from outboxq.store.claims.limits_sql import HORIZON
from outboxq.store.explain.reasons import written
from tests.contract import helpers

MINUTE = timedelta(minutes=1)


def add(database, key, **options):
    return database.add(partition_key=f"concurrency:{key}", **options)


def keys(claims):
    return Counter(claim.concurrency_key for claim in claims)


@pytest.mark.parametrize("queues", [None, ["default"], ["default", "other"]])
def test_running_tasks_of_a_key_do_not_exceed_its_limit(database, queues):
    database.store.queues.limit("default", concurrency_per_key=2, create=True)
    for key in "aaaaabbbbb":
        add(database, key)
    first = database.claim(10, queues=queues)
    assert keys(first) == {"a": 2, "b": 2}
    assert database.claim(10, queues=queues, worker_id=uuid4()) == []
    assert database.frozen.look_ahead(queues).due is False
    database.frozen.complete(next(claim for claim in first if claim.concurrency_key == "a"))
    assert database.frozen.look_ahead(queues).due is True
    assert keys(database.claim(10, queues=queues)) == {"a": 1}


def test_starts_of_a_key_do_not_exceed_its_rate(database):
    database.store.queues.limit("default", rate_per_key=(2, MINUTE), concurrency_per_key=10, create=True)
    for key in "aaaaabbb":
        add(database, key)
    claims = database.claim(10)
    assert keys(claims) == {"a": 2, "b": 2}
    for claim in claims:
        database.frozen.complete(claim)
    assert database.claim(10) == []
    ahead = database.frozen.look_ahead()
    assert (ahead.due, ahead.seconds) == (False, 30.0)
    database.clock.advance(29.9)
    assert database.claim(10) == []
    database.clock.advance(0.1)
    assert database.frozen.look_ahead().due is True
    assert keys(database.claim(10)) == {"a": 1, "b": 1}
    database.clock.advance(600)
    assert keys(database.claim(10)) == {"a": 2}  # only "a" has two tasks left
    assert database.rows("SELECT count(*) FROM key_rates")[0][0] == 1  # full buckets have no rows


def test_look_ahead_does_not_read_all_keys_that_have_used_their_rate(database):
    database.store.queues.limit("default", rate_per_key=(1, timedelta(days=1)), create=True)
    add(database, "z")
    now = database.clock()
    spent = {"queue": "default", "partition_key": "concurrency:z", "full_at": now + timedelta(hours=20)}
    others = [
        {"queue": "default", "partition_key": f"k{n}", "full_at": now + timedelta(seconds=n)}
        for n in range(1, HORIZON + 1)
    ]
    with database.engine.begin() as connection:
        connection.execute(key_rates.insert(), [spent, *others[:-1]])
    assert database.frozen.look_ahead() == Look(due=False, seconds=20 * 3600.0)
    with database.engine.begin() as connection:
        connection.execute(key_rates.insert(), others[-1:])
    assert database.frozen.look_ahead() == Look(due=False, seconds=float(HORIZON))  # it looks again then


def test_a_partition_key_keeps_its_order_and_obeys_the_rate(database):
    database.store.queues.limit("default", rate_per_key=(2, MINUTE), create=True)
    tasks = [database.add(partition_key="ada") for _ in range(4)]
    started = []
    for _ in range(4):
        for claim in database.claim(10):
            started.append(claim.id)
            assert database.claim(10) == []  # one at a time
            database.frozen.complete(claim)
    assert started == [task.id for task in tasks[:2]]
    assert database.frozen.look_ahead().seconds == 30.0


def test_a_delayed_task_of_a_concurrency_key_does_not_block_the_others(database):
    database.store.queues.limit("default", concurrency_per_key=1, create=True)
    add(database, "a", delay=MINUTE, priority=5)
    due = add(database, "a")
    assert [claim.id for claim in database.claim(5)] == [due.id]


def test_a_concurrency_key_without_a_limit_runs_one_task_at_a_time(database):
    for _ in range(3):
        add(database, "a")
    assert len(database.claim(5)) == 1
    assert database.claim(5) == []


@pytest.mark.parametrize("end", ["recovered", "retried", "cancelled"])
def test_every_end_of_a_claim_frees_its_place(database, end):
    database.store.queues.limit("default", concurrency_per_key=1, create=True)
    for _ in range(2):
        add(database, "a")
    (claim,) = database.claim(5)
    if end == "recovered":
        database.clock.advance(timedelta(hours=1))
        assert len(database.frozen.recover(5)) == 1
    elif end == "retried":
        database.frozen.schedule_retry(claim.id, database.clock.now + MINUTE, 2)
    else:
        database.frozen.cancel(claim.id, force=True)
    assert database.frozen.look_ahead().due is True
    assert len(database.claim(5)) == 1


@pytest.mark.parametrize("fair", [True, False])
def test_keys_at_their_limit_do_not_hide_the_keys_behind_them(database, fair):
    """There are more tasks than one look reads, first by age and then from key to key."""
    database.store.queues.limit("default", concurrency_per_key=1, create=True)
    database.store.queues.order("default", fair=fair, create=True)
    for number in range(300):
        add(database, "0first", priority=number % 3)
    for key in ("1second", "zlast"):
        add(database, key)
    found = Counter[str]()
    for number in (1, 2, 2):
        found += keys(database.claim(number))
    assert found == {"0first": 1, "1second": 1, "zlast": 1}
    assert database.frozen.look_ahead().due is False


def test_a_key_behind_more_blocked_keys_than_one_query_reads_is_found(database):
    database.store.queues.limit("default", rate_per_key=(1, MINUTE), concurrency_per_key=5, create=True)
    blocked = [f"k{number:04}" for number in range(80)]
    for key in blocked:
        add(database, key), add(database, key)
    while claims := database.claim(50):
        for claim in claims:
            database.frozen.complete(claim)
    last = add(database, "z")
    assert [claim.id for claim in database.claim(2)] == [last.id]


def test_keys_take_turns(database):
    database.store.queues.limit("default", concurrency_per_key=9, create=True)
    for key in "aaaaaaaabbbbcc":
        add(database, key)
    assert keys(database.claim(3)) == {"a": 1, "b": 1, "c": 1}
    assert keys(database.claim(4)) == {"a": 2, "b": 1, "c": 1}
    assert keys(database.claim(1)) == {"b": 1}


def test_limits_of_the_queue_apply_in_addition_to_limits_of_its_keys(database):
    database.store.queues.limit("default", concurrency=3, concurrency_per_key=2, rate=(4, MINUTE), create=True)
    for key in "aaabbb":
        add(database, key)
    database.add(), database.add()
    claims = database.claim(10)
    assert len(claims) == 3
    assert max(count for key, count in keys(claims).items() if key) <= 2
    assert database.claim(10) == []
    for claim in claims:
        database.frozen.complete(claim)
    assert len(database.claim(10)) == 1
    assert database.frozen.look_ahead().due is False


def test_expired_tasks_do_not_count_toward_limits_or_rates(database):
    database.store.queues.limit("default", concurrency_per_key=2, rate_per_key=(2, MINUTE), create=True)
    for _ in range(5):
        add(database, "a", expires_in=timedelta(seconds=1))
    alive = [add(database, "a") for _ in range(2)]
    database.clock.advance(5)
    assert {claim.id for claim in database.claim(5)} == {task.id for task in alive}


def test_simultaneous_claims_do_not_exceed_the_limits_of_a_key(database):
    database.store.queues.limit("default", concurrency_per_key=3, rate_per_key=(4, timedelta(hours=1)), create=True)
    for _ in range(20):
        add(database, "a")
    batches = helpers.at_once(*(lambda: database.claim(2, worker_id=uuid4()) for _ in range(6)))
    running = [claim for batch in batches for claim in batch]
    assert len(running) <= 3
    while len(running) < 3:
        running += database.claim(3)
    for claim in running:
        database.frozen.complete(claim)
    assert len(database.claim(5)) == 1
    assert database.claim(5) == []


def test_the_settings_are_set_and_removed_one_by_one(database):
    queues = database.store.queues
    queues.limit("mail", concurrency=7, create=True)
    both = queues.limit("mail", concurrency_per_key=2, rate_per_key=(5, 60), create=True)
    assert (both.concurrency, both.concurrency_per_key, both.rate_per_key) == (7, 2, (5, MINUTE))
    assert queues.pause("mail", create=True).concurrency_per_key == 2
    assert queues.resume("mail").rate_per_key == (5, MINUTE)
    assert queues.limit("mail", concurrency=8, create=True).rate_per_key == (5, MINUTE)
    assert queues.settings() == [one for one in queues.list() if one.queue == "mail"]
    assert queues.settings()[0].concurrency == 8
    assert database.store.overview().settings == queues.settings()
    one = queues.limit("mail", rate_per_key=None, create=True)
    assert (one.concurrency, one.concurrency_per_key, one.rate_per_key) == (8, 2, None)
    one = queues.limit("mail", concurrency_per_key=None, create=True)
    assert (one.concurrency, one.concurrency_per_key, one.rate_per_key) == (8, None, None)
    queues.limit("mail", concurrency=None, create=True)
    assert queues.settings() == []


def test_a_new_rate_begins_with_full_buckets(database):
    database.store.queues.limit("default", rate_per_key=(1, MINUTE), create=True)
    for _ in range(3):
        add(database, "a")
    (claim,) = database.claim(5)
    database.frozen.complete(claim)
    assert database.claim(5) == []
    database.store.queues.limit("default", rate_per_key=(2, MINUTE), create=True)
    assert len(database.claim(5)) == 1


@pytest.mark.parametrize(("seconds", "startable"), [(90, 0), (119, 0), (172_800, 1)])
def test_a_bucket_from_the_far_future_is_ignored(database, seconds, startable):
    """The database's clock has been set back."""
    database.store.queues.limit("default", rate_per_key=(1, MINUTE), create=True)
    task = add(database, "a")
    full_at = (database.clock.now + timedelta(seconds=seconds)).isoformat(timespec="microseconds")
    database.run(f"INSERT INTO key_rates VALUES ('default', 'concurrency:a', '{full_at}')")
    assert database.frozen.look_ahead().due is bool(startable)
    assert (database.frozen.explain(task.id).reason is Reason.KEY_RATE) is not bool(startable)
    assert len(database.claim(5)) == startable


@pytest.mark.parametrize("limits", [{"concurrency_per_key": 0}, {"rate_per_key": (0, 1)}, {"rate_per_key": 5}, {}])
def test_an_invalid_limit_per_key_is_refused(database, limits):
    with pytest.raises(InvalidArgument):
        database.store.queues.limit("mail", **limits, create=True)
    assert database.store.queues.settings() == []


def test_a_task_has_only_one_kind_of_key(database):
    outbox = Outbox(database.engine)

    @outbox.task(name="tests.work")
    def work() -> None: ...

    handle = work.using(outbox, concurrency_key="ada").enqueue()
    row = outbox.store.get(handle.id)
    assert (row.concurrency_key, row.partition_key, row.status) == ("ada", "concurrency:ada", TaskStatus.READY)
    with pytest.raises(InvalidArgument, match="pass only one of them"):
        work.using(outbox, concurrency_key="ada", partition_key="ada").enqueue()
    with pytest.raises(InvalidArgument, match="concurrency_key"):
        work.using(outbox, concurrency_key="").enqueue()


def test_a_bucket_regains_its_starts_one_by_one():
    bucket, now = Bucket(starts=3, seconds=60), datetime(2030, 1, 1, tzinfo=UTC)
    full_at = bucket.spent(None, now, 3)
    free = [bucket.free(full_at, now + timedelta(seconds=second)) for second in (0, 19, 20, 40, 60, 90)]
    assert free == [0, 0, 1, 2, 3, 3]


def explained(database, handle):
    why = database.frozen.explain(handle.id)
    row = database.frozen.get(handle.id)
    assert database.frozen.outlooks([row])[row.id].reason is why.reason
    assert database.frozen.task_detail(handle.id).explanation == why
    return why


def test_explain_names_the_limit_of_the_key(database):
    database.store.queues.limit("default", concurrency_per_key=1, rate_per_key=(2, MINUTE), create=True)
    tasks = [add(database, "ada") for _ in range(3)]
    (claim,) = database.claim(5)
    last = tasks[-1]
    why = explained(database, last)
    assert (why.reason, why.sentence) == (
        Reason.KEY_LIMIT,
        (
            "at most 1 task with the concurrency key 'ada' may run at a time; running now: 1; the longest-running one is task "
            f"{claim.id}, which worker {claim.worker_id} has been running since {written(claim.started_at)}"
        ),
    )
    assert why.cures[0].command == ("queue", "limit", "default", "--concurrency-per-key", "2")
    database.frozen.complete(claim)
    (claim,) = database.claim(5)
    database.frozen.complete(claim)
    why = explained(database, last)
    assert (why.reason, why.sentence) == (
        Reason.KEY_RATE,
        "at most 2 tasks with the concurrency key 'ada' may start in 1 min; the next start is possible in 30 s",
    )
    database.clock.advance(30)
    assert explained(database, last).reason is Reason.NO_WORKER


def test_explain_names_the_limit_of_a_queue_that_limits_its_keys(database):
    database.store.queues.limit("default", concurrency=1, concurrency_per_key=5, create=True)
    waiting = [add(database, "a"), database.add()]
    (claim,) = database.claim(5)
    other = next(task for task in waiting if task.id != claim.id)
    why = explained(database, other)
    assert (why.reason, why.sentence) == (
        Reason.CONCURRENCY_LIMIT,
        (
            "its queue may run at most 1 task at a time; running now: 1; the longest-running one is task "
            f"{claim.id}, which worker {claim.worker_id} has been running since {written(claim.started_at)}"
        ),
    )


def test_the_commands_set_and_show_limits_per_key(database):
    def run(*words):
        return CliRunner().invoke(main, ["queue", *words, "--url", database.url])

    answer = run("limit", "mail", "--per-key", "5/1m", "--concurrency-per-key", "3", "--create")
    assert answer.exit_code == 0, answer.output
    assert "3 at once, 5 in 1 min" in answer.output
    (shown,) = json.loads(run("list", "--json").output)
    assert (shown["concurrency"], shown["concurrency_per_key"], shown["rate_per_key"]) == (None, 3, [5, 60.0])
    assert "3 at once, 5 in 1 min" in run("show", "mail").output
    assert run("limit", "mail", "--per-key", "none", "--concurrency-per-key", "none").exit_code == 0
    assert database.store.queues.settings() == []
    assert run("limit", "mail").exit_code == 2
    assert run("limit", "mail", "--per-key", "5").exit_code == 2


def test_a_context_knows_the_key(database):
    outbox = Outbox(database.engine)
    seen = []

    @outbox.task(name="tests.heard")
    def heard(ctx: TaskContext) -> None:
        seen.append((ctx.concurrency_key, ctx.partition_key))

    heard.using(outbox, concurrency_key="ada").enqueue()
    heard.using(outbox, partition_key="bob").enqueue()
    assert outbox.worker(concurrency=1).run(burst=True) == 0
    assert sorted(seen, key=str) == [("ada", None), (None, "bob")]


@pytest.mark.parametrize("options", [{}, {"idempotency_key": "once"}])
def test_an_emit_gives_each_task_the_key(database, options):
    outbox = Outbox(database.engine)

    @outbox.task(name="tests.heard", subscribe="order.paid")
    def heard(payload: str) -> None: ...

    outbox.sync_subscriptions()
    emitted = outbox.emit("order.paid", "x", using=outbox, concurrency_key="ada", **options)
    (handle,) = emitted.handles.values()
    assert outbox.store.get(handle.id).concurrency_key == "ada"


def test_a_replaced_task_has_the_key_of_the_new_one(database):
    outbox = Outbox(database.engine)

    @outbox.task(name="tests.work")
    def work() -> None: ...

    asked = {"idempotency_key": "once", "on_conflict": "replace"}
    first = work.using(outbox, partition_key="bob", **asked).enqueue()
    assert work.using(outbox, concurrency_key="ada", **asked).enqueue().id == first.id
    assert outbox.store.get(first.id).concurrency_key == "ada"
    assert database.rows("SELECT partition_key FROM task_outbox") == [("concurrency:ada",)]


def test_delayed_tasks_of_a_key_do_not_hide_those_that_are_due(database):
    """There are more delayed tasks than `hop` reads for a key, and they come first."""
    database.store.queues.limit("default", concurrency_per_key=1, create=True)
    one = {"task_name": "tests.work", "args": "{}", "concurrency_key": "a", "delay": MINUTE, "priority": 9}
    database.frozen.enqueue_many([NewTask(id=uuid7(), **one) for _ in range(1001)])
    due = add(database, "a")
    assert [claim.id for claim in database.claim(2)] == [due.id]
    assert database.frozen.look_ahead() == Look(due=False, seconds=60.0)


def test_a_task_of_a_chain_keeps_its_key(database):
    outbox = Outbox(database.engine)

    @outbox.task(name="tests.work")
    def work() -> None: ...

    limited = work.using(concurrency_key="ada").call()
    outbox.chain(work.call(), limited).using(outbox).enqueue()
    assert outbox.worker(concurrency=1).run(burst=True) == 0
    assert [task.concurrency_key for task in outbox.store.tasks()] == ["ada", None]


def test_one_more_task_of_a_key_may_start_after_its_limit_is_removed_while_several_run(database):
    database.store.queues.limit("default", concurrency_per_key=3, create=True)
    for _ in range(6):
        add(database, "a")
    running = database.claim(10)
    assert len(running) == 3
    database.store.queues.limit("default", concurrency_per_key=None, create=True)
    (fourth,) = database.claim(10)  # a claim without a limit takes the partition key, which these three have not taken
    assert database.claim(10) == []
    database.frozen.complete(running[0])
    assert database.claim(10) == []
    database.frozen.complete(fourth)
    assert len(database.claim(10)) == 1  # besides the two that are still running
    database.store.queues.limit("default", concurrency_per_key=3, create=True)
    assert database.claim(10) == []  # three run, and each counts again
    database.frozen.complete(running[1])
    assert len(database.claim(10)) == 1


def test_no_more_tasks_of_a_key_start_while_its_queue_keeps_another_limit_per_key(database):
    database.store.queues.limit("default", concurrency_per_key=3, rate_per_key=(100, MINUTE), create=True)
    for _ in range(5):
        add(database, "a")
    running = database.claim(10)
    database.store.queues.limit("default", concurrency_per_key=None, create=True)
    for claim in running:
        assert database.claim(10) == []
        database.frozen.complete(claim)
    assert len(database.claim(10)) == 1
