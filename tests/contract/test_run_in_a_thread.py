"""Outside the main thread, `run()` works only in a burst, because only the main thread receives signals."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from outboxq import ConfigurationError, Outbox
from outboxq.cli import main
from outboxq.worker.relays import RelayRunner
from outboxq.worker.signals import STOP_SIGNALS
from outboxq.worker.worker import Ending
from tests.conftest import Database
from tests.memory_broker import Broker, lost
from tests.waiting import until


@pytest.fixture
def outbox(database: Database) -> Outbox:
    return Outbox(database.engine, source="shop")


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    asked: list[int] = []
    monkeypatch.setattr("outboxq.worker.worker.os._exit", asked.append)
    return asked


def in_a_thread(call: Callable[[], Any]) -> Any:
    """Return the result of a call in a daemon thread. An executor's thread would keep the process from ending."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(60)


def test_run_is_refused_with_advice_and_writes_nothing(outbox: Outbox, database: Database) -> None:
    outbox.task(name="t", subscribe=["order.paid"])(lambda order: None).using(outbox).enqueue(1)
    with pytest.raises(
        ConfigurationError, match=r"only the main thread.*`outboxq worker APP`; in this thread.*burst=True"
    ):
        in_a_thread(outbox.worker(notifications=False).run)
    assert outbox.store.subscriptions.list() == []
    assert outbox.store.workers.list() == []
    assert [task.status for task in outbox.store.tasks()] == ["Ready"]


def test_a_burst_runs_without_changing_the_signal_handlers(outbox: Outbox, exits: list[int]) -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    during = []
    task = outbox.task(name="t")(lambda: during.extend(signal.getsignal(number) for number in STOP_SIGNALS))
    handle = task.using(outbox).enqueue()
    assert in_a_thread(lambda: outbox.worker(notifications=False).run(burst=True)) == 0
    assert outbox.store.get(handle.id).status == "Completed"
    assert during == before == [signal.getsignal(number) for number in STOP_SIGNALS]
    assert outbox.store.workers.list() == []
    assert exits == []


def test_a_stopped_burst_returns_early_and_does_not_end_the_process(outbox: Outbox, exits: list[int]) -> None:
    started, gate = threading.Event(), threading.Event()

    @outbox.task(name="t")
    def handler() -> None:
        started.set()
        gate.wait(60)

    handle = handler.using(outbox).enqueue()
    worker = outbox.worker(notifications=False, drain_timeout=0)
    timers = set(threading.enumerate())
    with ThreadPoolExecutor(1) as pool:
        code = pool.submit(worker.run, burst=True)
        started.wait(60)
        worker.request_stop()
        assert code.result(60) == 1
        assert not [one for one in set(threading.enumerate()) - timers if isinstance(one, threading.Timer)]
        gate.set()
    until(lambda: outbox.store.get(handle.id).status == "Ready")
    assert exits == []


@pytest.mark.parametrize(("where", "ends"), [(in_a_thread, []), (lambda call: call(), [75])], ids=["thread", "main"])
def test_only_the_main_thread_ends_the_process_of_a_stuck_handler(
    monkeypatch: pytest.MonkeyPatch, where: Callable[[Callable[[], Any]], Any], ends: list[int]
) -> None:
    asked = []
    monkeypatch.setattr("outboxq.worker.worker.end_process_after", lambda _seconds, code: asked.append(code))
    assert where(lambda: Ending(has_killed=True).code(clean=False)) == 75
    assert asked == ends


def test_the_relay_runner_is_refused_with_advice_and_writes_nothing(outbox: Outbox, database: Database) -> None:
    outbox.relay("order.*", to=Broker(), name="orders")
    runner = RelayRunner(outbox.store, outbox.tasks, notifications=False)
    with pytest.raises(ConfigurationError, match=r"`outboxq relay run` .*only the main thread.*--burst"):
        in_a_thread(runner.run)
    assert outbox.store.subscriptions.list() == []


def test_the_relay_runner_runs_a_burst(outbox: Outbox, caplog) -> None:
    broker = Broker()
    outbox.relay("order.*", to=broker, name="orders")
    outbox.sync_subscriptions()
    outbox.emit("order.paid", 7, using=outbox)
    runner = RelayRunner(outbox.store, outbox.tasks, notifications=False, burst=True)
    with caplog.at_level(logging.INFO, "outboxq.relay"):
        assert in_a_thread(runner.run) == 0
    assert broker.payloads == ["7"]
    assert caplog.messages[-1] == "relay orders: published 1 event; nothing is left"


def test_a_burst_fails_if_the_broker_fails_and_logs_what_is_left(outbox: Outbox, caplog) -> None:
    broker = Broker()
    outbox.relay("order.*", to=broker, name="orders")
    outbox.sync_subscriptions()
    outbox.emit("order.paid", 7, using=outbox, partition_key="ada")
    outbox.emit("order.paid", 8, using=outbox, partition_key="bob")
    broker.answers["7"] = [lost] * 9
    runner = RelayRunner(outbox.store, outbox.tasks, notifications=False, burst=True)
    with caplog.at_level(logging.INFO, "outboxq.relay"):
        assert in_a_thread(runner.run) == 1
    sentence = "published 1 event; 1 is left, because the broker does not confirm them: connection lost"
    assert caplog.messages[-1] == f"relay orders: {sentence}"


def test_a_burst_of_a_paused_relay_succeeds_and_logs_what_is_left(outbox: Outbox, caplog) -> None:
    outbox.relay("order.*", to=Broker(), name="orders")
    outbox.sync_subscriptions()
    outbox.emit("order.paid", 7, using=outbox)
    outbox.store.relays.pause("orders", reason="broker upgrade")
    runner = RelayRunner(outbox.store, outbox.tasks, notifications=False, burst=True)
    assert in_a_thread(runner.run) == 0
    assert caplog.messages[-1] == (
        "relay orders: published 0 events; 1 is left, because the relay is paused: broker upgrade"
    )


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("options", "code", "said"), [(["--burst"], 0, ""), ([], 2, "only the main thread")], ids=["burst", "until stopped"]
)
def test_the_command_in_a_thread_needs_burst(
    outbox: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int, said: str
) -> None:
    """Django's `call_command` runs the command like this in a test."""
    monkeypatch.syspath_prepend(tmp_path)
    url = outbox.store.bound_engine.url.render_as_string(hide_password=False)
    (tmp_path / "thread_app.py").write_text(
        f"from outboxq import Outbox\noutbox = Outbox({url!r})\noutbox.task(name='t')(lambda: None)\n"
    )
    handle = outbox.task(name="t")(lambda: None).using(outbox).enqueue()

    def invoke() -> Result:
        return CliRunner().invoke(main, ["worker", "thread_app:outbox", *options])

    result = in_a_thread(invoke)
    assert (result.exit_code, said in result.stderr) == (code, True), result.output
    assert outbox.store.get(handle.id).status == ("Completed" if code == 0 else "Ready")
