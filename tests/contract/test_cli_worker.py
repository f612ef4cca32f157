"""`outboxq worker`: its options, its exit codes, and the processes that it keeps running."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from outboxq.cli import main
from outboxq.cli.serving.supervisor import Environment
from outboxq.database.engine import make_engine
from outboxq.migrations import upgrade
from outboxq.model import NewTask, TaskStatus
from outboxq.model.uuid7 import uuid7
from outboxq.store import Store
from outboxq.worker.options import Isolation
from tests import forked
from tests.terminal import shown
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.in_turn

APPLICATION = """
import logging
import os

from outboxq import Outbox

outbox = Outbox()


@outbox.task(name="tests.talk")
def talk() -> None:
    logging.getLogger("shop").info("talking")


@outbox.task(name="tests.pid")
def pid() -> int:
    return os.getpid()
"""

RECORDING = """
from outboxq import ConfigurationError, InvalidArgument, Outbox, SchemaOutOfDate


class Recording(Outbox):
    given = []
    error = None
    has_stopped = may_start_again = True

    def worker(self, **options):
        self.given.append(options)
        return self

    def run(self, *, burst):
        self.given.append({"burst": burst})
        if self.error is not None:
            raise self.error
        return 0


outbox = Recording("sqlite:///nosuch.db")
"""


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """Change to an empty directory and remove outboxq's environment variables."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OUTBOXQ")]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture
def recording(directory, monkeypatch):
    """The application `recording`, whose worker only records its arguments."""
    (directory / "recording.py").write_text(RECORDING)
    monkeypatch.syspath_prepend(str(directory))
    import recording

    yield recording
    del sys.modules["recording"]


def outboxq(*arguments: str, exit_code: int = 0, **environment: str):
    result = CliRunner().invoke(main, ["worker", *arguments], env=environment, catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


SUPERVISED = partial(forked.Popen, starts_others=True)


class Started:
    """The command in a separate process, next to a module `app`."""

    def __init__(self, *arguments: str, url: str, application: str = APPLICATION, popen: Any = SUPERVISED) -> None:
        Path("app.py").write_text(application)
        environment = {**os.environ, "OUTBOXQ_DATABASE_URL": url, "PYTHONWARNINGS": "error"}
        with Path("log").open("wb") as log:
            self.process = popen(
                [sys.executable, "-m", "outboxq", "worker", *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        return self.process.wait(seconds)

    def is_over(self) -> bool:
        """Wait until neither the process nor a child has its stdout open. Return whether they printed nothing."""
        return self.process.communicate(timeout=PATIENCE)[0] == b""

    def children(self) -> list[int]:
        """Return the pids of the processes that it reported as started."""
        return [int(pid) for pid in re.findall(r"worker process \d+ \(pid (\d+)\)(?: on \S+)? started", log())]

    def at_work(self, count: int) -> bool:
        assert self.process.poll() is None, log()
        return len(re.findall(r"outboxq\.worker worker .* started", log())) >= count


@contextmanager
def started(*arguments: str, **options: Any):
    """Start the command. None of its processes outlives the test."""
    one = Started(*arguments, **options)
    try:
        yield one
    finally:
        for pid in (one.process.pid, *one.children()):
            kill(pid)
        one.process.wait()
        one.process.stdout.close()


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def log() -> str:
    return Path("log").read_text()


# -- options ----------------------------------------------------------------------------------------------------------


def test_options_that_are_not_given_have_their_defaults(recording):
    outboxq("recording")
    assert recording.outbox.given == [
        {
            "queues": None,
            "topics": None,
            "relaxed_durability": False,
            "log_tracebacks": None,
            "relay": True,
            "handler_log": True,
            "concurrency": 8,
            "prefetch": None,
            "poll": None,
            "notifications": True,
            "metrics_port": None,
            "metrics_host": "127.0.0.1",
            "listen_url": None,
            "drain_timeout": timedelta(seconds=25),
            "timeout_grace": timedelta(seconds=30),
            "isolation": Isolation.THREAD,
            "tasks_per_child": 100,
            "max_tasks": None,
        },
        {"burst": False},
    ]


def test_each_option_reaches_the_worker(recording):
    options = "-q mail -q ledger -c 3 --prefetch 0 --poll 1s500ms --no-notifications --drain-timeout 2m --burst"
    options += " --timeout-grace 0.5s --isolation process --tasks-per-child 7"
    options += (
        " --topic order.* --topic user.new --relaxed-durability --log-tracebacks --metrics-port 9464 --metrics-host ::1"
        " --no-handler-log --no-relay"
    )
    outboxq("recording:outbox", *options.split(), "--max-tasks", "7", "--listen-url", "postgresql://direct/x")
    assert recording.outbox.given == [
        {
            "metrics_port": 9464,
            "metrics_host": "::1",
            "queues": ("mail", "ledger"),
            "topics": ("order.*", "user.new"),
            "relaxed_durability": True,
            "log_tracebacks": True,
            "relay": False,
            "handler_log": False,
            "concurrency": 3,
            "prefetch": 0,
            "poll": timedelta(milliseconds=1500),
            "notifications": False,
            "listen_url": "postgresql://direct/x",
            "drain_timeout": timedelta(minutes=2),
            "timeout_grace": timedelta(milliseconds=500),
            "isolation": Isolation.PROCESS,
            "tasks_per_child": 7,
            "max_tasks": 7,
        },
        {"burst": True},
    ]


def test_the_listen_url_can_be_given_by_the_environment(recording):
    outboxq("recording", OUTBOXQ_LISTEN_URL="postgresql://direct/x")
    assert recording.outbox.given[0]["listen_url"] == "postgresql://direct/x"


@pytest.mark.parametrize(
    "options",
    [
        "-c 0",
        "--prefetch -1",
        "--poll often",
        "--drain-timeout soon",
        "--isolation room",
        "--tasks-per-child 0",
        "--max-tasks 0",
        "--processes 0",
        "--log-level loud",
        "--log-format xml",
        "--reload --processes 2",
        "--reload --burst",
        "--burst --max-tasks 3 --processes 2",
        "--live --log-format json",
        "--database-url sqlite:///a.db --database-url sqlite:///b.db --reload",
        "--database-url sqlite:///a.db --database-url sqlite:///b.db --burst --max-tasks 3",
        "--database-url sqlite:///a.db --database-url sqlite:///b.db --listen-url postgresql://direct/x",
        "--database-url sqlite:///a.db --database-url sqlite+pysqlite:///a.db",
        "--database-url nonsense",
    ],
)
def test_an_option_that_makes_no_sense_is_refused(recording, options):
    outboxq("recording", *options.split(), exit_code=2)
    assert recording.outbox.given == []


@pytest.mark.parametrize(("name", "code"), [("InvalidArgument", 2), ("ConfigurationError", 2), ("SchemaOutOfDate", 4)])
def test_errors_that_a_restart_cannot_solve_have_distinct_exit_codes(recording, name, code):
    recording.outbox.error = getattr(recording, name)("no")
    assert outboxq("recording", exit_code=code).stderr == "outboxq: no\n"


@pytest.fixture
def supervised(monkeypatch):
    """Return the log's handler and the arguments of the supervisor, which runs nothing and returns 5."""
    made = []

    class Supervisor:
        has_ended = True

        def __init__(self, command, **options):
            made.append(options | {"command": command(9)})

        def reload(self): ...

        def run(self):
            return 5

    monkeypatch.setattr("outboxq.cli.serving.worker.Supervisor", Supervisor)
    monkeypatch.setattr("outboxq.cli.serving.worker.configure", lambda *given, **_: made.append(given[2]))
    return made


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ("--processes 3", {"processes": 3}),
        ("--processes 2 --burst", {"burst": True}),
        ("--processes 2 --max-tasks 9", {"recycles": True}),
        ("--processes 2 --live", {}),
        ("--reload", {"processes": 1, "reloads": True}),
    ],
)
def test_the_processes_are_given_the_same_options_and_a_lifeline(supervised, options, made):
    outboxq("app", *options.split(), "-q", "mail", exit_code=5, OUTBOXQ_LISTEN_URL="postgresql://secret")
    command = [sys.executable, "-m", "outboxq", "worker", "--lifeline", "9", "app", *options.split(), "-q", "mail"]
    usual = {"processes": 2, "burst": False, "recycles": False, "reloads": False, "command": command}
    usual["environments"] = [Environment()]
    assert supervised == [None, usual | made]  # no live line, because several processes would write it


def test_the_help_explains_each_exit_code():
    from outboxq.cli.console import EXIT_FILE, EXIT_KILLED, EXIT_PERMISSION, EXIT_SCHEMA, EXIT_UNREACHABLE, EXIT_USAGE

    told = outboxq("--help").stdout.split("Exit codes:\n")[1]
    codes = {int(line.split()[0]): line.split(maxsplit=1)[1] for line in told.splitlines()}
    assert set(codes) == {0, 1, EXIT_USAGE, EXIT_SCHEMA, EXIT_FILE, EXIT_UNREACHABLE, EXIT_KILLED, EXIT_PERMISSION}
    assert codes[0].startswith("the worker stopped cleanly")
    assert codes[1].startswith("running tasks were released, a thread died")
    assert codes[EXIT_USAGE].startswith("wrong usage")
    assert "tables" in codes[EXIT_SCHEMA]
    assert codes[EXIT_UNREACHABLE] == "the database cannot be reached, or its file is damaged"
    assert "--lifeline" not in told


def test_a_syntax_error_is_reported_with_file_and_line_but_no_traceback(directory, monkeypatch):
    (directory / "broken.py").write_text("import os\n\ndef send(:\n    pass\n")
    monkeypatch.syspath_prepend(str(directory))
    told = outboxq("broken", exit_code=2).stderr
    start = f"outboxq: {directory / 'broken.py'}, line 3: "
    assert told.startswith(start)
    assert told.endswith(": def send(:; correct this line, and start the command again\n")
    assert told.count("\n") == 1


def test_reload_without_watchfiles_is_reported_in_one_sentence(recording, monkeypatch):
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    told = outboxq("recording", "--reload", exit_code=2).stderr
    assert told == "outboxq: --reload needs watchfiles; run: pip install 'outboxq[reload]'\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize(("before", "code"), [(signal.SIG_DFL, 0), (signal.SIG_IGN, 7)], ids=["heard", "ignored"])
def test_a_signal_while_the_application_is_loaded_is_a_clean_stop(directory, monkeypatch, number, before, code):
    (directory / "slow.py").write_text(f"import os\n\nos.kill(os.getpid(), {int(number)})\nraise SystemExit(7)\n")
    monkeypatch.syspath_prepend(str(directory))
    first = signal.signal(number, before)
    try:
        assert outboxq("slow", exit_code=code).output == ""
        assert signal.getsignal(number) is before
    finally:
        signal.signal(number, first)


def test_a_caller_of_the_command_receives_signals_again_after_a_delay(recording, monkeypatch):
    heard = []
    first = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        outboxq("recording", "--burst")
        signal.raise_signal(signal.SIGTERM)
        assert heard == [], "this process might be about to exit"
        monkeypatch.setattr("outboxq.cli.serving.stop_requests._EXIT_TIMEOUT", -1.0)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert heard == [1, 1]
    finally:
        signal.signal(signal.SIGTERM, first)


# -- one process ------------------------------------------------------------------------------------------------------


def test_json_logs_have_separate_fields_for_the_task(sqlite):
    handle = sqlite.add(sqlite.store, task_name="tests.pid")
    with started("app", "--log-format", "json", "--max-tasks", "1", url=sqlite.url) as worker:
        assert worker.wait() == 0, log()
    records = [json.loads(line) for line in log().splitlines()]
    (record,) = [record for record in records if "task_id" in record]
    assert (record["task_id"], record["task"], record["attempt"]) == (str(handle.id), "tests.pid", 1)
    assert (record["level"], record["queue"]) == ("INFO", "default")
    assert record["duration_ms"] > 0


def test_lines_that_a_handler_logs_have_the_fields_of_its_task(sqlite):
    handle = sqlite.add(sqlite.store, task_name="tests.talk", queue="mail")
    with started("app", "--log-format", "json", "--max-tasks", "1", url=sqlite.url) as worker:
        assert worker.wait() == 0, log()
    records = [json.loads(line) for line in log().splitlines()]
    (own,) = [record for record in records if record["logger"] == "shop"]
    assert own.keys() == {"timestamp", "level", "logger", "message", "task_id", "task", "queue", "attempt"}
    assert (own["task_id"], own["task"], own["queue"]) == (str(handle.id), "tests.talk", "mail")
    outcomes = [record.get("outcome") for record in records if record.get("task_id") == str(handle.id)]
    assert outcomes == [None, "completed"]


# Sends the signals again at every line that runs after the work, in any module, until Python exits.
ASKED_AGAIN = (
    APPLICATION
    + """
import signal
import sys
import threading

from outboxq.worker.worker import Worker

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def ask(kill=os.kill, own=os.getpid(), numbers=SIGNALS):  # defaults: at the very end, modules are empty
    for number in numbers:
        kill(own, number)


def step(frame, what, _, ask=ask):
    if frame.f_code.co_name not in ("hear", "ask"):
        ask()


def asked_at_each_step(run):
    def traced(*arguments, **options):
        code = run(*arguments, **options)
        print("asking", file=sys.stderr, flush=True)
        frame = sys._getframe()
        while frame is not None:
            frame.f_trace = step
            frame = frame.f_back
        sys.settrace(step)
        return code

    return traced


def last():
    threading.main_thread().join()
    ask()
    print("asked last", file=sys.stderr, flush=True)


Worker.run = asked_at_each_step(Worker.run)
threading.Thread(target=last).start()
"""
)


def test_repeated_stop_signals_during_the_exit_change_nothing(sqlite):
    """The signals continue until the last moment of the process, while Python exits."""
    options = {"application": ASKED_AGAIN, "popen": subprocess.Popen}
    with started("app", "--burst", "-q", "mail", url=sqlite.url, **options) as worker:
        assert worker.wait() == 0, log()
    assert "asking\n" in log()
    assert "asked last\n" in log()
    assert "Traceback" not in log()


def test_on_a_terminal_one_line_is_rewritten_below_the_log(sqlite):
    Path("app.py").write_text(APPLICATION.replace("return", "until_seen(); return") + UNTIL_SEEN)
    sqlite.add(sqlite.store, task_name="tests.pid")
    command = [sys.executable, "-m", "outboxq", "worker", "app", "--burst"]
    code, printed = shown(command, env={**os.environ, "OUTBOXQ_DATABASE_URL": sqlite.url})
    assert code == 0, printed
    assert "\r\x1b[2K0 tasks/s · 0 handled · 1 running\r\x1b[2K" in printed
    for line in printed.split("\n"):
        assert re.fullmatch(r"(.*\r\x1b\[2K)?(\d{4}-[^\r]*)?", line), repr(line)


UNTIL_SEEN = """

def until_seen():
    '''The task runs until the line has told of it.'''
    import logging
    import time

    handler, *_ = logging.getLogger().handlers
    while "1 running" not in handler.terminator:
        time.sleep(0.01)
"""


# -- processes --------------------------------------------------------------------------------------------------------


def test_processes_share_the_work_are_replaced_when_they_die_and_stop_together(database):
    with started("app", "-c", "1", "--processes", "2", "--no-live", url=database.url) as worker:
        until(lambda: worker.at_work(2))
        os.kill(worker.children()[0], signal.SIGKILL)
        until(lambda: worker.at_work(3))
        handle = database.add(database.store, task_name="tests.pid")
        until(lambda: database.store.get(handle.id).status is TaskStatus.COMPLETED)
        assert int(database.store.get(handle.id).result) in worker.children()[1:]
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, log()
    assert "was killed by SIGKILL; it will be replaced in" in log()
    assert log().count("exited with code 0") == 2
    assert "Traceback" not in log()


def test_processes_whose_supervisor_is_killed_stop_by_themselves(sqlite):
    with started("app", "--processes", "2", url=sqlite.url) as worker:
        until(lambda: worker.at_work(2))
        worker.send(signal.SIGKILL)
        worker.wait()
        assert worker.is_over()
    assert log().count("the process that started this one has exited; stopping") == 2
    assert len(re.findall(r"worker .* stopped", log())) == 2


def test_a_burst_with_several_processes_runs_all_tasks_and_ends(sqlite):
    handle = sqlite.add(sqlite.store, task_name="tests.pid")
    with started("app", "--processes", "2", "--burst", url=sqlite.url) as worker:
        assert worker.wait() == 0, log()
    assert sqlite.store.get(handle.id).status is TaskStatus.COMPLETED
    assert log().count("it is done") == 2


def test_a_worker_with_closed_stderr_does_not_reuse_its_descriptor_for_a_connection(sqlite_url):
    Path("app.py").write_text(
        APPLICATION.replace("return os.getpid()", "return os.readlink('/proc/self/fd/2')").replace("-> int", "-> str")
    )
    engine = make_engine(sqlite_url)
    store = Store(engine)
    handle = store.enqueue(NewTask(id=uuid7(), task_name="tests.pid", args="{}"))
    command = f"exec {sys.executable} -m outboxq worker app --burst 2>&-"
    done = forked.run(["sh", "-c", command], env={**os.environ, "OUTBOXQ_DATABASE_URL": sqlite_url}, check=False)
    assert done.returncode == 0
    assert store.get(handle.id).result == '"/dev/null"'
    engine.dispose()


def test_a_missing_application_ends_all_processes(sqlite_url):
    with started("nosuch", "--processes", "2", url=sqlite_url) as worker:
        assert worker.wait() == 2, log()
    assert "there is no module 'nosuch'" in log()


# -- several databases --------------------------------------------------------------------------------------------------

OWN_ENGINE = """
import os

from sqlalchemy import create_engine

from outboxq import Outbox, configure_sqlite

engine = configure_sqlite(create_engine(os.environ["OUTBOXQ_DATABASE_URL"]))
outbox = Outbox(engine)


@outbox.task(name="tests.pid")
def pid() -> str:
    assert outbox.store.bound_engine is engine
    return engine.url.database
"""


def test_one_supervisor_serves_several_databases(sqlite, postgresql):
    both = (sqlite, postgresql)
    urls = [word for one in both for word in ("--database-url", one.url)]
    with started("app", "-c", "1", "--processes", "2", *urls, url="sqlite:///nosuch.db") as worker:
        until(lambda: worker.at_work(4))
        os.kill(worker.children()[0], signal.SIGKILL)
        until(lambda: worker.at_work(5))
        handles = [one.add(one.store, task_name="tests.pid") for one in both]
        for one, handle in zip(both, handles, strict=True):
            until(lambda o=one, h=handle: o.store.get(h.id).status is TaskStatus.COMPLETED)
        pids = worker.children()
        ran = [int(one.store.get(handle.id).result) for one, handle in zip(both, handles, strict=True)]
        assert ran[0] in {pids[1], pids[4]}  # the last process replaced the killed first one, with the same database
        assert ran[1] in pids[2:4]
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, log()
    assert f"on {sqlite.url} was killed by SIGKILL; it will be replaced in" in log()
    assert log().count("exited with code 0") == 4
    assert not Path("nosuch.db").exists()


def test_each_process_creates_its_engine_for_the_database_in_its_environment(sqlite, directory):
    other = directory / "other.db"
    upgrade(f"sqlite:///{other}")
    store = Store(make_engine(f"sqlite:///{other}"))
    handles = [sqlite.add(sqlite.store, task_name="tests.pid"), sqlite.add(store, task_name="tests.pid")]
    os.environ["OUTBOXQ_DATABASE_URLS"] = f"{sqlite.url} sqlite:///{other}"
    try:
        with started("app", "--burst", url="", application=OWN_ENGINE) as worker:
            assert worker.wait() == 0, log()
    finally:
        del os.environ["OUTBOXQ_DATABASE_URLS"]
    ran = [sqlite.store.get(handles[0].id).result, store.get(handles[1].id).result]
    assert [json.loads(path) for path in ran] == [sqlite.url.removeprefix("sqlite:///"), str(other)]
    assert log().count("it is done") == 2
    store.bound_engine.dispose()


def test_an_unreachable_database_does_not_delay_the_others_and_its_password_is_not_logged(sqlite):
    away = "postgresql://somebody:secret@127.0.0.1:1/away"
    handle = sqlite.add(sqlite.store, task_name="tests.pid")
    with started("app", "--database-url", away, "--database-url", sqlite.url, url="") as worker:
        until(lambda: sqlite.store.get(handle.id).status is TaskStatus.COMPLETED)
        until(lambda: "on postgresql://somebody:***@127.0.0.1:1/away exited with code 69" in log())
        worker.send(signal.SIGTERM)
        worker.wait()
    assert "secret" not in log()


def test_a_single_database_is_served_by_the_process_itself(recording):
    outboxq("recording", "--database-url", "sqlite:///given.db")
    assert recording.outbox.store.bound_engine.url.database == "given.db"
    assert os.environ.pop("OUTBOXQ_DATABASE_URL") == "sqlite:///given.db"


# -- reload -----------------------------------------------------------------------------------------------------------


def test_a_changed_file_restarts_the_worker(sqlite):
    def results():
        return [sqlite.store.get(handle.id).result for handle in handles]

    handles = []
    with started("app", "--reload", url=sqlite.url) as worker:
        until(lambda: worker.at_work(1))

        def changed():  # the command does not report when it starts to watch the files
            Path("app.py").write_text(APPLICATION.replace("os.getpid()", "1234567") + f"# {os.urandom(4).hex()}\n")
            return "it will be started again" in log()

        until(changed, every=0.2)
        handles.append(sqlite.add(sqlite.store, task_name="tests.pid"))
        until(lambda: results() == ["1234567"])
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, log()
    assert "app.py changed" in log()
    assert "Traceback" not in log()
