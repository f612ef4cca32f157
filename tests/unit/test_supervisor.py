"""The processes of a supervisor: started, replaced, told to stop, and counted. The tests use small shell scripts instead of workers."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from outboxq.cli.console import EXIT_KILLED
from outboxq.cli.serving import supervisor
from outboxq.cli.serving.supervisor import LONGEST_PAUSE, SHORTEST_PAUSE, Supervisor, pause_after
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
UNTIL_TOLD = "while :; do sleep 0.05; done"
STOPPING = "stop() { touch stopping-$$; until [ -e go ]; do sleep 0.02; done; exit 0; }; trap stop TERM"


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch, caplog):
    """The directory in which each shell creates a file when it has started."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)
    return tmp_path


@pytest.fixture
def supervise(monkeypatch):
    """Run a shell script in several processes. `meanwhile` runs at the same time, and may send signals to this process."""
    monkeypatch.setattr(supervisor, "SHORTEST_PAUSE", 0.01)
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE", 0.05)
    running = []

    def run(script, meanwhile=lambda _supervisor: None, *, processes=2, traps=":", **options):
        # A shell handles a signal only when the command that it waits for has ended.
        command = ["sh", "-c", f"trap 'exit 0' TERM\n{traps}\ntouch begun-$$\n{script}"]
        one = Supervisor(lambda lifeline: [*command, "sh", str(lifeline)], processes=processes, **options)
        running.append(one)
        failures, is_over = [], threading.Event()

        def beside():
            try:
                meanwhile(one)
                assert is_over.wait(PATIENCE), "the supervisor has not ended"
            except Exception as error:  # noqa: BLE001 - raised again below
                failures.append(error)
                one._events.put(partial(one._forward, signal.SIGKILL, at_once=True))

        thread = threading.Thread(target=beside)
        thread.start()
        try:
            code = one.run()
        finally:
            is_over.set()
            thread.join()
        if failures:
            raise failures[0]
        return code

    # A signal that arrives too early or too late must not end the tests.
    before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    yield run
    for number, handler in before.items():
        signal.signal(number, handler)
    for one in running:
        for child in one._children:
            if child.process is not None:
                child.process.kill()


def files(name: str) -> list[int]:
    """Return the ids of the processes that created such a file."""
    return sorted(int(path.name.partition("-")[2]) for path in Path().glob(f"{name}-*"))


def begun() -> list[int]:
    return files("begun")


def tell(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


def when_begun(count, then=tell):
    def wait(_supervisor):
        until(lambda: len(begun()) >= count)
        then()

    return wait


def test_a_signal_stops_all_processes_and_the_exit_code_is_0(supervise, caplog):
    before = [signal.getsignal(number) for number in SIGNALS]
    assert supervise(UNTIL_TOLD, when_begun(3), processes=3) == 0
    assert len(begun()) == 3
    assert caplog.text.count("exited with code 0") == 3
    assert before == [signal.getsignal(number) for number in SIGNALS]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM])
def test_each_signal_is_forwarded(supervise, number):
    traps = f"trap 'touch got-$$; exit 3' {number.name[3:]}"
    assert supervise(UNTIL_TOLD, when_begun(2, lambda: tell(number)), traps=traps) == 3
    assert files("got") == begun()


def test_a_signal_is_noticed_in_any_thread(supervise, caplog):
    """The main thread sleeps on, and Python runs no handler."""

    def meanwhile(_supervisor):
        until(lambda: len(begun()) == 2)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        until(lambda: "passing on SIGTERM" in caplog.text)

    assert supervise(UNTIL_TOLD, meanwhile) == 0


def test_a_second_signal_is_forwarded_too(supervise, monkeypatch):
    def meanwhile(_supervisor):
        until(lambda: len(begun()) == 2)
        tell(signal.SIGTERM)
        until(lambda: len(files("first")) == 2)
        tell(signal.SIGINT)

    monkeypatch.setattr("outboxq.worker.signals._ECHO", 0.0)
    assert supervise(UNTIL_TOLD, meanwhile, traps="trap 'trap \"exit 1\" INT; touch first-$$' TERM") == 1


def test_each_process_has_a_separate_session_to_get_a_terminals_signal_once(supervise):
    def meanwhile(_supervisor):
        until(lambda: len(begun()) == 2)
        sessions.extend(os.getsid(pid) for pid in begun())
        tell()

    sessions: list[int] = []
    supervise(UNTIL_TOLD, meanwhile)
    assert sessions == begun()


def test_the_exit_code_is_the_highest(supervise):
    traps = "trap 'mkdir first && exit 5; exit 3' TERM"
    assert supervise(UNTIL_TOLD, when_begun(3), processes=3, traps=traps) == 5


def test_a_process_that_is_killed_while_it_stops_counts_as_1(supervise):
    def meanwhile(_supervisor):
        until(lambda: len(begun()) == 2)
        tell()
        until(lambda: len(files("stopping")) == 2)
        os.kill(begun()[0], signal.SIGKILL)
        Path("go").touch()

    assert supervise(UNTIL_TOLD, meanwhile, traps=STOPPING) == 1


def test_a_process_killed_by_the_signal_while_starting_counts_as_stopped_cleanly(supervise, caplog):
    assert supervise(UNTIL_TOLD, when_begun(2), traps="trap - TERM") == 0
    assert caplog.text.count("was killed by SIGTERM") == 2


def test_a_process_that_dies_is_replaced_and_the_cause_is_logged(supervise, caplog):
    def meanwhile(_supervisor):
        until(lambda: len(begun()) == 2)
        victim.append(begun()[0])
        os.kill(victim[0], signal.SIGKILL)
        until(lambda: len(begun()) == 3)
        tell()

    victim: list[int] = []
    assert supervise(UNTIL_TOLD, meanwhile) == 0
    assert f"(pid {victim[0]}) was killed by SIGKILL; it will be replaced in" in caplog.text


@pytest.mark.parametrize("code", [0, 1, 70])
def test_a_process_that_ends_by_itself_is_replaced(supervise, caplog, code):
    assert supervise(f"mkdir first && exit {code}; {UNTIL_TOLD}", when_begun(3)) == 0
    assert f"exited with code {code}; it will be replaced in" in caplog.text


def test_the_pause_grows_with_each_death_of_a_process(supervise, monkeypatch):
    pauses = []
    monkeypatch.setattr(supervisor, "pause_after", lambda failures: pauses.append(failures) or 0.0)
    supervise("exit 1", when_begun(5), processes=1)
    assert pauses[:4] == [1, 2, 3, 4]


def test_a_process_that_dies_after_ten_seconds_is_replaced_immediately(supervise, monkeypatch):
    pauses = []
    monkeypatch.setattr(supervisor, "pause_after", lambda failures: pauses.append(failures) or 0.0)
    monkeypatch.setattr(supervisor, "SETTLED_AFTER", 0.0)
    supervise("exit 1", when_begun(4), processes=1)
    assert set(pauses) == {0}


def test_pauses_grow_up_to_a_limit_and_vary():
    assert pause_after(0) == 0
    for failures in range(1, 60):
        least, most = (min(LONGEST_PAUSE, SHORTEST_PAUSE * 2 ** (failures - 1)) * part for part in (0.5, 1))
        assert least <= pause_after(failures) <= most
    assert len({pause_after(3) for _ in range(20)}) > 10
    assert pause_after(10**9) <= LONGEST_PAUSE


def test_no_process_starts_after_a_signal(supervise, monkeypatch, caplog):
    monkeypatch.setattr(supervisor, "pause_after", lambda _failures: 3600.0)

    def meanwhile(_supervisor):
        until(lambda: caplog.text.count("it will be replaced in 3600.0 s") == 2)
        tell()

    assert supervise("exit 1", meanwhile) == 0
    assert len(begun()) == 2


def test_a_process_that_is_done_is_recycled_without_a_pause(supervise, monkeypatch, caplog):
    pauses = []
    monkeypatch.setattr(supervisor, "pause_after", lambda failures: pauses.append(failures) or 0.0)
    assert supervise("exit 0", when_begun(6), recycles=True) == 0
    assert set(pauses) == {0}
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_a_process_that_ended_with_a_handler_is_replaced_without_a_pause(supervise, monkeypatch):
    pauses = []
    monkeypatch.setattr(supervisor, "pause_after", lambda failures: pauses.append(failures) or 0.0)
    supervise(f"exit {EXIT_KILLED}", when_begun(6))
    assert set(pauses) == {0}


def test_a_burst_is_over_when_all_processes_are_done(supervise):
    assert supervise("mkdir first && kill -KILL $$; exit 0", burst=True, processes=3) == 0
    assert len(begun()) == 4


@pytest.mark.parametrize("code", [2, 4, 77])
def test_a_process_that_can_never_start_stops_all_processes(supervise, caplog, code):
    assert supervise(f"mkdir first && exit {code}; {UNTIL_TOLD}", processes=3) == code
    assert f"exited with code {code}; it cannot start, so all processes stop" in caplog.text


@pytest.mark.parametrize("code", [2, 4, 77])
def test_a_successor_that_cannot_start_affects_only_the_exit_code(supervise, caplog, code):
    """The first three processes work. The first of these ends, and none of the later ones can start."""

    def meanwhile(_supervisor):
        until(lambda: len(begun()) >= 8)
        assert len(files("working")) == 2
        for pid in files("working"):
            os.kill(pid, 0)  # the others are still running
        tell()

    script = (
        f"trap 'exit {code}' TERM\n"  # the process that is starting when all are told to stop
        "mkdir one && { until [ -e three ]; do sleep 0.02; done; exit 0; }\n"
        f"if mkdir two || mkdir three; then trap - TERM; touch working-$$; {UNTIL_TOLD}; fi; exit {code}"
    )
    assert supervise(script, meanwhile, processes=3, recycles=True) == code
    assert caplog.text.count("could not be restarted, and another attempt will be made later; the others continue") == 1
    assert "so all processes stop" not in caplog.text


def test_a_process_that_can_start_again_does_not_affect_the_exit_code(supervise, monkeypatch):
    monkeypatch.setattr(supervisor, "SETTLED_AFTER", 0.3)

    def meanwhile(one):
        until(lambda: len(begun()) >= 4)
        until(lambda: one._children[0].process is not None and one._children[0].lived > 0.3)
        tell()

    script = f"mkdir one && exit 0; mkdir two && exit 4; mkdir three && exit 4; {UNTIL_TOLD}"
    assert supervise(script, meanwhile, processes=1, recycles=True) == 0


def test_a_successor_that_would_destroy_a_file_stops_all_processes(supervise):
    script = f"mkdir one && exit 1; mkdir two && exit 66; {UNTIL_TOLD}"
    assert supervise(script, processes=1) == 66
    assert len(begun()) == 2


def test_a_process_that_ran_twice_as_long_as_a_failed_start_counts_as_started(supervise):
    """It need not have lived for ten seconds, after which a process that ends is replaced immediately."""

    def meanwhile(one):
        (child,) = one._children
        until(lambda: len(begun()) == 3)
        until(lambda: child.process is not None and child.lived > 2 * child.refusal)
        tell()

    script = f"mkdir one && exit 0; mkdir two && exit 4; {UNTIL_TOLD}"
    assert supervise(script, meanwhile, processes=1, recycles=True) == 0


def test_processes_that_cannot_start_are_logged_at_intervals(supervise, monkeypatch, caplog):
    script = f"mkdir one || mkdir two || exit 4; touch working-$$; {UNTIL_TOLD}"

    def meanwhile(_supervisor):
        until(lambda: len(files("working")) == 2)
        for pid in files("working"):
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(begun()) >= 12)
        assert "are being retried:" not in caplog.text
        monkeypatch.setattr(supervisor, "REMIND_EVERY", 0.0)
        until(lambda: "are being retried: 1 (exit code 4), 2 (exit code 4); running processes: 0" in caplog.text)
        tell()

    assert supervise(script, meanwhile) == 4


def test_the_pause_grows_for_processes_that_cannot_start(supervise, monkeypatch):
    pauses = []
    monkeypatch.setattr(supervisor, "pause_after", lambda failures: pauses.append(failures) or 0.0)
    supervise("mkdir one && exit 0; exit 4", when_begun(6), processes=1, recycles=True)
    assert pauses[:5] == [0, 1, 2, 3, 4]


def test_a_burst_continues_without_a_process_that_can_no_longer_start(supervise, caplog):
    script = "mkdir one && until [ -e two ]; do sleep 0.02; done && kill -KILL $$; mkdir two && exit 0; exit 4"
    assert supervise(script, burst=True, processes=2) == 4
    assert "is not restarted; the others continue" in caplog.text


@pytest.mark.parametrize("code", [2, 4, 77])
def test_a_process_that_ran_long_enough_is_replaced_whatever_its_exit_code(supervise, monkeypatch, code):
    monkeypatch.setattr(supervisor, "SETTLED_AFTER", 0.0)
    assert supervise(f"mkdir first && exit {code}; {UNTIL_TOLD}", when_begun(3)) == 0


def test_a_database_never_reached_by_any_process_stops_all(supervise):
    assert supervise("exit 69", processes=3) == 69
    assert len(begun()) >= 3


def test_processes_are_retried_while_the_database_is_down(supervise):
    script = f"mkdir up && {{ {UNTIL_TOLD}; }}; mkdir one || mkdir two || mkdir three || {{ {UNTIL_TOLD}; }}; exit 69"
    assert supervise(script, when_begun(5)) == 0


def test_a_process_that_the_system_cannot_start_is_retried(supervise, monkeypatch, caplog):
    popen, calls = supervisor.subprocess.Popen, itertools.count()

    def sometimes(*arguments, **options):
        if next(calls) == 1:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return popen(*arguments, **options)

    monkeypatch.setattr(supervisor.subprocess, "Popen", sometimes)
    assert supervise(UNTIL_TOLD, when_begun(2)) == 0
    assert "worker process 2 could not be started: " in caplog.text


def test_a_process_for_which_no_thread_can_be_started_is_retried(supervise, monkeypatch, caplog):
    start, refused = threading.Thread.start, []

    def sometimes(thread):
        if thread.name == "outboxq-wait-2" and not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", sometimes)
    assert supervise(UNTIL_TOLD, lambda one: until(lambda: one._children[1].starts == 2) and when_begun(2)(one)) == 0
    assert "worker process 2 could not be started: can't start new thread" in caplog.text


def test_the_lifeline_ends_when_the_supervisor_does(supervise, monkeypatch):
    """The lifeline ends whatever happens to the supervisor. Here, the supervisor fails."""

    def fail(*_arguments, **_options):
        raise RuntimeError("broken")

    def meanwhile(one):
        listening(2)
        monkeypatch.setattr(one, "_forward", fail)
        tell()

    with pytest.raises(RuntimeError, match="broken"):
        supervise(listener(), meanwhile)
    until(lambda: len(files("gone")) == 2)


def test_an_ignored_sighup_stays_ignored(supervise):
    def meanwhile(_supervisor):
        until(lambda: len(begun()) == 2)
        tell(signal.SIGHUP)
        tell(signal.SIGTERM)

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert supervise(UNTIL_TOLD, meanwhile, traps="trap 'exit 9' HUP") == 0


# -- lifelines --------------------------------------------------------------------------------------------------------

LISTENER = """
import os, pathlib, signal, sys, time

def mark(name):
    pathlib.Path(f"{name}-{os.getpid()}").touch()

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, lambda *_: mark("signalled"))
lifeline = int(sys.argv[1])
os.write(lifeline, b"l")
mark("listening")

def heard():
    try:
        return os.read(lifeline, 1).decode()
    except ConnectionResetError:
        return ""

while word := heard():
    mark({"s": "stopping", "a": "abandoning"}[word])
    while word == "s" and not pathlib.Path("go").exists() and not pathlib.Path("hear").exists():
        time.sleep(0.01)
    if word == "a" or pathlib.Path("go").exists():
        sys.exit(word == "a")
mark("gone")
"""


def listener() -> str:
    """Return a script that listens to its lifeline. With the file `go`, it obeys "stop". With `hear`, it waits for the next word."""
    Path("listener.py").write_text(LISTENER)
    return f'exec "{sys.executable}" -S listener.py "$1"'


def listening(count: int) -> None:
    until(lambda: len(files("listening")) == count)


def stopping(count: int) -> None:
    until(lambda: len(files("stopping")) == count)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_process_that_listens_gets_orders_by_its_lifeline_instead_of_signals(supervise, number):
    def meanwhile(_supervisor):
        listening(2)
        tell(number)
        stopping(2)
        Path("go").touch()

    assert supervise(listener(), meanwhile) == 0
    assert files("signalled") == files("abandoning") == []


def test_a_second_signal_is_an_order_to_stop_immediately(supervise, monkeypatch, caplog):
    def meanwhile(_supervisor):
        listening(2)
        tell()
        stopping(2)
        tell(signal.SIGINT)

    monkeypatch.setattr("outboxq.worker.signals._ECHO", 0.0)
    Path("hear").touch()
    assert supervise(listener(), meanwhile) == 1
    assert files("abandoning") == begun()
    assert files("signalled") == []
    assert "passing on SIGINT, for an immediate stop" in caplog.text


def test_sigquit_is_an_order_to_stop_immediately(supervise):
    def meanwhile(_supervisor):
        listening(2)
        tell(signal.SIGQUIT)

    assert supervise(listener(), meanwhile) == 1
    assert files("abandoning") == begun()
    assert files("stopping") == files("signalled") == []


def test_signals_that_arrive_together_are_one_order_to_stop(supervise, monkeypatch, caplog):
    def meanwhile(one):
        listening(2)
        tell(signal.SIGTERM)
        stopping(2)
        tell(signal.SIGHUP)
        until(lambda: one._signals == [signal.SIGTERM, signal.SIGHUP])
        Path("go").touch()

    monkeypatch.setattr("outboxq.worker.signals._ECHO", 3600.0)
    assert supervise(listener(), meanwhile) == 0
    assert caplog.text.count("passing on") == 1
    assert files("abandoning") == files("signalled") == []


def test_a_signal_while_a_process_stops_for_a_reload_lets_its_tasks_finish(supervise, sent):
    def meanwhile(one):
        listening(1)
        one.reload()
        stopping(1)
        tell()
        until(lambda: one._signals)
        Path("go").touch()

    assert supervise(listener(), meanwhile, processes=1, reloads=True) == 0
    assert sent == []
    assert len(begun()) == 1


def test_the_death_of_a_process_does_not_close_the_lifeline_of_its_successor(supervise):
    def meanwhile(_supervisor):
        listening(2)
        os.kill(begun()[0], signal.SIGKILL)
        listening(3)
        tell()
        stopping(2)
        Path("go").touch()

    assert supervise(listener(), meanwhile) == 0
    assert files("signalled") == files("gone") == []


# -- reload -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sent(monkeypatch):
    """All signals that are sent to processes."""
    signals = []
    send = supervisor.subprocess.Popen.send_signal
    monkeypatch.setattr(
        supervisor.subprocess.Popen,
        "send_signal",
        lambda process, number: signals.append(number) or send(process, number),
    )
    return signals


def test_a_reload_replaces_a_process_when_it_has_stopped(supervise, caplog, sent):
    def meanwhile(one):
        until(lambda: len(begun()) == 1)
        one.reload()
        one.reload()
        Path("go").touch()
        until(lambda: len(begun()) == 2)
        assert sent == [signal.SIGTERM]  # a second signal would keep the worker from finishing its tasks
        tell()

    assert supervise(UNTIL_TOLD, meanwhile, processes=1, traps=STOPPING, reloads=True) == 0
    assert "exited with code 0; it will be started again" in caplog.text


def test_a_process_reloaded_while_starting_does_not_count_as_dead(supervise, caplog):
    def meanwhile(one):
        until(lambda: len(begun()) == 1)
        one.reload()
        until(lambda: len(begun()) == 2)
        tell()

    assert supervise(UNTIL_TOLD, meanwhile, processes=1, traps="trap - TERM", reloads=True) == 0
    assert "was stopped while it was starting; it will be started again" in caplog.text
    assert caplog.text.count("was killed by SIGTERM") == 1, "it was killed by the order to stop, and not by the reload"


@pytest.mark.parametrize("code", [1, 2, 4, 69])
def test_a_process_that_fails_after_a_reload_waits_for_the_next_reload(supervise, caplog, code):
    def meanwhile(one):
        until(Path("one").exists)
        one.reload()
        until(lambda: f"exited with code {code}; it will be started again when a file changes" in caplog.text)
        one.reload()
        until(lambda: len(begun()) == 3)
        tell()

    script = f"mkdir one && {{ {UNTIL_TOLD}; }}; mkdir two && exit {code}; {UNTIL_TOLD}"
    assert supervise(script, meanwhile, processes=1, reloads=True) == 0


@pytest.mark.parametrize("code", [2, 4, 69, 77])
def test_a_process_that_cannot_start_at_first_ends_a_reloading_supervisor(supervise, code):
    assert supervise(f"exit {code}", processes=1, reloads=True) == code


def test_a_stopping_supervisor_does_not_reload(supervise, sent):
    def meanwhile(one):
        until(lambda: len(begun()) == 1)
        tell()
        until(lambda: len(files("stopping")) == 1)
        one.reload()
        Path("go").touch()

    assert supervise(UNTIL_TOLD, meanwhile, processes=1, traps=STOPPING, reloads=True) == 0
    assert len(begun()) == 1
    assert sent == [signal.SIGTERM]
