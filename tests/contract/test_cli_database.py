"""Each command uses the database that it is given, and creates none if none is given."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from sqlalchemy.engine import make_url

from outboxq import Outbox, SchemaOutOfDate, migrations
from outboxq.cli import main
from outboxq.cli.database import Given
from outboxq.cli.framework import Frame, framed
from outboxq.database.engine import make_engine
from outboxq.store import Store

NOBODY = "01900000-0000-7000-8000-000000000000"
CANARY = "s3cr3t-canary"

TAKING_APP = [
    ("status",),
    ("task", "list"),
    ("task", "show", NOBODY),
    ("task", "explain", NOBODY),
    ("task", "cancel", NOBODY),
    ("task", "redrive", NOBODY),
    ("task", "run-now", NOBODY),
    ("task", "priority", NOBODY, "5"),
    ("failed", "list"),
    ("queue", "list"),
    ("queue", "pause", "mail"),
    ("queue", "resume", "mail"),
    ("queue", "limit", "mail", "--rate", "none"),
    ("queue", "order", "mail", "oldest"),
    ("prune", "--older-than", "1d", "--yes"),
    ("partition", "--dry-run"),
    ("verify",),
    ("grants", "somebody", "--role", "worker"),
]
TAKING_IDS = [("failed", "redrive", "--all"), ("failed", "discard", "--all")]
ALL = [*TAKING_APP, *TAKING_IDS, ("upgrade",), ("upgrade", "--sql")]
NOT_ON_SQLITE = {"partition", "grants"}


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """Change to an empty directory and remove outboxq's environment variables."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    for name in [name for name in os.environ if name.startswith("OUTBOXQ")]:
        monkeypatch.delenv(name)
    return place


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Return a function that writes the module `shop`. Its outbox has the given URL, or no database if the URL is None."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(url: str | None) -> None:
        (tmp_path / "shop.py").write_text(f"from outboxq import Outbox\n\noutbox = Outbox({url!r})\n")

    yield write
    sys.modules.pop("shop", None)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Create a file with outboxq's tables."""
    path = tmp_path_factory.mktemp("model") / "model.db"
    migrations.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def file(model, tmp_path):
    """Return the URL of a copy of that file."""
    path = tmp_path / "shop.db"
    shutil.copy(model, path)
    return f"sqlite:///{path}"


def outboxq(*arguments: str, **environment: str):
    return CliRunner().invoke(main, arguments, env=environment, catch_exceptions=False)


def sentence(result, code: int) -> str:
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    (line,) = result.stderr.splitlines()
    return line.removeprefix("outboxq: ")


# -- no database --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_a_command_without_a_database_reports_this_and_creates_none(directory, command):
    assert sentence(outboxq(*command), 2) == (
        "no database is given; give an application (module:outbox, e.g. shop:outbox) or --url, or set "
        "OUTBOXQ_APP or OUTBOXQ_DATABASE_URL"
    )
    assert list(directory.iterdir()) == []


def test_an_application_without_a_database_is_reported(directory, shop):
    shop(None)
    for command in (("status", "shop:outbox"), ("upgrade", "shop:outbox"), ("failed", "list", "-A", "shop:outbox")):
        said = sentence(outboxq(*command), 2)
        assert said.startswith("shop:outbox has no database: this outbox is not bound to a database: give Outbox()")
    assert list(directory.iterdir()) == []


# -- one database -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", TAKING_APP, ids=" ".join)
def test_a_command_accepts_its_application_as_its_last_argument_or_as_an_option(command, shop, file):
    shop(file)
    known = outboxq("queue", "limit", "mail", "--concurrency", "5", "--create", "--url", file)
    assert known.exit_code == 0, known.output
    outboxq(*command, "--url", file)  # a command that changes something reports it the first time only
    by_url = outboxq(*command, "--url", file)
    assert by_url.exit_code == (2 if command[0] in NOT_ON_SQLITE else 3 if NOBODY in command else 0), by_url.output
    ways = [outboxq(*command, "shop:outbox"), outboxq(*command, "--app", "shop"), outboxq(*command, OUTBOXQ_APP="shop")]
    for result in ways:
        assert (result.exit_code, result.stderr) == (by_url.exit_code, by_url.stderr)


@pytest.mark.parametrize("command", TAKING_IDS, ids=" ".join)
def test_a_command_with_ids_accepts_its_application_only_as_an_option(command, shop, file):
    shop(file)
    assert outboxq(*command, "-A", "shop:outbox").output == outboxq(*command, "--url", file).output
    assert "'shop:outbox' is not a task id" in outboxq(*command, "shop:outbox").stderr


def test_the_schema_is_chosen_by_the_application(cluster, tmp_path, shop):
    url = cluster.create_database()
    migrations.upgrade(url, schema="jobs")
    (tmp_path / "shop.py").write_text(f"from outboxq import Outbox\n\noutbox = Outbox({url!r}, schema='jobs')\n")
    assert outboxq("verify", "shop", OUTBOXQ_SCHEMA="ignored").exit_code == 0
    assert outboxq("verify", "shop", "--schema", "jobs").exit_code == 0
    assert sentence(outboxq("verify", "shop", "--schema", "other"), 2) == (
        "--schema applies only to --url; leave it out, because shop chooses its own schema"
    )
    cluster.drop_database(url)


@pytest.mark.parametrize("words", [["--watch"], ["--watch", "0.1"]], ids=" ".join)
def test_status_accepts_its_application_after_watch(words, shop, file, monkeypatch):
    def stop(_, seconds):
        told.append(seconds)
        return True

    told: list[float] = []
    monkeypatch.setattr("outboxq.cli.groups.Stop.wait", stop)
    shop(file)
    assert outboxq("status", *words, "shop:outbox").exit_code == 0
    assert told == [float((*words, 2.0)[1])]


# -- two databases --------------------------------------------------------------------------------------------------------


def test_arguments_override_the_environment_silently(shop, file, tmp_path):
    shop(file)
    other = f"sqlite:///{tmp_path / 'nosuch.db'}"
    for command, environment in (
        (["verify", "shop"], {"OUTBOXQ_DATABASE_URL": other}),
        (["verify", "shop"], {"OUTBOXQ_APP": "nosuch"}),
        (["verify", "-A", "shop"], {"OUTBOXQ_DATABASE_URL": other, "OUTBOXQ_APP": "nosuch"}),
        (["verify", "--url", file], {"OUTBOXQ_APP": "nosuch"}),
        (["verify", "--url", file], {"OUTBOXQ_DATABASE_URL": other}),
        (["upgrade", file], {"OUTBOXQ_APP": "nosuch", "OUTBOXQ_DATABASE_URL": other}),
    ):
        result = outboxq(*command, **environment)
        assert result.exit_code == 0, (command, result.output)


def test_two_databases_are_refused(shop, file, tmp_path):
    shop(file)
    other = f"sqlite:///{tmp_path / 'other.db'}"
    assert sentence(outboxq("verify", "shop", "--url", other), 2) == (
        "shop and --url name different databases; give only one of them"
    )
    assert sentence(outboxq("verify", OUTBOXQ_APP="shop", OUTBOXQ_DATABASE_URL=other), 2) == (
        "shop and OUTBOXQ_DATABASE_URL name different databases; give only one of them"
    )
    for twice in (["status", "shop", "--app", "other"], ["upgrade", "shop", "--app", "other"]):
        assert sentence(outboxq(*twice), 2) == "two applications are given, shop and other; give only one of them"
    assert sentence(outboxq("upgrade", file, "--app", "shop"), 2) == (
        "an application and a URL are given; give only one of them"
    )
    assert "two URLs are given" in sentence(outboxq("upgrade", file, "--url", other), 2)
    assert not Path(tmp_path / "other.db").exists()


def test_the_same_database_can_be_given_twice(shop, file):
    shop(file)
    assert outboxq("verify", "shop", "--url", file).exit_code == 0
    assert outboxq("verify", "shop", "--app", "shop").exit_code == 0
    assert outboxq("verify", OUTBOXQ_APP="shop", OUTBOXQ_DATABASE_URL=file).exit_code == 0


def test_the_url_option_supplies_the_database_of_an_unbound_application(shop, file):
    shop(None)
    assert outboxq("verify", "shop", "--url", file).exit_code == 0


def test_a_url_in_place_of_the_application_is_reported_but_not_printed():
    said = sentence(outboxq("status", f"postgresql://user:{CANARY}@host/shop"), 2)
    assert said.startswith("APP is the URL of a database; give it with --url; ")
    assert CANARY not in said


# -- missing files and tables ---------------------------------------------------------------------------------------------

LOOKING = [one for one in [*TAKING_APP, *TAKING_IDS] if one[0] != "grants"]


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_a_missing_file_is_reported_with_its_full_path_and_is_not_created(directory, command):
    assert sentence(outboxq(*command, "--url", "sqlite:///nosuch.db"), 4) == (
        f"there is no SQLite file {directory}/nosuch.db, and none was created; run: outboxq upgrade --url sqlite:///nosuch.db"
    )
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("command", [("status", "shop"), ("verify", "-A", "shop"), ("worker", "shop")], ids=" ".join)
def test_a_command_in_the_wrong_directory_prints_the_path_it_tried_and_a_cure(directory, shop, command, tmp_path):
    shop("sqlite:///shop.db")
    assert outboxq("upgrade", "shop").exit_code == 0
    assert (directory / "shop.db").exists()
    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    assert sentence(outboxq(*command), 4) == (
        f"there is no SQLite file {tmp_path}/elsewhere/shop.db, and none was created; run: outboxq upgrade shop"
    )
    assert list(Path.cwd().iterdir()) == []


def test_a_missing_directory_is_reported(directory):
    for command in (("status", "--url", "sqlite:///no/such.db"), ("upgrade", "sqlite:///no/such.db")):
        assert sentence(outboxq(*command), 69) == (
            f"the database cannot be used: the directory {directory}/no of the SQLite file {directory}/no/such.db does not exist"
        )


@pytest.mark.parametrize(
    "url", ["sqlite:///file:nosuch.db?uri=true", "sqlite+pysqlite:///./nosuch.db"], ids=["file:", "driver"]
)
def test_no_form_of_url_creates_a_missing_file(directory, url):
    assert f"there is no SQLite file {directory}/nosuch.db, " in sentence(outboxq("status", "--url", url), 4)
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("command", [("current",), ("current", "--check"), ("history",), ("sql",)], ids=" ".join)
def test_db_commands_do_not_create_a_missing_file(directory, command):
    said = outboxq("db", *command, "--url", "sqlite:///nosuch.db")
    assert said.exit_code == (4 if "--check" in command else 0)
    assert said.stdout
    assert list(directory.iterdir()) == []


def test_the_first_error_message_names_the_command_that_cures_it(shop, tmp_path):
    """The test runs a newcomer's first commands."""
    shop(f"sqlite:///{tmp_path / 'new.db'}")
    said = sentence(outboxq("worker", "shop:outbox", "--burst"), 4)
    command = said.rpartition("run: ")[2].split()
    assert command == ["outboxq", "upgrade", "shop:outbox"]
    assert outboxq(*command[1:]).exit_code == 0
    assert outboxq("verify", "shop:outbox").stderr == "every invariant holds\n"


@pytest.mark.parametrize(
    ("given", "typed"),
    [
        (Given(app="shop:outbox"), "outboxq upgrade shop:outbox"),
        (Given(app="shop:outbox", schema="jobs"), "outboxq upgrade shop:outbox"),
        (Given(app="shop", url="sqlite:///x.db"), "outboxq upgrade shop --url sqlite:///x.db"),
        (Given(url="sqlite:///a b.db"), "outboxq upgrade --url 'sqlite:///a b.db'"),
        (
            Given(url="postgresql://me@db/shop", schema="jobs"),
            "outboxq upgrade --schema jobs --url postgresql://me@db/shop",
        ),
        (Given(url=f"postgresql://me:{CANARY}@db/shop"), "outboxq upgrade --url … (the same address)"),
        (Given(url=f"postgresql://db/shop?password={CANARY}"), "outboxq upgrade --url … (the same address)"),
        (
            Given(
                url=f"postgresql://me:{CANARY}@db/shop",
                schema="jobs",
                from_environment=True,
                schema_from_environment=True,
            ),
            "outboxq upgrade (it also reads OUTBOXQ_DATABASE_URL)",
        ),
    ],
)
def test_the_upgrade_command_can_be_typed_as_shown_and_shows_no_password(given, typed):
    assert given.upgrade == typed


def test_a_password_is_masked_if_tables_are_missing(cluster):
    url = make_url(cluster.create_database())
    secret = url.set(password=CANARY)  # the server does not ask for a password
    said = sentence(outboxq("status", "--url", secret.render_as_string(hide_password=False), "--schema", "jobs"), 4)
    assert said.startswith(
        f"the PostgreSQL schema 'jobs' of the database {secret.render_as_string()} has no outboxq tables; "
    )
    assert ":***@" in said
    assert CANARY not in said
    cluster.drop_database(url.render_as_string(hide_password=False))


# -- applications without the command line --------------------------------------------------------------------------------


def test_a_worker_in_an_application_does_not_create_a_missing_file(directory):
    worker = Outbox("sqlite:///nosuch.db").worker()
    for start in (worker.start, Store(make_engine("sqlite:///nosuch.db")).ensure_current):
        with pytest.raises(SchemaOutOfDate) as refused:
            start()
        assert str(refused.value) == (
            f"there is no SQLite file {directory}/nosuch.db, and none was created; run: outboxq upgrade, with your application "
            "(module:outbox) or --url"
        )
    assert list(directory.iterdir()) == []
    worker.stop(0)


def test_the_error_of_an_application_can_be_pickled():
    error = pickle.loads(pickle.dumps(SchemaOutOfDate("no tables", remedy="run: this")))
    assert (str(error), error.fault, str(error.mended_by("that"))) == (
        "no tables; run: this",
        "no tables",
        "no tables; run: that",
    )
    older = SchemaOutOfDate("too new", remedy="run: pip", code_is_older=True)
    assert older.mended_by("that") is older


# -- the commands of a framework ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [["status"], ["queue", "pause"], ["failed", "redrive"]], ids=" ".join)
def test_commands_in_a_framework_have_no_options_for_the_database(path, file):
    group, context = main, click.Context(main)
    for name in path:
        group = group.get_command(context, name)
    engine = make_engine(file)
    ours = framed(group, Frame(program=lambda: "outboxq", store=lambda: Store(engine)))
    assert {one.name for one in group.params} - {one.name for one in ours.params} >= {"url", "schema", "app"}
    assert "APP" not in CliRunner().invoke(ours, ["--help"]).output
    words = {"pause": ["mail", "--create"], "redrive": ["--all", "--yes"]}.get(path[-1], [])
    assert CliRunner().invoke(ours, words, catch_exceptions=False).exit_code == 0
    engine.dispose()
