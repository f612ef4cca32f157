"""Pages list every task exactly once, with every filter, in both directions, even if a query stops at its bound."""

from __future__ import annotations

import random
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from outboxq.errors import InvalidArgument
from outboxq.model import EventType, Outcome, TaskStatus, Waiting
from outboxq.model.batches import NewBatch, new_batch_id
from outboxq.model.uuid7 import uuid7
from outboxq.store import Slow, TaskPage
from outboxq.store.tasks import task_pages
from tests.conftest import NOON
from tests.contract import helpers

READY, RUNNING, FAILED = TaskStatus.READY, TaskStatus.RUNNING, TaskStatus.FAILED
OTHER = uuid4()
BATCH = new_batch_id()


def id_at(seconds: float) -> UUID:
    """An id that is created this many seconds after noon."""
    milliseconds = int((NOON + timedelta(seconds=seconds)).timestamp() * 1000)
    return UUID(int=milliseconds << 80 | uuid7().int & (1 << 80) - 1)


@pytest.fixture
def filled(database):
    """Tasks with each status, and with different queues, names and keys, whose ids are not in the order of enqueueing."""
    seconds = list(range(60))
    random.Random(7).shuffle(seconds)
    database.frozen.batches.create(NewBatch(id=BATCH))
    for number in seconds:
        key = f"k{number % 3}" if number % 4 == 0 else None
        topic = "order.paid" if number % 5 == 0 else None
        fields = {"id": id_at(number), "queue": ("mail", "rare")[number % 7 == 0], "task_name": f"t{number % 2}"}
        batch = {"pipeline_execution_id": BATCH} if number % 6 == 0 else {}
        database.add(**fields, partition_key=key, topic=topic, **batch)
    database.frozen.batches.close(BATCH)
    for worker in (database.worker, OTHER):
        for number, claim in enumerate(database.frozen.claim_ready_task(15, worker_id=worker)):
            if number % 3 == 0:
                database.frozen.finish([Outcome(claim=claim, event_type=EventType.COMPLETED)])
            elif number % 3 == 1:
                database.frozen.fail(claim, "no")
    return database


def stored(database):
    """All tasks, newest first, and the workers that have claimed each task."""
    claimed = database.rows(
        "SELECT task_execution_id, worker_id FROM execution_events WHERE event_type = 'task_claimed'"
    )
    runs = {(UUID(str(task)), UUID(str(worker))) for task, worker in claimed}
    ids = sorted((UUID(str(one)) for (one,) in database.rows("SELECT id FROM task_executions")), reverse=True)
    return [database.frozen.get(one) for one in ids], runs


def every(tasks, **wanted):
    """The matching tasks, as found by comparing in Python."""
    found, runs = tasks
    tests = {
        "status": lambda task, value: task.status is value,
        "queue": lambda task, value: task.queue == value,
        "task": lambda task, value: task.task_name == value,
        "key": lambda task, value: task.partition_key == value,
        "topic": lambda task, value: task.topic == value,
        "worker": lambda task, value: (task.id, value) in runs,
        "batch": lambda task, value: task.pipeline_execution_id == value,
        "since": lambda task, value: task.id.int >> 80 >= int(value.timestamp() * 1000),
        "until": lambda task, value: task.id.int >> 80 < int(value.timestamp() * 1000),
    }
    return [task for task in found if all(tests[name](task, value) for name, value in wanted.items())]


FILTERS = [
    {},
    {"status": TaskStatus.COMPLETED},
    {"status": READY},
    {"status": READY, "queue": "rare"},
    {"status": READY, "task": "t1"},
    {"status": READY, "key": "k0"},
    {"status": RUNNING},
    {"status": RUNNING, "queue": "mail", "topic": "order.paid"},
    {"status": RUNNING, "worker": OTHER},
    {"status": FAILED, "task": "t0"},
    {"status": FAILED, "worker": OTHER},
    {"worker": OTHER},
    {"queue": "rare", "task": "t0"},
    {"since": NOON + timedelta(seconds=10), "until": NOON + timedelta(seconds=40)},
    {"status": READY, "since": NOON + timedelta(seconds=10), "until": NOON + timedelta(seconds=40, milliseconds=500)},
    {"status": FAILED, "until": NOON + timedelta(seconds=30)},
    {"status": TaskStatus.CANCELLED},
    {"batch": BATCH},
    {"batch": BATCH, "status": READY, "queue": "mail"},
    {"batch": BATCH, "status": FAILED},
    {"batch": BATCH, "worker": OTHER, "until": NOON + timedelta(seconds=40)},
    {"batch": BATCH, "task": "t0", "key": "k0", "topic": "order.paid"},
]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("scan", "limit"),
    [
        *((1, 3), (4, 1), (4, 3), (10_000, 3), (10_000, 100)),
        *(pytest.param(*sizes, marks=pytest.mark.full) for sizes in ((1, 1), (1, 100), (4, 100), (10_000, 1))),
    ],
)
def test_all_pages_together_list_each_task_once(filled, monkeypatch, scan, limit):
    monkeypatch.setattr(task_pages, "SCAN", scan)
    tasks = stored(filled)
    for wanted in FILTERS:
        listed, before, pages = [], None, 0
        while True:
            page = filled.frozen.task_page(**wanted, before=before, limit=limit)
            assert len(page.tasks) <= limit
            if len(page.tasks) < limit and page.older is not None:
                assert page.is_cut, wanted
            listed += page.tasks
            if page.older is None:
                break
            assert before is None or page.older < before
            before, pages = page.older, pages + 1
            assert pages < 200, wanted
        assert listed == every(tasks, **wanted), wanted


@pytest.mark.in_turn
@pytest.mark.parametrize(("scan", "limit"), [(2, 2), (5, 3), (10_000, 3), (10_000, 7)])
def test_paging_backwards_lists_each_task_once(filled, monkeypatch, scan, limit):
    monkeypatch.setattr(task_pages, "SCAN", scan)
    tasks = stored(filled)
    for wanted in FILTERS:
        listed, after = [], UUID(int=0)
        while after is not None:
            page = filled.frozen.task_page(**wanted, after=after, limit=limit)
            assert page.older is not None
            listed = page.tasks + listed
            assert page.newer is None or page.newer > after
            after = page.newer
        assert listed == every(tasks, **wanted), wanted


def test_a_page_refers_to_the_pages_before_and_after_it(filled):
    first = filled.frozen.task_page(limit=10)
    second = filled.frozen.task_page(limit=10, before=first.older)
    third = filled.frozen.task_page(limit=10, before=second.older)
    assert first.newer is None
    assert filled.frozen.task_page(limit=10, after=third.newer).tasks == second.tasks
    back = filled.frozen.task_page(limit=10, after=second.newer)
    assert (back.tasks, back.newer, back.is_cut) == (first.tasks, None, False)
    assert filled.frozen.task_page(limit=10, before=back.older).tasks == second.tasks
    behind = filled.frozen.task_page(before=id_at(-1))
    assert behind == TaskPage(tasks=[], older=None, newer=behind.newer, is_cut=False)
    assert filled.frozen.task_page(limit=3, after=behind.newer).tasks[-1] == filled.frozen.tasks()[-1]


def test_the_list_of_running_and_failed_tasks_continues_after_a_bounded_scan(filled, monkeypatch):
    monkeypatch.setattr(task_pages, "SCAN", 2)
    for status in (RUNNING, FAILED):
        wanted = {"status": status, "task": "t1"}
        found = every(stored(filled), **wanted)
        assert len(found) > 2
        assert filled.frozen.tasks(**wanted, limit=2) == found[:2]
        assert filled.frozen.tasks(**wanted) == found
        assert filled.frozen.tasks(**wanted, after=UUID(int=0), limit=2) == found[-2:]
        assert filled.frozen.tasks(**wanted, after=UUID(int=0), before=found[0].id) == found[1:]
        assert filled.frozen.tasks(**wanted, after=found[-1].id, before=found[0].id, limit=2) == found[1:-1][:2]


def test_an_invalid_filter_is_refused(database):
    wrong = (
        {"status": "ready"},
        {"before": "0190"},
        {"worker": "me"},
        {"since": NOON.replace(tzinfo=None)},
        {"limit": 0},
        {"key": "\0"},
    )
    for one in wrong:
        with pytest.raises(InvalidArgument):
            database.frozen.task_page(**one)


def test_a_batch_filter_with_another_id_is_refused(database):
    task_id = database.add().id
    with pytest.raises(InvalidArgument, match="is not the id of a batch or a chain"):
        database.frozen.tasks(batch=task_id)
    assert database.frozen.tasks(batch=new_batch_id()) == []


@pytest.mark.parametrize("queue", [None, "mail"])
@pytest.mark.parametrize("batch", [False, True])
def test_ready_tasks_are_due_delayed_or_retrying(database, queue, batch):
    store, found = database.frozen, {}
    group = NewBatch(id=new_batch_id())
    store.batches.create(group)
    of = {"queue": "mail", **({"pipeline_execution_id": group.id} if batch else {})}
    for kind in ("due", "retrying", "retried"):
        found[kind] = database.add(**of).id
    first, second, third = database.claim(limit=3)
    assert first.id == found["due"]
    store.release(first)
    store.schedule_retry(second.id, database.clock() + timedelta(hours=2), 2)
    store.schedule_retry(third.id, database.clock() + timedelta(minutes=1), 2)
    found["delayed"] = database.add(**of, delay=timedelta(hours=1)).id
    store.batches.close(group.id)
    database.add(queue="other", delay=timedelta(hours=1))
    database.clock.advance(timedelta(minutes=2))
    wanted = {"queue": queue, "batch": group.id if batch else None}

    def listed(waiting, **more):
        page = store.task_page(status=TaskStatus.READY, waiting=waiting, **wanted, **more)
        return [one.id for one in page.tasks]

    everywhere = queue is None and not batch
    assert listed(Waiting.DUE) == [found["retried"], found["due"]]
    assert listed(Waiting.RETRYING) == [found["retrying"]]
    assert listed(Waiting.DELAYED)[-1:] == [found["delayed"]]
    assert len(listed(Waiting.DELAYED)) == (2 if everywhere else 1)
    assert listed(Waiting.DUE, limit=1) == [found["retried"]]
    assert listed(Waiting.DUE, before=found["retried"]) == [found["due"]]
    assert len(listed(None)) == (5 if everywhere else 4)


def test_a_waiting_filter_without_status_ready_is_refused(database):
    for status in (None, TaskStatus.RUNNING):
        with pytest.raises(InvalidArgument, match="only Ready tasks can be retrying"):
            database.frozen.task_page(status=status, waiting=Waiting.RETRYING)


def test_states_may_be_given_as_strings(database):
    store = database.frozen
    store.complete(helpers.claimed(database))
    due, delayed = database.add().id, database.add(delay=timedelta(hours=1)).id
    (done,) = store.tasks(status="Completed")
    assert [one.id for one in store.tasks(status="Ready", waiting="due")] == [due]
    assert [one.id for one in store.task_page(status="Ready", waiting="delayed").tasks] == [delayed]
    assert store.slowest(by="wait", status="Completed").tasks == [done]
    assert store.count_tasks(status="Ready").number == 2
    assert store.cancel_all(status="Ready", limit=1) == 1
    assert store.run_all_now(waiting="delayed") == 1


@pytest.mark.parametrize("call", ["tasks", "task_page", "slowest", "count_tasks", "cancel_all"])
def test_an_invalid_status_is_refused_with_a_list_of_statuses(database, call):
    ask = getattr(database.frozen, call)
    with pytest.raises(InvalidArgument, match="status must be one of 'Ready', 'Running', .*, not 'failed'"):
        ask(status="failed")
    for state in ("due", Waiting.DUE):
        with pytest.raises(
            InvalidArgument, match="'due' is a state of Ready tasks; write status='Ready', waiting='due'"
        ):
            ask(status=state)


def test_invalid_values_of_waiting_and_by_are_refused(database):
    store = database.frozen
    for call in (lambda: store.tasks(status="Ready", waiting="ready"), lambda: store.run_all_now(waiting="ready")):
        with pytest.raises(InvalidArgument, match="waiting must be one of 'due', 'delayed', 'retrying', not 'ready'"):
            call()
    with pytest.raises(InvalidArgument, match="by must be one of 'duration', 'wait', not 'run'"):
        store.slowest(by="run")


def test_tasks_are_found_by_the_exception_of_their_last_error(database):
    store, ids = database.frozen, {}
    for error in (
        "ValueError: no",
        "ValueErrors: no",
        "Outer.ValueError: no",
        "ValueError",
        "KeyError: 'ValueError: x'",
    ):
        ids[error] = database.add().id
        store.fail(database.claim()[0], error)
    for exception in ("ValueError", "builtins.ValueError"):
        found = {one.id for one in store.tasks(exception=exception)}
        assert found == {ids["ValueError: no"], ids["ValueError"]}
        assert {one.id for one in store.tasks(status=FAILED, exception=exception)} == found
    assert ids["Outer.ValueError: no"] in {one.id for one in store.tasks(exception="Outer.ValueError")}
    assert store.tasks(exception="Value%") == []


def test_the_task_that_holds_an_idempotency_key_is_found(database):
    store = database.frozen
    first = database.add(idempotency_key="order-1", task_name="tests.send").id
    database.add(idempotency_key="order-1", task_name="tests.other")
    database.add()
    assert [one.id for one in store.tasks(task="tests.send", idempotency_key="order-1")] == [first]
    assert store.tasks(task="tests.send", idempotency_key="order-2") == []
    assert store.tasks(task="tests.send", idempotency_key="order-1", before=first) == []
    page = store.task_page(task="tests.send", idempotency_key="order-1", status=READY)
    assert ([one.id for one in page.tasks], page.older, page.is_cut) == ([first], None, False)
    with pytest.raises(InvalidArgument, match="idempotency_key needs the name of the task"):
        store.tasks(idempotency_key="order-1")


def test_tasks_of_a_queue_are_found_by_an_argument(database):
    store, ids = database.frozen, {}
    for args in (
        '{"order_id":17,"note":"first"}',
        '{"note":"last","order_id":17}',
        '{"order": {"order_id": 17}}',
        '{"order_id":170}',
        '{"order_id":"17"}',
        '{"no_order_id":17}',
        '{"note":"a b"}',
    ):
        ids[args] = database.add(queue="mail", args=args).id
    database.add(queue="other", args='{"order_id":17}')
    wanted = list(ids.values())[:3]

    def found(name, value, **more):
        return sorted(one.id for one in store.tasks(queue="mail", argument=(name, value), **more))

    for status in (None, READY):
        assert found("order_id", 17, status=status) == wanted
    claims = {claim.id: claim for claim in store.claim_ready_task(9, worker_id=database.worker, queues=["mail"])}
    assert found("order_id", 17, status=RUNNING) == wanted
    store.fail(claims[wanted[0]], "no")
    assert found("order_id", 17, status=FAILED) == wanted[:1]
    assert found("order_id", "17") == [ids['{"order_id":"17"}']]
    assert found("note", "a b") == [ids['{"note":"a b"}']]
    assert found("order", {"order_id": 17}) == [wanted[2]]
    with pytest.raises(InvalidArgument, match="argument= needs queue="):
        store.tasks(argument=("order_id", 17))
    with pytest.raises(InvalidArgument, match="a name and a value that JSON can contain"):
        found("order_id", float("nan"))


@pytest.mark.parametrize("status", [None, READY])
def test_a_search_for_an_argument_is_bounded_and_can_be_continued(database, monkeypatch, status):
    monkeypatch.setattr(task_pages, "SCAN_ARGUMENTS", 3)
    wanted = database.add(queue="mail", args='{"order_id":17}').id
    for number in range(7):
        database.add(queue="mail", args=f'{{"order_id":{number}}}')
    look, pages = {"queue": "mail", "argument": ("order_id", 17), "status": status, "limit": 2}, 0
    page = database.frozen.task_page(**look)
    while page.is_cut:
        assert (page.tasks, page.looked_at) == ([], 3)
        pages += 1
        page = database.frozen.task_page(**look, before=page.older)
    assert ([one.id for one in page.tasks], pages) == ([wanted], 2)


def test_the_slowest_tasks_are_found_by_duration_and_by_wait(database):
    store, ids = database.frozen, {}
    for name, wait, run in (("quick", 30, 1), ("long", 10, 20), ("running", 5, None)):
        ids[name] = database.add(task_name=name).id
        database.clock.advance(timedelta(seconds=wait))
        (claim,) = database.claim()
        if run is not None:
            database.clock.advance(timedelta(seconds=run))
            store.complete(claim)
    database.clock.advance(timedelta(seconds=7))
    database.add(task_name="waiting")
    by_run, by_wait = store.slowest(), store.slowest(by=Slow.WAIT)
    assert [one.task_name for one in by_run.tasks] == ["long", "running", "quick"]
    assert [by_run.times[one.id].total_seconds() for one in by_run.tasks] == [20, 7, 1]
    assert [one.task_name for one in by_wait.tasks] == ["quick", "long", "running"]
    assert by_wait.times[ids["quick"]] == timedelta(seconds=30)
    assert [one.id for one in store.slowest(status=RUNNING).tasks] == [ids["running"]]
    assert [one.id for one in store.slowest(task="quick").tasks] == [ids["quick"]]
    assert [one.id for one in store.slowest(limit=1, status=TaskStatus.COMPLETED).tasks] == [ids["long"]]
    with pytest.raises(InvalidArgument, match="a waiting task has not started"):
        store.slowest(status=READY)


def test_the_slowest_tasks_can_be_filtered_by_idempotency_key(database):
    store = database.frozen
    mine, _ = (database.add(idempotency_key=key) for key in "ab")
    for claim in database.claim(2):
        store.complete(claim)
    for by in Slow:
        found = store.slowest(by=by, task="tests.work", idempotency_key="a")
        assert [one.id for one in found.tasks] == [mine.id]
    assert store.slowest(task="tests.work", idempotency_key="none").tasks == []


def test_the_slowest_tasks_are_searched_only_among_the_newest(database, monkeypatch):
    monkeypatch.setattr(task_pages, "SCAN", 2)
    tasks = [database.add() for _ in range(3)]
    for seconds in (9, 1, 2):
        (claim,) = database.claim()
        database.clock.advance(timedelta(seconds=seconds))
        database.frozen.complete(claim)
    found = database.frozen.slowest()
    assert ([one.id for one in found.tasks], found.is_cut) == ([tasks[2].id, tasks[1].id], True)
    monkeypatch.setattr(task_pages, "SCAN", 3)
    assert database.frozen.slowest().tasks[0].id == tasks[0].id
    assert not database.frozen.slowest().is_cut


def test_a_search_for_the_slowest_by_an_argument_reads_as_few_tasks_as_a_page(database, monkeypatch):
    monkeypatch.setattr(task_pages, "SCAN_ARGUMENTS", 2)
    tasks = [database.add(queue="mail", args='{"order_id":17}').id for _ in range(3)]
    for claim in database.claim(3):
        database.frozen.complete(claim)
    found = database.frozen.slowest(queue="mail", argument=("order_id", 17))
    assert ({one.id for one in found.tasks}, found.is_cut, found.looked_at) == ({*tasks[1:]}, True, 2)


def test_the_time_before_a_dead_letter_is_discarded_is_not_part_of_a_duration(database):
    task = database.add().id
    database.frozen.fail(database.claim()[0], "no")
    database.clock.advance(timedelta(days=1))
    assert database.frozen.slowest().times == {task: timedelta(0)}
    database.frozen.discard(task)
    assert database.frozen.slowest().tasks == []
    assert [one.id for one in database.frozen.slowest(by=Slow.WAIT).tasks] == [task]
