"""Hooks observe how tasks are sent and handled: their order, what they see, and that their errors change nothing."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from outboxq import (
    Cancel,
    ConfigurationError,
    DuplicateTask,
    Hook,
    InvalidArgument,
    LeaseLost,
    Outbox,
    Retry,
    RetryPolicy,
    Snooze,
    TaskContext,
    TaskStatus,
)
from outboxq.integration import Integration
from outboxq.testing import Harness
from outboxq.worker.failpoints import Failpoint
from tests import forked
from tests.waiting import until

ONCE = RetryPolicy.never()
TWICE = RetryPolicy(max_attempts=2, wait=0)
on_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


class Noting(Hook):
    """Records each call with the hook's name."""

    def __init__(self, name, notes, headers=None):
        self.name, self.notes, self.headers = name, notes, headers

    def note(self, what):
        self.notes.append(f"{self.name} {what}")

    @contextmanager
    def sending(self, sent):
        self.note(f"sends with {dict(sent.headers)}")
        try:
            yield self.headers
        except BaseException as error:
            self.note(f"sees {type(error).__name__}")
            raise
        finally:
            self.note("has sent")

    @contextmanager
    def handling(self, context):
        self.note("handles")
        try:
            yield
        except BaseException as error:
            self.note(f"sees {type(error).__name__}")
            raise
        finally:
            self.note("has handled")

    def ended(self, context, outcome, seconds):
        self.note(f"ends {outcome.event_type.removeprefix('task_')} {type(context.error).__name__}")
        assert 0 <= seconds < 3600

    def worker_started(self, worker):
        self.note("starts")

    def worker_stopped(self, worker):
        self.note("stops")


@pytest.fixture
def notes():
    return []


@pytest.fixture
def make(database, notes):
    """Return a function that creates an outbox with these hooks."""

    def make(*hooks, **options):
        return Outbox(database.engine, hooks=hooks, **options)

    return make


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "outboxq.hooks"]


# Order and arguments.


def test_hooks_are_entered_in_order_and_left_in_reverse_order(make, notes):
    outbox = make(Noting("a", notes, {"x": "a", "y": "a"}), Noting("b", notes, {"y": "b"}))

    @outbox.task(name="t", retry=ONCE)
    def handler(ctx: TaskContext) -> None:
        notes.append(f"runs with {dict(ctx.headers)}")

    handler.using(outbox, headers={"z": "caller"}).enqueue()
    assert notes == [
        "a sends with {'z': 'caller'}",
        "b sends with {'z': 'caller', 'x': 'a', 'y': 'a'}",
        "b has sent",
        "a has sent",
    ]
    notes.clear()
    worker = outbox.worker(notifications=False)
    assert worker.run(burst=True) == 0
    assert notes == [
        "a starts",
        "b starts",
        "a handles",
        "b handles",
        "runs with {'z': 'caller', 'x': 'a', 'y': 'b'}",
        "b ends completed NoneType",
        "a ends completed NoneType",
        "b has handled",
        "a has handled",
        "b stops",
        "a stops",
    ]


def test_hooks_see_what_is_sent(make, database):
    seen = []

    class Seeing(Hook):
        @contextmanager
        def sending(self, sent):
            assert sent.handles == []
            yield None
            seen.append(sent)

    outbox = make(Seeing())

    @outbox.task(name="t", queue="mail", subscribe="order.*")
    def handler(text: str) -> None: ...

    one = handler.using(outbox, queue="slow").enqueue("ü")
    many = handler.using(outbox, headers={"a": "b"}).enqueue_many([("x",), ("yy",)])
    outbox.sync_subscriptions()
    event = outbox.emit("order.paid", "abc", using=outbox, headers={"e": "f"})
    assert handler.using(outbox).enqueue_many([]) == []
    first, second, third = seen
    assert (first.task_names, first.topic, first.queue, first.count) == (("t",), None, "slow", 1)
    assert (first.ids, first.handles, first.pipeline_execution_id) == ((one.id,), [one], None)
    assert (first.size, dict(first.headers)) == (len('{"text":"ü"}'.encode()), {})
    assert (second.task_names, second.queue, second.count, second.handles) == (("t",), "mail", 2, many)
    assert second.ids == tuple(handle.id for handle in many)
    assert second.pipeline_execution_id == database.store.get(many[0].id).pipeline_execution_id
    assert (second.size, dict(second.headers)) == (len('{"text":"x"}' + '{"text":"yy"}'), {"a": "b"})
    assert (third.task_names, third.topic, third.queue, third.count, third.ids) == ((), "order.paid", None, None, ())
    assert (third.size, dict(third.headers)) == (5, {"e": "f"})
    assert third.pipeline_execution_id == event.pipeline_execution_id
    assert third.handles == list(event.handles.values())
    assert outbox.store.get(third.handles[0].id).headers == '{"e":"f"}'


def test_hooks_see_a_taken_key_in_the_handles(make):
    seen = []

    class Seeing(Hook):
        @contextmanager
        def sending(self, sent):
            yield None
            seen.append((sent.ids, sent.handles))

    outbox = make(Seeing())
    task = outbox.task(name="t")(lambda: None)
    first = task.using(outbox, idempotency_key="k").enqueue()
    task.using(outbox, idempotency_key="k").enqueue()
    (ids, [handle]) = seen[1]
    assert handle.id == first.id != ids[0]
    assert not handle.created


@pytest.mark.in_turn
def test_the_error_of_a_refused_enqueue_passes_through_the_hooks(make, notes):
    outbox = make(Noting("a", notes))
    task = outbox.task(name="t")(lambda: None)
    task.using(outbox, idempotency_key="k").enqueue()
    notes.clear()
    with pytest.raises(DuplicateTask):
        task.using(outbox, idempotency_key="k", on_conflict="raise").enqueue()
    assert notes == ["a sends with {}", "a sees DuplicateTask", "a has sent"]
    with pytest.raises(InvalidArgument):
        outbox.emit("order", using=outbox, partition_key="")


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("raised", "ends"),
    [
        (None, "completed NoneType"),
        (ValueError("no"), "retry_scheduled ValueError"),
        (Retry(0), "retry_scheduled Retry"),
        (Snooze(1), "snoozed NoneType"),
        (Cancel("no"), "cancelled NoneType"),
        (SystemExit(3), "retry_scheduled SystemExit"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, BaseException) else "",
)
@pytest.mark.parametrize("transactional", [False, True])
def test_hooks_see_how_each_attempt_ends(make, notes, raised, ends, transactional):
    outbox = make(Noting("a", notes))

    @outbox.task(name="t", retry=TWICE, transactional=transactional)
    def handler() -> None:
        if raised is not None:
            raise raised

    with Harness(outbox) as harness:
        handler.using(outbox).enqueue()
        notes.clear()
        harness.drain(raises=False, limit=1)
    seen = [] if raised is None or isinstance(raised, Snooze | Cancel) else [f"a sees {type(raised).__name__}"]
    assert notes == ["a handles", f"a ends {ends}", *seen, "a has handled"]


def test_hooks_see_the_end_of_a_transactional_task_after_its_commit(make, database, caplog):
    found = []

    class Looking(Hook):
        def ended(self, context, outcome, seconds):
            found.append(database.store.get(context.task_id).status)

    outbox = make(Looking())

    @outbox.task(name="t", transactional=True)
    def handler(ctx: TaskContext) -> None:
        assert ctx.connection.in_transaction()

    handler.using(outbox).enqueue()
    assert outbox.worker(notifications=False).run(burst=True) == 0
    assert found == [TaskStatus.COMPLETED]
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == [], "it was written twice"


@pytest.mark.in_turn
@pytest.mark.parametrize("transactional", [False, True])
def test_hooks_do_not_see_the_end_of_a_lost_claim(make, notes, database, transactional):
    outbox = make(Noting("a", notes))

    @outbox.task(name="t", transactional=transactional)
    def handler(ctx: TaskContext) -> None:
        ctx.was_lost = True
        if transactional:
            raise LeaseLost("gone")

    with Harness(outbox) as harness:
        handler.using(outbox).enqueue()
        notes.clear()
        harness.drain(raises=False, limit=1)
    assert [one for one in notes if " ends " in one] == []
    assert notes[-1] == "a has handled"


def test_hooks_see_the_end_of_a_committed_task_that_the_worker_gave_up(make, notes):
    """The worker's time to stop ran out during the COMMIT."""
    running = []

    def give_up(point):
        if point is Failpoint.BEFORE_COMMIT:
            running[0].was_lost = True

    outbox = make(Noting("a", notes))

    @outbox.task(name="t", transactional=True)
    def handler(ctx: TaskContext) -> None:
        running.append(ctx)

    handle = handler.using(outbox).enqueue()
    notes.clear()
    outbox.worker(notifications=False, on_failpoint=give_up).run(burst=True)
    assert outbox.store.get(handle.id).status is TaskStatus.COMPLETED
    assert notes[2] == "a ends completed NoneType"


@pytest.mark.in_turn
def test_hooks_surround_the_code_of_the_framework(make, notes):
    class Framework(Integration):
        @contextmanager
        def around_handler(self, context):
            notes.append("framework enters")
            yield
            notes.append("framework leaves")

        def after_handler(self, context, outcome):
            notes.append("framework hears")

    outbox = make(Noting("a", notes), integration=Framework())
    task = outbox.task(name="t")(lambda: notes.append("runs"))
    with Harness(outbox) as harness:
        task.using(outbox).enqueue()
        notes.clear()
        harness.drain()
    assert notes == [
        "a handles",
        "framework enters",
        "runs",
        "framework hears",
        "framework leaves",
        "a ends completed NoneType",
        "a has handled",
    ]


@pytest.mark.in_turn
def test_an_error_of_the_framework_fails_the_attempt_and_hooks_see_it(make, notes):
    class Framework(Integration):
        def around_handler(self, context):
            raise RuntimeError("no context")

    outbox = make(Noting("a", notes), integration=Framework())
    task = outbox.task(name="t", retry=ONCE)(lambda: notes.append("runs"))
    handle = task.using(outbox).enqueue()
    notes.clear()
    assert outbox.worker(notifications=False).run(burst=True) == 0
    assert notes[1:-1] == ["a handles", "a ends failed RuntimeError", "a sees RuntimeError", "a has handled"]
    assert outbox.store.get(handle.id).status is TaskStatus.FAILED


@pytest.mark.in_turn
def test_two_outboxes_have_separate_hooks(database, notes):
    one = Outbox(database.engine, hooks=[Noting("one", notes)])
    other = Outbox(database.engine, hooks=[Noting("other", notes)])
    bare = Outbox(database.engine)
    for outbox in (one, other, bare):
        outbox.task(name="t")(lambda: None).using(outbox).enqueue()
    assert [note.split()[0] for note in notes] == ["one", "one", "other", "other"]


def test_a_harness_calls_hooks_too(make, notes):
    outbox = make(Noting("a", notes))
    task = outbox.task(name="t", transactional=True)(lambda: notes.append("runs"))
    with Harness(outbox) as harness:
        harness.run(task)
    assert notes == ["a handles", "runs", "a ends completed NoneType", "a has handled"]


# Errors in hooks.

PLACES = [
    "sending",
    "enter sending",
    "leave sending",
    "handling",
    "enter handling",
    "leave handling",
    "ended",
    "worker_started",
    "worker_stopped",
]


class Broken(Hook):
    """Raises an error in one place, with each kind of context manager."""

    def __init__(self, place, error):
        self.place, self.error = place, error

    def fail(self, place):
        if place == self.place:
            raise self.error

    def around(self, method):
        self.fail(method)
        return _BrokenManager(self, method)

    def sending(self, sent):
        return self.around("sending")

    def handling(self, context):
        return self.around("handling")

    def ended(self, context, outcome, seconds):
        self.fail("ended")

    def worker_started(self, worker):
        self.fail("worker_started")

    def worker_stopped(self, worker):
        self.fail("worker_stopped")


class _BrokenManager:
    def __init__(self, hook, method):
        self.hook, self.method = hook, method

    def __enter__(self):
        self.hook.fail(f"enter {self.method}")

    def __exit__(self, *_):
        self.hook.fail(f"leave {self.method}")
        return True  # suppresses any exception


@pytest.mark.in_turn
@pytest.mark.parametrize("fails", [False, True], ids=["a good task", "a bad task"])
@pytest.mark.parametrize("place", PLACES)
def test_an_exception_in_a_hook_changes_no_outcome_and_is_logged_once(database, notes, caplog, place, fails):
    caplog.set_level(logging.INFO)
    outer, inner, broken = (
        Noting("outer", notes, {"a": "1"}),
        Noting("inner", notes, {"b": "2"}),
        Broken(place, OSError("no")),
    )
    outbox = Outbox(database.engine, hooks=[outer, broken, inner])
    seen = []

    @outbox.task(name="t", retry=ONCE)
    def handler(ctx: TaskContext) -> None:
        seen.append(dict(ctx.headers))
        if fails:
            raise ValueError("bad")

    handles = [handler.using(outbox).enqueue() for _ in range(3)]
    assert outbox.worker(notifications=False, concurrency=1).run(burst=True) == 0
    status = TaskStatus.FAILED if fails else TaskStatus.COMPLETED
    assert {outbox.store.get(handle.id).status for handle in handles} == {status}
    assert seen == [{"a": "1", "b": "2"}] * 3
    for name in ("outer", "inner"):
        calls = [note for note in notes if note.startswith(name) and "sees" not in note]
        assert len(calls) == 3 * 2 + 1 + 3 * 3 + 1, "a call is missing"
        assert len([note for note in notes if note == f"{name} sees ValueError"]) == (3 if fails else 0)
    [line] = said(caplog)
    assert line.startswith("hook tests.contract.test_hooks.Broken: its ")
    assert line.endswith(("was skipped: OSError: no", "the error was ignored: OSError: no"))
    assert place.split()[-1] in line


@pytest.mark.in_turn
def test_a_hook_cannot_swallow_an_error_of_an_enqueue(make, database):
    outbox = make(Broken("nowhere", None))
    task = outbox.task(name="t")(lambda: None)
    with pytest.raises(ValueError, match="rolled back"), database.host.begin() as connection:
        task.using(connection).enqueue()
        raise ValueError("rolled back")
    with pytest.raises(InvalidArgument):
        task.using(outbox, partition_key="").enqueue()
    assert database.counts() == (0, 0, 0)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "headers", [{"outboxq-x": "1"}, {"x": 7}, {"x": "y" * 9000}, ["x"], 7, {"": "x"}], ids=lambda one: str(one)[:20]
)
def test_headers_of_a_hook_that_cannot_be_stored_are_left_out(make, notes, caplog, headers):
    outbox = make(Noting("a", notes, {"a": "1"}), Noting("bad", notes, headers), Noting("b", notes, {"b": "2"}))
    handle = outbox.task(name="t")(lambda: None).using(outbox, headers={"c": "3"}).enqueue()
    assert outbox.store.get(handle.id).headers == '{"c":"3","a":"1","b":"2"}'
    [line] = said(caplog)
    assert line.startswith("hook tests.contract.test_hooks.Noting: the headers from its sending() were left out")


@pytest.mark.in_turn
def test_a_method_that_returns_no_context_manager_is_logged(make, caplog):
    class Forgetful(Hook):
        def sending(self, sent): ...

        def handling(self, context):
            yield

    outbox = make(Forgetful())
    task = outbox.task(name="t")(lambda: 7)
    with Harness(outbox) as harness:
        task.using(outbox).enqueue()
        [ran] = harness.drain()
    assert ran.result == 7
    for line, method, found in zip(said(caplog), ("sending", "handling"), ("NoneType", "generator"), strict=True):
        assert f"its {method}() could not be entered" in line
        assert f"a context manager, not {found}; decorate it with contextlib.contextmanager" in line


@pytest.mark.in_turn
def test_an_interrupt_passes_through_an_enqueue(make, database, notes):
    outbox = make(Noting("a", notes), Broken("enter sending", KeyboardInterrupt()))
    task = outbox.task(name="t")(lambda: None)
    with pytest.raises(KeyboardInterrupt):
        task.using(outbox).enqueue()
    assert notes == ["a sends with {}", "a sees KeyboardInterrupt", "a has sent"]
    assert database.counts() == (0, 0, 0)


@pytest.mark.in_turn
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_interrupt_after_the_handler_does_not_lose_its_outcome(make):
    outbox = make(Broken("ended", KeyboardInterrupt()))
    handle = outbox.task(name="t")(lambda: None).using(outbox).enqueue()
    worker = outbox.worker(notifications=False)
    assert worker.run(burst=True) == 1, "a worker thread died"
    assert outbox.store.get(handle.id).status is TaskStatus.COMPLETED


@pytest.mark.in_turn
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_burst_stops_if_a_thread_died_before_the_claim_loop_waited_for_it(make):
    outbox = make(Broken("ended", KeyboardInterrupt()))
    outbox.task(name="t")(lambda: None).using(outbox).enqueue()
    worker = outbox.worker(notifications=False, drain_timeout=10)
    wait, wake, wakes = worker._parts.pool.wait_until_at_most, worker._parts.pool.wake, []

    def wait_late(jobs, timeout=None):
        if jobs == 0:
            until(lambda: len(wakes) == 2)
        return wait(jobs, timeout)

    worker._parts.pool.wait_until_at_most = wait_late
    worker._parts.pool.wake = lambda: wakes.append(wake())
    assert worker.run(burst=True) == 1
    assert not worker._parts.claim_loop.is_alive()


@pytest.mark.parametrize("hooks", [[Hook], Hook, [object], "timing", None, [None], 7], ids=repr)
def test_an_object_that_is_not_a_hook_is_refused(hooks):
    with pytest.raises(ConfigurationError, match=r"hooks= takes .*; write hooks=\[MyHook\(\)\]"):
        Outbox(hooks=hooks)


# Hooks of the worker.


@pytest.mark.in_turn
def test_hooks_see_a_worker_start_and_stop(make, database):
    seen = []

    class Seeing(Hook):
        def worker_started(self, worker):
            seen.append(worker)

        def worker_stopped(self, worker):
            seen.append(worker)

        def ended(self, context, outcome, seconds):
            seen.append(context.claim.worker_id)

    outbox = make(Seeing())
    outbox.task(name="t")(lambda: None).using(outbox, queue="mail").enqueue()
    worker = outbox.worker(notifications=False, queues=["mail"], concurrency=3, label="here")
    worker.run(burst=True)
    started, ran_by, stopped = seen
    assert started == stopped
    assert (started.id, started.label, started.concurrency) == (worker.id, "here", 3)
    assert (list(started.queues), started.topics, list(started.task_names)) == (["mail"], None, ["t"])
    assert ran_by == worker.id
    assert worker.stop()
    assert len(seen) == 3, "it stops once"


@pytest.mark.in_turn
def test_hooks_see_a_worker_stop_if_its_start_fails_halfway(make, notes, monkeypatch):
    outbox = make(Noting("a", notes))
    worker = outbox.worker(notifications=False)
    monkeypatch.setattr(worker._parts.distributor, "start", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        worker.start()
    assert notes == ["a starts", "a stops"]


@pytest.mark.in_turn
def test_hooks_do_not_see_a_worker_that_never_started(make, notes, monkeypatch):
    outbox = make(Noting("a", notes))
    worker = outbox.worker(notifications=False)
    monkeypatch.setattr(worker._parts.registration, "run_early", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        worker.start()
    worker.stop()
    outbox.worker().stop()
    assert notes == []


def test_hooks_do_not_see_tasks_that_are_released_unstarted(make, notes):
    outbox = make(Noting("a", notes))
    begun, may_end = threading.Event(), threading.Event()

    @outbox.task(name="t")
    def handler() -> None:
        begun.set()
        may_end.wait(60)

    handles = [handler.using(outbox).enqueue() for _ in range(3)]
    notes.clear()
    worker = outbox.worker(notifications=False, concurrency=1, prefetch=2)
    worker.start()
    assert begun.wait(60)
    until(lambda: worker._parts.pool.queued == 2)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    until(lambda: worker._parts.pool.queued == 0)
    may_end.set()
    stopping.join()
    assert notes == ["a starts", "a handles", "a ends completed NoneType", "a has handled", "a stops"]
    assert sorted(outbox.store.get(handle.id).status for handle in handles) == ["Completed", "Ready", "Ready"]


def test_a_hook_that_hangs_after_a_commit_does_not_release_its_task(make, caplog):
    told, may_end = threading.Event(), threading.Event()

    class Slow(Hook):
        def ended(self, context, outcome, seconds):
            told.set()
            may_end.wait(60)

    outbox = make(Slow())
    handle = outbox.task(name="t", transactional=True)(lambda: None).using(outbox).enqueue()
    worker = outbox.worker(notifications=False)
    worker.start()
    try:
        assert told.wait(60)
        assert worker.stop(timeout=1)  # the hook waits longer
    finally:
        may_end.set()
    assert outbox.store.get(handle.id).status is TaskStatus.COMPLETED
    assert "released" not in caplog.text


SHOP = """
    import sys
    from contextlib import contextmanager
    from outboxq import Hook, Outbox

    class Writing(Hook):
        @contextmanager
        def handling(self, context):
            print("handles", flush=True)
            yield
            print("has handled", flush=True)
        def ended(self, context, outcome, seconds):
            print("ends", outcome.event_type, flush=True)
        def worker_started(self, worker):
            print("starts", flush=True)
        def worker_stopped(self, worker):
            print("stops", flush=True)

    outbox = Outbox(sys.argv[1], hooks=[Writing()])

    @outbox.task(name="t")
    def handler() -> None:
        print("runs", flush=True)
        sys.stdin.readline()

    if __name__ == "__main__":
        handler.using(outbox).enqueue()
        sys.exit(outbox.worker(notifications=False).run())
"""


@on_sqlite
def test_hooks_see_the_end_after_sigterm(database, tmp_path):
    program = tmp_path / "shop.py"
    program.write_text(textwrap.dedent(SHOP))
    with forked.Popen(
        [sys.executable, str(program), database.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["starts\n", "handles\n", "runs\n"]
        process.send_signal(signal.SIGTERM)
        process.stdin.write("\n")
        process.stdin.flush()
        rest = process.stdout.read()
    assert (process.returncode, rest.split("\n")) == (0, ["ends task_completed", "has handled", "stops", ""])


# Costs.


@pytest.mark.in_turn
def test_without_hooks_no_hook_code_runs(database):
    called = set()

    def note(frame, event, _argument):
        if event == "call":
            called.add(Path(frame.f_code.co_filename).name)

    outbox = Outbox(database.engine)
    task = outbox.task(name="t")(lambda: None)
    task.using(outbox).enqueue()
    sys.setprofile(note)
    try:
        task.using(outbox).enqueue()
        task.using(outbox).enqueue_many([(), ()])
        outbox.emit("order", using=outbox)
        with Harness(outbox) as harness:
            harness.drain()
    finally:
        sys.setprofile(None)
    assert "task_runner.py" in called
    assert called.isdisjoint({"hook_calls.py", "hooks.py", "headers.py"})


@pytest.mark.in_turn
def test_a_method_that_is_not_overridden_is_not_called(make, monkeypatch):
    class Watching(Hook):
        def worker_started(self, worker): ...

    outbox = make(Watching())
    monkeypatch.setattr("outboxq.integration.hooks._SafeHook.around", lambda *_: pytest.fail("entered"))
    monkeypatch.setattr(Hook, "ended", lambda *_: pytest.fail("called"))
    task = outbox.task(name="t")(lambda: None)
    with Harness(outbox) as harness:
        task.using(outbox).enqueue()
        outbox.emit("order", using=outbox)
        assert len(harness.drain()) == 1
