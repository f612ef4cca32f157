"""An installation without psycopg: SQLite works, and PostgreSQL fails with a clear message."""

from __future__ import annotations

import sys
import textwrap
import types
from pathlib import Path

import pytest

from outboxq import ConfigurationError
from outboxq.database import drivers
from outboxq.database.drivers import ensure_psycopg
from tests import forked

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

REFUSING = """
import sys

class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("psycopg", "psycopg_binary", "psycopg_pool"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuses())
"""


@pytest.fixture
def without(tmp_path):
    """Run a script in a process that cannot import psycopg, and return its output."""

    def run(script):
        done = forked.run(
            [sys.executable, "-W", "error", "-c", REFUSING + textwrap.dedent(script)],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
            warm=forked.PACKAGES,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_sqlite_works_completely_without_psycopg(without):
    said = without(
        """
        from click.testing import CliRunner
        from sqlalchemy import create_engine
        from sqlalchemy.orm import Session

        import outboxq
        import outboxq.testing
        from outboxq.cli import main

        outbox = outboxq.Outbox("sqlite:///shop.db")
        outbox.upgrade()
        task = outbox.task(name="shop.hello")(lambda n: n + 1)
        with Session(outboxq.configure_sqlite(create_engine("sqlite:///shop.db"))) as session, session.begin():
            handle = task.using(session).enqueue(1)
        outbox.worker().run(burst=True)
        print(outbox.store.get(handle.id).result, outbox.store.verify())
        print(CliRunner().invoke(main, ["verify", "--url", "sqlite:///shop.db"]).output)
        print([name for name in sys.modules if name.startswith("psycopg")])
        """
    )
    assert said.split("\n") == ["2 []", "every invariant holds", "", "[]", ""]


def test_every_use_of_postgresql_reports_what_to_install(without):
    said = without(
        """
        from sqlalchemy import create_engine

        import outboxq
        from outboxq import migrations

        url = "postgresql://user@host/shop"
        raw = type("Raw", (), {})()
        psycopg2 = type("module", (), {"Error": Exception, "paramstyle": "pyformat", "__version__": "2.9"})
        engine = create_engine("postgresql+psycopg2://", module=psycopg2, creator=lambda: raw, _initialize=False)

        def using():
            with engine.connect() as connection:
                outbox = outboxq.Outbox("sqlite:///shop.db")
                outbox.task(name="shop.hello")(lambda: None).using(connection).enqueue()

        def ways():
            yield lambda: outboxq.Outbox(url).store.get("00000000-0000-0000-0000-000000000000")
            yield lambda: outboxq.Outbox(url).upgrade()
            yield lambda: migrations.upgrade("postgresql+psycopg://user@host/shop")
            yield lambda: migrations.sql(url)
            yield using

        for way in ways():
            try:
                way()
            except Exception as error:
                print(type(error).__name__, error)
        """
    ).splitlines()
    sentence = "for PostgreSQL, outboxq uses psycopg 3, which is not installed; run: pip install 'outboxq[postgresql]'"
    assert said[:-1] == [f"ConfigurationError {sentence}"] * 4
    assert said[-1].startswith("InvalidTarget outboxq writes with psycopg 3 or sqlite3, not with psycopg2")


def test_a_command_reports_it_in_one_line(without):
    said = without(
        """
        from click.testing import CliRunner
        from outboxq.cli import main
        done = CliRunner().invoke(main, ["verify", "--url", "postgresql://user@host/shop"])
        print(done.exit_code, done.output)
        """
    )
    assert said.strip().count("\n") == 0
    assert "pip install 'outboxq[postgresql]'" in said
    assert not said.startswith("0 ")


@pytest.mark.parametrize("found", ["3.1.20", "3.2.4"])
def test_a_version_of_psycopg_that_is_too_old_is_refused(monkeypatch, found):
    monkeypatch.setattr(drivers, "version", lambda _: found)
    with pytest.raises(
        ConfigurationError, match=rf"psycopg 3\.2\.5 or later, but {found} is installed.*outboxq\[postg"
    ):
        ensure_psycopg()


@pytest.mark.parametrize("found", ["3.2.5", "3.3.0", "4.0.0", "3.2.10", "3.3.0.dev1"])
def test_a_later_version_of_psycopg_is_accepted(monkeypatch, found):
    monkeypatch.setattr(drivers, "version", lambda _: found)
    ensure_psycopg()


def test_the_error_for_psycopg_without_libpq_names_the_cause(monkeypatch):
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "psycopg":
                raise ImportError("no pq wrapper available.\nAttempts made: …")

    monkeypatch.delitem(sys.modules, "psycopg")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ConfigurationError, match=r"cannot be imported \(no pq wrapper available\.\); run: pip install"):
        ensure_psycopg()


def test_a_module_that_is_still_being_imported_has_no_connections(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", types.ModuleType("psycopg"))
    assert not drivers.is_psycopg(object())
    assert not drivers.is_async_psycopg(object())


@pytest.mark.parametrize(
    ("driver", "advice"),
    [
        ("psycopg2", "create the engine with postgresql+psycopg://"),
        ("asyncpg", "a separate engine: create_async_engine('postgresql+psycopg://…')"),
        ("aiosqlite", "a synchronous engine: create_engine('sqlite:///…')"),
    ],
)
def test_the_advice_for_another_driver_says_what_to_do(driver, advice):
    assert f"not with {driver}" in drivers.advice(driver)
    assert advice in drivers.advice(driver)


def test_migrate_refuses_django_with_psycopg2(without):
    said = without(
        """
        import types

        import django
        from django.conf import settings
        from django.core.management.base import CommandError

        settings.configure()
        django.setup()

        from outboxq.contrib.django import operations

        migration = operations.reaching("0001", before="base")
        try:
            migration.code(None, types.SimpleNamespace(connection=types.SimpleNamespace(vendor="postgresql", alias="default")))
        except CommandError as error:
            print(error)
        """
    )
    assert (
        said
        == "for PostgreSQL, outboxq uses psycopg 3, which is not installed; run: pip install 'outboxq[postgresql]'\n"
    )


def test_a_command_for_an_application_without_psycopg_says_what_to_install(without):
    said = without(
        """
        from pathlib import Path

        from click.testing import CliRunner

        from outboxq.cli import main

        Path("shop.py").write_text(
            "from sqlalchemy import create_engine\\n"
            "from outboxq import Outbox\\n"
            "outbox = Outbox(create_engine('postgresql+psycopg://user@127.0.0.1/shop'))\\n"
        )
        for command in ("status", "worker", "upgrade"):
            done = CliRunner().invoke(main, [command, "shop:outbox"])
            print(done.exit_code, done.output, end="")
        """
    )
    sentence = "for PostgreSQL, outboxq uses psycopg 3, which is not installed; run: pip install 'outboxq[postgresql]'"
    assert said == "".join(f"{code} outboxq: {sentence}\n" for code in (2, 2, 2))
