"""The command line: its effects, its exit codes, and values that it never prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from outboxq import migrations
from outboxq.cli import main
from outboxq.database.engine import make_engine
from outboxq.database.revisions import OLDEST_SCHEMA, REVISION
from outboxq.database.tables import VERSION_TABLE
from outboxq.model import EventType, Outcome, TaskStatus
from outboxq.store import Store
from tests import forked
from tests.contract.helpers import LATER, called, everything, types
from tests.reuse import OTHERS
from tests.terminal import shown
from tests.waiting import until

ROOT = Path(__file__).parents[2]
CANARY = "s3cr3t-canary"
NOBODY = "01900000-0000-7000-8000-000000000000"

APPLICATION = """
from outboxq import Outbox

outbox = Outbox()
something_else = 1


@outbox.task(name="tests.greet")
def greet(name: str) -> str:
    return f"hello {name}"
"""


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """Change to an empty directory and remove outboxq's environment variables."""
    monkeypatch.chdir(tmp_path)
    for name in ("OUTBOXQ_DATABASE_URL", "OUTBOXQ_SCHEMA", "OUTBOXQ_APP"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def importable(directory, monkeypatch):
    """Make a module `app` importable in this process too."""
    (directory / "app.py").write_text(APPLICATION)
    monkeypatch.syspath_prepend(str(directory))
    yield
    sys.modules.pop("app", None)


@dataclass
class Empty:
    """A database without outboxq's tables."""

    name: str
    url: str

    @property
    def called(self) -> str:
        """Return how messages name it."""
        return called(self.url)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request, tmp_path):
    if request.param == "sqlite":
        (tmp_path / "empty.db").touch()
        yield Empty("sqlite", f"sqlite:///{tmp_path / 'empty.db'}")
        return
    cluster = request.getfixturevalue("cluster")
    url = cluster.create_database()
    yield Empty("postgresql", url)
    cluster.drop_database(url)


def outboxq(*arguments: object, url: str | None = None, exit_code: int = 0) -> Result:
    """Run the command in this process. As in a separate process, its errors have no traceback."""
    environment = {} if url is None else {"OUTBOXQ_DATABASE_URL": url}
    result = CliRunner().invoke(main, [str(one) for one in arguments], env=environment, catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def sentence(result: Result) -> str:
    """Return the only line on stderr. Nothing may be on stdout."""
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("outboxq: ")
    return line


@contextmanager
def process(*arguments: str, url: str | None = None, application: str = APPLICATION):
    """Run the command in a separate process, next to a module `app`. The process does not outlive the test."""
    Path("app.py").write_text(application)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOXQ")}
    if url is not None:
        environment["OUTBOXQ_DATABASE_URL"] = url
    command = [sys.executable, "-W", "error", "-m", "outboxq", *arguments]
    with (
        Path("log").open("wb") as log,
        forked.Popen(command, env=environment, stdout=log, stderr=log, starts_others=True) as running,
    ):
        try:
            yield running
        finally:
            running.kill()


def log() -> str:
    return Path("log").read_text()


def failed(database, **fields: object):
    """Create a dead letter that failed now, by the database's clock."""
    handle = database.add(database.store, **fields)
    (claim,) = database.claim(store=database.store)
    assert claim.id == handle.id
    database.store.finish([Outcome(claim=claim, event_type=EventType.FAILED, error="RuntimeError: no")])
    return handle.id


def completed(database, **fields: object):
    handle = database.add(database.store, **fields)
    (claim,) = database.claim(store=database.store)
    database.store.finish([Outcome(claim=claim, event_type=EventType.COMPLETED, result='"the result"')])
    return handle.id


# -- upgrade ----------------------------------------------------------------------------------------------------------


def test_upgrade_accepts_the_url_as_an_argument_or_from_the_environment(empty):
    for command, url in ((["upgrade", empty.url], None), (["upgrade"], empty.url)):
        assert outboxq(*command, url=url).stderr == f"the schema of {empty.called} is now {REVISION}\n"
    assert migrations.current(empty.url) == REVISION


def test_upgrade_also_accepts_the_url_as_an_option(empty):
    assert outboxq("upgrade", "--url", empty.url).stderr == f"the schema of {empty.called} is now {REVISION}\n"


@pytest.mark.parametrize("place", [["app"], ["--app", "app:outbox"]], ids=" ".join)
def test_upgrade_creates_tables_at_the_given_url_for_an_application_without_a_url(place, importable, empty):
    said = outboxq("upgrade", *place, "--url", empty.url).stderr
    assert said == f"the schema of {empty.called} is now {REVISION}; 0 subscriptions are declared\n"
    assert migrations.current(empty.url) == REVISION


def test_upgrade_creates_the_given_schema_and_other_commands_use_it(cluster):
    url = cluster.create_database()
    outboxq("upgrade", "--schema", "tasks", url=url)
    assert migrations.current(url) is None
    assert migrations.current(url, schema="tasks") == REVISION
    outboxq("verify", "--schema", "tasks", url=url)
    assert "run: outboxq upgrade" in sentence(outboxq("verify", url=url, exit_code=4))
    cluster.drop_database(url)


def test_upgrade_refuses_a_schema_on_sqlite(sqlite_url):
    assert "schema" in sentence(outboxq("upgrade", "--schema", "tasks", url=sqlite_url, exit_code=2))


def test_upgrade_prints_the_script_and_changes_nothing(empty, directory):
    printed = outboxq("upgrade", "--sql", empty.url)
    assert "CREATE TABLE task_executions" in printed.stdout
    assert printed.stderr == ""
    if empty.name == "postgresql":
        assert migrations.current(empty.url) is None
    else:
        assert (directory / "empty.db").stat().st_size == 0


# -- worker -----------------------------------------------------------------------------------------------------------


@pytest.mark.in_turn
def test_a_worker_runs_tasks_until_it_is_told_to_stop(database):
    handle = database.add(database.store, task_name="tests.greet", args='{"name": "world"}')
    with process("worker", "app:outbox", url=database.url) as worker:
        until(lambda: database.store.get(handle.id).status is TaskStatus.COMPLETED)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0, log()
    assert database.store.get(handle.id).result == '"hello world"'
    assert "Traceback" not in log()
    assert "started" in log()
    assert "stopped" in log()
    assert "world" not in log()


def test_a_worker_of_one_queue_leaves_the_others_alone(sqlite):
    other = sqlite.add(sqlite.store, task_name="tests.greet", args='{"name": "x"}', queue="other", priority=9)
    mine = sqlite.add(sqlite.store, task_name="tests.greet", args='{"name": "x"}', queue="mine")
    with process("worker", "app", "-q", "mine", "-q", "empty", "-c", "1", url=sqlite.url) as worker:
        until(lambda: sqlite.store.get(mine.id).status is TaskStatus.COMPLETED)
        worker.send_signal(signal.SIGINT)
        assert worker.wait(60) == 0, log()
    assert types(sqlite, other.id) == ["task_created"]


def test_a_worker_of_an_outbox_without_a_database_is_refused(importable):
    assert sentence(outboxq("worker", "app:outbox", exit_code=2)) == (
        "outboxq: app:outbox has no database: give Outbox() a URL or an Engine, set OUTBOXQ_DATABASE_URL, or give "
        "--database-url"
    )


def test_a_worker_takes_its_application_from_the_environment(importable, sqlite_url, monkeypatch):
    assert "no application is named; name one as module:outbox" in sentence(
        outboxq("worker", url=sqlite_url, exit_code=2)
    )
    monkeypatch.setenv("OUTBOXQ_APP", "nosuch")
    assert "no module 'nosuch'" in sentence(outboxq("worker", url=sqlite_url, exit_code=2))
    assert "no module 'other'" in sentence(outboxq("worker", "other", url=sqlite_url, exit_code=2))
    assert "no module 'another'" in sentence(outboxq("worker", "--app", "another", url=sqlite_url, exit_code=2))
    assert "two applications are given" in sentence(outboxq("worker", "a", "--app", "b", url=sqlite_url, exit_code=2))


@pytest.mark.parametrize(
    ("app", "words"),
    [
        ("nosuch:outbox", "there is no module 'nosuch'"),
        ("app.inner:outbox", "there is no module 'app.inner'"),
        ("app:nosuch", "app has no Outbox called 'nosuch'; did you mean 'outbox'?"),
        ("app:something_else", "app has no Outbox called 'something_else'; did you mean 'outbox'?"),
        (":outbox", "'' is not the name of a module"),
        (".app:outbox", "'.app' is not the name of a module"),
        ("app/main.py", "'app/main.py' is not the name of a module"),
    ],
)
def test_a_missing_application_is_reported_in_one_sentence(app, words, importable, sqlite_url):
    line = sentence(outboxq("worker", app, url=sqlite_url, exit_code=2))
    assert words in line
    assert ("write APP as module:outbox" in line) == ("did you mean" not in line)


def test_an_import_that_fails_inside_the_application_keeps_its_traceback(sqlite_url):
    with process("worker", "app:outbox", url=sqlite_url, application="import nosuch\n") as worker:
        assert worker.wait(60) == 1
    assert "Traceback" in log()
    assert log().splitlines()[-1] == "ModuleNotFoundError: No module named 'nosuch'"


@pytest.mark.parametrize("missing", ["ap", "app_"])
def test_a_missing_module_with_a_similar_name_is_not_mistaken_for_the_application(missing, importable, sqlite_url):
    Path("app.py").write_text(f"import {missing}\n")
    said = outboxq("worker", "app:outbox", url=sqlite_url, exit_code=1).stderr
    assert said.splitlines()[-1] == f"ModuleNotFoundError: No module named '{missing}'"


@pytest.mark.parametrize("option", [("--log-level", "loud"), ("--drain-timeout", "soon"), ("-c", "0")])
def test_an_option_that_makes_no_sense_is_refused(option):
    outboxq("worker", "app", *option, exit_code=2)


# -- unusable databases -----------------------------------------------------------------------------------------------

ASKING = [
    ("status",),
    ("task", "show", NOBODY),
    ("task", "cancel", NOBODY),
    ("task", "redrive", NOBODY),
    ("failed", "redrive", "--all"),
    ("queue", "pause", "mail"),
    ("prune", "--older-than", "1d"),
    ("verify",),
]
ALL = [*ASKING, ("demo",), ("upgrade",)]

TOO = "(it also reads OUTBOXQ_DATABASE_URL)"


@pytest.mark.parametrize("command", [*ASKING, ("demo",)], ids=" ".join)
def test_a_database_without_outboxq_tables_is_refused(empty, command):
    said = sentence(outboxq(*command, url=empty.url, exit_code=4))
    assert (
        said
        == f"outboxq: {empty.called} has no outboxq tables; this release needs {REVISION}; run: outboxq upgrade {TOO}"
    )


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0000", f"schema 0000; this release needs {OLDEST_SCHEMA} or later; run: outboxq upgrade {TOO}"),
        (
            "9999",
            (
                f"schema 9999, which supports only releases that know schema 9999 or later; this release knows schema {REVISION}; "
                "run: pip install --upgrade outboxq"
            ),
        ),
    ],
)
def test_an_incompatible_schema_is_refused(database, version, said):
    pretend(database, version, oldest_code=version)
    for command in (*ASKING, ("demo",)):
        refused = sentence(outboxq(*command, url=database.url, exit_code=4))
        assert refused == f"outboxq: {called(database.url)} has the outboxq {said}"
    pretend(database, REVISION, oldest_code="0001")


def test_a_later_schema_that_supports_this_release_can_be_used(database):
    pretend(database, LATER, oldest_code="0001")
    for command in (("status",), ("task", "list"), ("verify",)):
        outboxq(*command, url=database.url)
    said = outboxq("upgrade", database.url).stderr
    assert (
        said
        == f"the schema {LATER} was created by a later release but also works with this one, which knows {REVISION}; nothing was changed\n"
    )
    pretend(database, REVISION, oldest_code="0001")


def pretend(database, version, *, oldest_code):
    database.run(f"UPDATE {VERSION_TABLE} SET version_num = '{version}', oldest_code = '{oldest_code}'")


@pytest.mark.in_turn
def test_a_worker_refuses_a_database_without_outboxq_tables(empty):
    with process("worker", "app:outbox", url=empty.url) as worker:
        assert worker.wait(60) == 4
    assert log() == (
        f"outboxq: {empty.called} has no outboxq tables; this release needs {REVISION}; run: outboxq upgrade app:outbox\n"
    )


@pytest.mark.parametrize("command", ALL, ids=" ".join)
@pytest.mark.parametrize(
    "url", [f"postgresql://user:{CANARY}@127.0.0.1:1/database", "sqlite:////nosuch/x.db"], ids=["pg", "file"]
)
def test_an_unreachable_database_is_reported_in_one_sentence(command, url):
    at_once = ("--wait-for-server", "0s") if command[0] == "upgrade" else ()
    said = sentence(outboxq(*command, *at_once, url=url, exit_code=69))
    assert said.startswith("outboxq: the database cannot be used: ")
    assert CANARY not in said


def test_a_worker_without_its_database_does_not_start():
    with process("worker", "app:outbox", url=f"postgresql://user:{CANARY}@127.0.0.1:1/database") as worker:
        assert worker.wait(60) == 69
    assert "the database cannot be used: " in log()
    assert CANARY not in log()


def test_a_database_that_does_not_exist_is_unreachable(postgresql_url):
    outboxq("status", url=postgresql_url + "_not", exit_code=69)


WRONG_URLS = {
    "no url": (f"host=x password={CANARY}", 2),
    "another database": (f"mysql://user:{CANARY}@host/database", 2),
    "another driver": (f"postgresql+psycopg2://user:{CANARY}@host/database", 2),
    "no driver": (f"postgresql+nonsense://user:{CANARY}@host/database", 2),
    "in memory": ("sqlite://", 2),
    "a port that is none": (f"postgresql://user:{CANARY}@host:port/database", 2),
    "a port too high": (f"postgresql://user:{CANARY}@127.0.0.1:99999/database", 69),
    "password as an option": (f"postgresql://127.0.0.1:1/database?password={CANARY}", 69),
    "an unknown option": (f"postgresql://user:{CANARY}@127.0.0.1:1/database?what=x", 69),
    "an option's value": (f"postgresql://user:{CANARY}@127.0.0.1:1/database?connect_timeout=x", 69),
    "an at sign in the password": (f"postgresql://user:pass@{CANARY}@127.0.0.1:1/database", 2),
}


@pytest.mark.parametrize("wrong", WRONG_URLS)
def test_no_error_prints_the_password(wrong):
    url, code = WRONG_URLS[wrong]
    for command in (("upgrade", url, "--wait-for-server", "0s"), ("status", "--url", url), ("demo", "--url", url)):
        result = CliRunner().invoke(main, command, catch_exceptions=True)
        assert CANARY not in result.output
        assert CANARY not in repr(result.exception)
        assert result.exit_code == code, result.output
        assert CANARY not in sentence(result)


@pytest.mark.parametrize("url", [f"host=x password={CANARY}", f"postgresql://user:{CANARY}@host:port/database"])
def test_upgrade_refuses_to_print_a_script_for_an_invalid_url(url):
    assert CANARY not in sentence(outboxq("upgrade", "--sql", url, exit_code=2))


def test_the_script_for_a_database_with_a_password_does_not_show_it():
    assert CANARY not in outboxq("upgrade", "--sql", f"postgresql://user:{CANARY}@host/database").output


# -- reading ----------------------------------------------------------------------------------------------------------


def cells(result: Result) -> list[list[str]]:
    return [line.split("\t") for line in result.stdout.splitlines()]


def test_the_url_option_overrides_the_environment(database):
    database.add(database.store, queue="mail")
    assert len(cells(outboxq("status", "--url", database.url, url="sqlite:////nosuch/x.db"))) == 2


def test_show_prints_a_task_and_its_history_but_no_arguments(database):
    task_id = completed(database, args='{"card": "a canary"}')
    seen = outboxq("task", "show", task_id, url=database.url)
    assert ["status", "Completed"] in cells(seen)
    assert [row[1] for row in cells(seen)[-3:]] == ["task_created", "task_claimed", "task_completed"]
    assert "a canary" not in seen.output
    assert "the result" not in seen.output

    told = outboxq("task", "show", "--show-args", task_id, url=database.url)
    assert ["arguments", '{"card": "a canary"}'] in cells(told)
    assert ["result", '"the result"'] in cells(told)


HOSTILE = "\x1b[31mred\x1b]0;title\x07\ttab\nline\r\u202eright-to-left\x9b2J"


@pytest.mark.in_turn
@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_text_from_the_database_cannot_control_the_terminal(database, terminal):
    handle = database.add(database.store, task_name=HOSTILE, queue=f"[red]:smile:{HOSTILE}", args='{"a": "\x1b"}')
    for command in (("status",), ("task", "show", "--show-args", str(handle.id))):
        if terminal:
            program = [sys.executable, "-m", "outboxq", *command, "--url", database.url]
            code, printed = shown(program, env={**os.environ, "TERM": "dumb"}, columns=400)
            assert code == 0, printed
            assert "\t" not in printed
        else:
            printed = outboxq(*command, url=database.url).stdout
        assert not set("\x1b\x07\r\u202e\x9b") & set(printed)
        assert "[red]:smile:\\x1b[31mred\\x1b]0;title\\x07\\ttab\\nline" in printed
    database.run("UPDATE task_executions SET args = '{}'")  # JSON cannot contain this control character


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert outboxq("--version").stdout.strip().endswith(version("outboxq"))


# -- changing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["show", "cancel", "redrive"])
def test_a_nonexistent_task_is_reported_in_one_sentence(database, action):
    said = sentence(outboxq("task", action, NOBODY, url=database.url, exit_code=3))
    assert said == f"outboxq: there is no task {NOBODY}; its transaction may not have been committed yet"


@pytest.mark.parametrize("action", ["show", "cancel", "redrive"])
def test_an_invalid_id_is_a_usage_error(action):
    assert "not-an-id" in outboxq("task", action, "not-an-id", exit_code=2).stderr


def test_cancel_ends_a_waiting_task_and_keeps_the_reason(database, monkeypatch):
    monkeypatch.setenv("OUTBOXQ_OPERATOR", "ann")
    handle = database.add(database.store)
    assert (
        outboxq("task", "cancel", handle.id, "--reason", "gone", url=database.url).stdout
        == f"task {handle.id} was cancelled\n"
    )
    assert database.store.get(handle.id).status is TaskStatus.CANCELLED
    assert database.store.history(handle.id)[-1].event_data["reason"] == "gone (by ann on the command line)"


def test_cancel_asks_a_running_task_to_stop_or_ends_it_by_force(database):
    handle = database.add(database.store)
    database.claim(store=database.store)
    assert outboxq("task", "cancel", handle.id, url=database.url).stdout.endswith(
        "was asked to stop, and will run until the handler ends\n"
    )
    assert database.store.get(handle.id).cancel_requested_at is not None
    assert (
        outboxq("task", "cancel", handle.id, "--force", url=database.url).stdout == f"task {handle.id} was cancelled\n"
    )
    assert database.store.get(handle.id).status is TaskStatus.CANCELLED


def test_redrive_runs_a_dead_letter_again_and_nothing_else(database):
    task_id = failed(database)
    assert outboxq("task", "redrive", task_id, url=database.url).stdout.endswith(
        "was redriven from the first attempt, due now\n"
    )
    assert database.store.get(task_id).status is TaskStatus.READY
    assert "is Ready and cannot be redriven" in sentence(
        outboxq("task", "redrive", task_id, url=database.url, exit_code=1)
    )


def test_a_completed_task_cannot_be_cancelled(database):
    task_id = completed(database)
    assert "is Completed and cannot be" in sentence(outboxq("task", "cancel", task_id, url=database.url, exit_code=1))


@pytest.mark.parametrize(("options", "deleted"), [((), 3), (("--failed",), 5)])
def test_a_dry_run_counts_the_tasks_that_prune_deletes(database, options, deleted):
    for _ in range(3):
        completed(database)
    for _ in range(2):
        failed(database)
    database.add(database.store)
    before = everything(database)
    command = ("prune", "--older-than", "0d", *options)
    told = outboxq(*command, "--dry-run", url=database.url).stdout
    assert f": {deleted} would be deleted\n" in told
    assert told.count("  tests.work  ") == deleted  # the first few tasks are listed
    assert everything(database) == before
    assert "--yes" in outboxq(*command, url=database.url, exit_code=2).stderr
    assert everything(database) == before
    assert outboxq(*command, "--yes", url=database.url).stdout == f"{deleted} tasks were deleted with their events\n"
    assert database.counts()[0] == 6 - deleted
    assert ": 0 would be deleted" in outboxq(*command, "--dry-run", url=database.url).stdout


def test_prune_keeps_younger_tasks(database):
    completed(database)
    for span in ("1d", "7d12h", "30m", "3600s", "1d2h3m4s", "60.5s", "1m0.25s500ms"):
        assert outboxq("prune", "--yes", "--older-than", span, url=database.url).stdout.startswith("0 tasks")
    assert database.counts()[0] == 1


BAD_SPANS = ["", "90", "d", "-1d", "1w", "1.5d", "1.s", ".5s", "0.1234567s", "1h1d", "99999999999999d", "3000000d"]


@pytest.mark.parametrize("span", [*BAD_SPANS, pytest.param("9" * 5000 + "d", id="5000-digits")])
def test_an_invalid_time_span_is_refused_before_anything_is_deleted(sqlite, span):
    completed(sqlite)
    outboxq("prune", "--yes", f"--older-than={span}", url=sqlite.url, exit_code=2)
    assert sqlite.counts()[0] == 1


def test_prune_requires_an_age(sqlite_url):
    assert "--older-than" in outboxq("prune", "--yes", url=sqlite_url, exit_code=2).stderr


def test_verify_reports_that_every_invariant_holds(database):
    database.add(database.store)
    result = outboxq("verify", url=database.url)
    assert (result.stdout, result.stderr) == ("", "every invariant holds\n")


def test_verify_reports_a_missing_outbox_entry_and_repairs_it(database):
    handle = database.add(database.store)
    database.run("DELETE FROM task_outbox")
    told = outboxq("verify", url=database.url, exit_code=1).stdout
    assert told.startswith("1 × ready_without_entry: ")
    assert str(handle.id) in told
    assert "repaired" not in told
    assert outboxq("verify", "--repair", url=database.url, exit_code=1).stdout.rstrip().endswith("; repaired 1")
    outboxq("verify", url=database.url)
    assert [claim.id for claim in database.claim(store=database.store)] == [handle.id]


def test_the_module_can_be_run_as_a_program(sqlite_url):
    command: Sequence[str] = [sys.executable, "-m", "outboxq", "verify", "--url", sqlite_url]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_commands_leave_no_connection_open(postgresql):
    for command in (("status",), ("verify",), ("upgrade",)):
        outboxq(*command, url=postgresql.url)
    until(lambda: postgresql.rows(f"SELECT count(*) FROM pg_stat_activity WHERE {OTHERS}") == [(0,)])


def test_the_schema_option_selects_the_schema_of_a_command(cluster):
    url = cluster.create_database()
    migrations.upgrade(url, schema="tasks")
    engine = make_engine(url)
    assert Store(engine, schema="tasks").verify() == []
    engine.dispose()
    assert len(cells(outboxq("status", "--schema", "tasks", url=url))) == 1
    cluster.drop_database(url)
