"""The handler log is stored with each attempt, however the attempt ends, and logging itself stays unchanged."""

from __future__ import annotations

import contextvars
import json
import logging
import sys
import textwrap
import threading
from datetime import UTC, datetime, timedelta

import pytest

from outboxq import Cancel, Outbox, RetryPolicy, Snooze, TaskContext, TaskTimeout
from outboxq.model import EventType
from outboxq.model.running import MOST_BYTES, MOST_LINES, Progress
from outboxq.worker.handler_log import KeeperPlace, LogKeeper
from tests import forked
from tests.waiting import until

pytestmark = pytest.mark.in_turn

log = logging.getLogger("shop.mail")


@pytest.fixture
def outbox(database, caplog):
    caplog.set_level(logging.INFO)
    return Outbox(database.engine)


def work(outbox, **options):
    assert outbox.worker(poll=0.05, **options).run(burst=True) == 0


def attempt(outbox, handle):
    """Return the last attempt at a task."""
    return outbox.store.attempts(handle.id)[-1]


def texts(outbox, handle):
    return [line.text for line in attempt(outbox, handle).log]


def ending(how):
    if how == "snoozed":
        raise Snooze(3600)
    if how == "cancelled":
        raise Cancel("gone")
    if how in {"retried", "failed"}:
        raise ValueError("declined")


KINDS = {
    "completed": EventType.COMPLETED,
    "snoozed": EventType.SNOOZED,
    "cancelled": EventType.CANCELLED,
    "retried": EventType.RETRY_SCHEDULED,
    "failed": EventType.FAILED,
}


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
@pytest.mark.parametrize("how", KINDS)
def test_every_kind_of_end_stores_the_lines_of_its_handler(outbox, how, transactional):
    policy = RetryPolicy.never() if how == "failed" else RetryPolicy(max_attempts=3, wait=3600)

    @outbox.task(name="pay", retry=policy, transactional=transactional)
    def pay(number: int) -> None:
        log.debug("not kept")
        log.info("paying %d", number)
        log.warning("slowly \N{ELEPHANT}")
        ending(how)

    before = datetime.now(UTC) - timedelta(seconds=1)
    first, second = (pay.using(outbox).enqueue(number) for number in (1, 2))
    work(outbox)
    for number, handle in ((1, first), (2, second)):
        found = attempt(outbox, handle)
        assert found.outcome is KINDS[how]
        lines = [(line.level, line.logger, line.text) for line in found.log]
        assert lines == [
            ("INFO", "shop.mail", f"paying {number}"),
            ("WARNING", "shop.mail", "slowly \N{ELEPHANT}"),
        ]
        assert all(before < line.at <= datetime.now(UTC) for line in found.log)
        assert (found.log_omitted, found.error) == (0, "ValueError: declined" if how in {"retried", "failed"} else None)


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactional"])
def test_an_end_that_the_worker_decides_stores_the_lines_too(outbox, transactional):
    """The retry policy raises SystemExit, so it makes no decision that the worker could use."""

    def leave(_state):
        raise SystemExit(1)

    @outbox.task(name="pay", retry=RetryPolicy(wait=leave), transactional=transactional)
    def pay(ctx: TaskContext) -> None:
        ctx.progress(0.5, "half")
        log.info("paying")
        raise ValueError("declined")

    handle = pay.using(outbox).enqueue()
    work(outbox)
    assert attempt(outbox, handle).outcome is EventType.FAILED
    assert attempt(outbox, handle).progress == Progress(fraction=0.5, note="half")
    assert texts(outbox, handle) == ["paying"]


def test_a_task_that_logs_nothing_adds_no_data_to_its_event(outbox, database):
    @outbox.task(name="quiet")
    def quiet() -> None: ...

    handle = quiet.using(outbox).enqueue()
    work(outbox)
    [end] = [event for event in outbox.store.history(handle.id) if event.event_type is EventType.COMPLETED]
    assert end.event_data == {}
    assert database.rows("SELECT event_data FROM execution_events WHERE event_type = 'task_completed'") == [(None,)]


def test_the_handler_log_can_be_turned_off(outbox):
    @outbox.task(name="talk")
    def talk() -> None:
        log.warning("something")

    handle = talk.using(outbox).enqueue()
    work(outbox, handler_log=False)
    assert texts(outbox, handle) == []
    assert not keepers()


def keepers():
    return [one for one in logging.getLogger().handlers if isinstance(one, LogKeeper)]


def test_only_the_last_lines_are_kept_and_the_others_counted(outbox):
    @outbox.task(name="talk")
    def talk(lines: int, width: int) -> None:
        for number in range(lines):
            log.info("%s", f"{number} ".ljust(width, "\N{ELEPHANT}"))

    many, wide = talk.using(outbox).enqueue(MOST_LINES + 5, 1), talk.using(outbox).enqueue(100, 500)
    work(outbox)
    found = attempt(outbox, many)
    assert [line.text.strip() for line in found.log] == [str(number) for number in range(5, MOST_LINES + 5)]
    assert found.log_omitted == 5
    found = attempt(outbox, wide)
    assert found.log[-1].text.startswith("99 ")
    assert len(found.log) + found.log_omitted == 100
    size = len(json.dumps([line.as_data() for line in found.log]))
    assert MOST_BYTES * 0.8 < size <= MOST_BYTES


class Unprintable:
    def __str__(self):
        raise RuntimeError("no")


def test_hostile_records_break_neither_the_task_nor_the_other_lines(outbox, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)

    @outbox.task(name="talk")
    def talk() -> None:
        record = {"msg": "\x00 \ud800", "levelno": logging.INFO, "levelname": "INFO", "name": "shop.mail"}
        LogKeeper().handle(logging.makeLogRecord(record))  # pytest could not send this text between its processes
        log.info("%d of", "x")
        log.info("%s", Unprintable())
        log.info(12)
        log.info("x" * 100_000)
        logging.getLogger("\x00" * 1000).info("a name")
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError:
            log.exception("caught")
        log.info("last")

    handle = talk.using(outbox).enqueue()
    work(outbox)
    assert outbox.store.get(handle.id).status == "Completed"
    found = texts(outbox, handle)
    assert found[:4] == ["\ufffd \ufffd", "%d of", "%s", "12"]
    assert 4000 < len(found[4]) <= 4096
    assert found[5] == "a name"
    assert found[6].startswith("caught\nTraceback")
    assert found[6].endswith("ZeroDivisionError: division by zero")
    assert found[7:] == ["last"]
    assert len(attempt(outbox, handle).log[5].logger) <= 200


def test_lines_belong_to_the_task_that_logs_them(outbox):
    both = threading.Barrier(2)

    @outbox.task(name="talk")
    def talk(number: int) -> None:
        for step in range(20):
            both.wait(60)
            log.info("%d: %d", number, step)
        copied = threading.Thread(target=contextvars.copy_context().run, args=(log.info, "%d: copied", number))
        alone = threading.Thread(target=log.info, args=("%d: alone", number))
        for thread in (copied, alone):
            thread.start()
            thread.join()

    handles = [talk.using(outbox).enqueue(number) for number in range(2)]
    work(outbox)
    log.info("outside")
    for number, handle in enumerate(handles):
        assert texts(outbox, handle) == [*(f"{number}: {step}" for step in range(20)), f"{number}: copied"]


def test_a_thread_that_logs_after_the_end_adds_no_lines(outbox):
    ended = threading.Event()
    threads = []

    @outbox.task(name="talk")
    def talk() -> None:
        log.info("inside")

        def late() -> None:
            ended.wait(60)
            log.info("late")

        threads.append(threading.Thread(target=contextvars.copy_context().run, args=(late,)))
        threads[0].start()

    handle = talk.using(outbox).enqueue()
    work(outbox)
    ended.set()
    threads[0].join()
    assert texts(outbox, handle) == ["inside"]


def test_a_logger_that_does_not_propagate_needs_a_separate_keeper_and_no_line_is_kept_twice(outbox):
    apart, kept = logging.getLogger("apart"), LogKeeper()
    apart.propagate = False
    log.addHandler(kept)

    @outbox.task(name="talk")
    def talk() -> None:
        apart.info("apart")
        log.info("twice")

    try:
        first = talk.using(outbox).enqueue()
        work(outbox)
        apart.addHandler(kept)
        second = talk.using(outbox).enqueue()
        work(outbox)
    finally:
        log.removeHandler(kept)
        apart.removeHandler(kept)
        apart.propagate = True
    assert texts(outbox, first) == ["twice"]
    assert texts(outbox, second) == ["apart", "twice"]


def test_a_keeper_with_a_filter_replaces_the_keeper_of_the_worker(outbox):
    own = LogKeeper()

    def without_secrets(record):
        record.msg = record.msg.replace("4711", "****")
        return True

    own.addFilter(without_secrets)
    logging.getLogger().addHandler(own)

    @outbox.task(name="talk")
    def talk() -> None:
        log.info("pin 4711")

    try:
        handle = talk.using(outbox).enqueue()
        work(outbox)
        assert keepers() == [own]
    finally:
        logging.getLogger().removeHandler(own)
    assert texts(outbox, handle) == ["pin ****"]


def test_a_keeper_that_is_added_later_replaces_the_keeper_of_the_worker_too(outbox):
    @outbox.task(name="late.charge")
    def charge() -> None:
        log.info("charging 4000")

    own, worker = LogKeeper(), outbox.worker(poll=0.05)
    own.addFilter(lambda record: "4000" not in record.getMessage())
    worker.start()
    try:
        charge.using(outbox).enqueue().result(timeout=60)
        logging.getLogger().addHandler(own)
        later = charge.using(outbox).enqueue()
        later.result(timeout=60)
    finally:
        worker.stop()
        logging.getLogger().removeHandler(own)
    assert texts(outbox, later) == []


def test_a_worker_removes_its_keeper_when_it_stops(outbox):
    running, going_on = threading.Event(), threading.Event()

    @outbox.task(name="talk")
    def talk() -> None:
        running.set()
        going_on.wait(60)

    talk.using(outbox).enqueue()
    worker = outbox.worker(poll=0.05)
    worker.start()
    try:
        until(running.is_set)
        assert len(keepers()) == 1
    finally:
        going_on.set()
        worker.stop()
    assert keepers() == []


def test_a_released_task_keeps_its_log_lines(outbox):
    running, going_on = threading.Event(), threading.Event()

    @outbox.task(name="hang")
    def hang() -> None:
        log.info("before it hangs")
        running.set()
        going_on.wait(60)

    handle = hang.using(outbox).enqueue()
    worker = outbox.worker(poll=0.05)
    worker.start()
    try:
        until(running.is_set)
        assert worker.stop(timeout=0.05) is False
        until(lambda: attempt(outbox, handle).outcome)  # on a busy machine, the stop does not wait for the commit
    finally:
        going_on.set()
    found = attempt(outbox, handle)
    assert found.outcome is EventType.RELEASED
    assert [line.text for line in found.log] == ["before it hangs"]


# Unconfigured logging stays unconfigured

UNCONFIGURED = """
    import logging, sys
    from outboxq import Outbox
    outbox = Outbox(sys.argv[1])

    @outbox.task(name="talk")
    def talk(configures: bool) -> None:
        if configures:
            logging.basicConfig(format="configured %(message)s", level="INFO")
        logging.getLogger("shop").info("an info")
        logging.getLogger("shop").warning("a warning")

    for configures in (False, True, False):
        talk.using(outbox).enqueue(configures)
    outbox.worker(poll=0.05, concurrency=1).run(burst=True)
"""


def test_unconfigured_logging_behaves_the_same_as_without_a_worker(database):
    program = textwrap.dedent(UNCONFIGURED)
    done = forked.run(
        [sys.executable, "-c", program, database.url], capture_output=True, text=True, timeout=120, check=True
    )
    said = [line for line in done.stderr.splitlines() if "task" not in line and "worker" not in line]
    configured = ["configured an info", "configured a warning"]
    assert said == ["a warning", *configured, *configured]
    ends = [event for event in database.store.log.tail()[0] if event.event_type is EventType.COMPLETED]
    assert [len(event.event_data.get("log", ())) for event in ends] == [0, 0, 2]


# Two workers in one process


@pytest.mark.parametrize("keeps", [True, False], ids=["keeping", "not keeping"])
def test_a_worker_that_stops_does_not_affect_the_lines_of_another_worker(outbox, database, keeps):
    """Each line is kept once, by the handler's own worker, whatever the order in which the workers start and stop."""
    other, going_on = Outbox(database.engine), threading.Event()
    begun = {"first": threading.Event(), "second": threading.Event()}

    def talk(name: str) -> None:
        log.info("%s begins", name)
        begun[name].set()
        going_on.wait(60)
        log.info("%s goes on", name)

    handles = {
        "first": outbox.task(name="first", queue="first")(lambda: talk("first")).using(outbox).enqueue(),
        "second": other.task(name="second", queue="second")(lambda: talk("second")).using(other).enqueue(),
    }
    first = outbox.worker(poll=0.05, queues=["first"], drain_timeout=0.1)
    second = other.worker(poll=0.05, queues=["second"], handler_log=keeps)
    try:
        first.start()
        until(begun["first"].is_set)
        second.start()
        until(begun["second"].is_set)
        assert len(keepers()) == 1
        first.stop()
        assert len(keepers()) == keeps
        going_on.set()
        until(lambda: other.store.get(handles["second"].id).completed_at)
        assert texts(other, handles["second"]) == ["second begins", "second goes on"] * keeps
    finally:
        going_on.set()
        first.stop()
        second.stop()
    assert texts(outbox, handles["first"]) == ["first begins"]
    assert keepers() == []


def test_the_keeper_is_removed_when_the_last_worker_stops():
    root, (first, second, third) = logging.getLogger(), (KeeperPlace() for _ in range(3))
    root.addHandler(outlet := logging.NullHandler())
    try:
        first.take()
        [keeper] = keepers()
        second.take()
        first.leave()
        third.take()
        second.leave()
        second.leave()  # a worker may stop twice
        assert keepers() == [keeper]
        third.leave()
        assert keepers() == []
    finally:
        root.removeHandler(outlet)


FORKS = """
import logging, os, signal
from outboxq.worker import handler_log

logging.basicConfig()
with handler_log._making, handler_log._sharing:
    child = os.fork()
    if not child:
        signal.alarm(30)
        place = handler_log.KeeperPlace()
        place.take()
        place.leave()
        with handler_log._making:
            os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_process_forked_while_another_worker_holds_the_logging_locks_does_not_block():
    """The fork server is forked like this, and all its children would inherit the locks."""
    done = forked.run([sys.executable, "-W", "error", "-c", FORKS], check=True, capture_output=True, text=True)
    assert done.stdout == "0\n"


# Child processes


@pytest.fixture
def isolated(outbox):
    """A worker of this outbox whose handlers run in child processes. The test starts it."""
    options = {"poll": 0.05, "isolation": "process", "heartbeat": 0.05, "timeout_grace": 0.1, "concurrency": 1}
    worker = outbox.worker(**options)
    yield worker
    worker.stop()


def test_a_handler_in_a_child_reports_progress_and_logs_too(outbox, isolated, tmp_path):
    @outbox.task(name="long")
    def long(ctx: TaskContext, number: int) -> None:
        ctx.progress(0.4, f"12 of {number}")
        log.info("begins %d", number)
        until((tmp_path / str(number)).exists)
        ctx.progress(1, "all")
        log.info("ends %d", number)

    handles = [long.using(outbox).enqueue(number) for number in (1, 2)]
    isolated.start()
    for number, handle in enumerate(handles, 1):
        wanted = {handle.id: Progress(fraction=0.4, note=f"12 of {number}")}
        until(lambda handle=handle, wanted=wanted: outbox.store.progress([handle.id]) == wanted)
        (tmp_path / str(number)).touch()
        handle.result(timeout=60)
        found = attempt(outbox, handle)
        assert [line.text for line in found.log] == [f"begins {number}", f"ends {number}"]
        assert found.progress == Progress(fraction=1.0, note="all")


def test_a_handler_that_is_killed_with_its_child_keeps_its_progress_and_lines(outbox, isolated):
    @outbox.task(name="stuck", timeout=1, timeout_action="kill", retry=RetryPolicy.never())
    def stuck(ctx: TaskContext) -> None:
        ctx.progress(0.4)
        log.info("asks the printer")
        while True:
            try:
                threading.Event().wait(60)
            except BaseException:  # noqa: BLE001 - so that it has to be killed
                log.info("goes on")

    handle = stuck.using(outbox).enqueue()
    isolated.start()
    found = until(lambda: (one := attempt_or_none(outbox, handle)) and one.outcome and one)
    assert found.outcome is EventType.FAILED
    assert found.progress == Progress(fraction=0.4)
    assert found.log[0].text == "asks the printer"


def attempt_or_none(outbox, handle):
    return next(iter(outbox.store.attempts(handle.id)[::-1]), None)


def test_a_handler_that_ignores_its_timeout_keeps_its_progress_and_lines(outbox):
    gate = threading.Event()

    @outbox.task(name="deaf", timeout=0.5, timeout_action="kill", retry=RetryPolicy.never())
    def deaf(ctx: TaskContext) -> None:
        ctx.progress(0.4)
        log.info("asks the printer")
        while not gate.is_set():
            try:
                gate.wait(0.01)
            except TaskTimeout:
                continue
        log.info("too late")

    handle = deaf.using(outbox).enqueue()
    worker = outbox.worker(poll=0.05, timeout_grace=0.1, drain_timeout=1)
    worker.start()
    try:
        found = until(lambda: (one := attempt_or_none(outbox, handle)) and one.outcome and one)
    finally:
        gate.set()
        worker.stop()
    assert found.outcome is EventType.FAILED
    assert (found.progress, [line.text for line in found.log]) == (Progress(fraction=0.4), ["asks the printer"])
    assert texts(outbox, handle) == ["asks the printer"]
