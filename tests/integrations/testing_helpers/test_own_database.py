"""A harness that commits, without a test's transaction, is refused on a developer's own database."""

from __future__ import annotations

import os
import sys
import unittest
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from outboxq import ConfigurationError, Outbox
from outboxq.testing import OutboxTests
from outboxq.testing.unittest_case import refuse_own_database
from tests import forked

SERVER = "postgresql+psycopg://shop:secret@db.example:5432"
APPLICATION = """
from outboxq import Outbox
outbox = Outbox("sqlite:///shop.db")

@outbox.task(name="shop.hello")
def hello() -> None: ...
"""
TEST = """
from shop import hello, outbox

def test_hello(harness):
    hello.using(outbox).enqueue()
    assert len(harness.drain()) == 1
"""


@pytest.mark.parametrize(
    "url",
    [
        f"{SERVER}/shop",
        f"{SERVER}/contest",
        f"{SERVER}/latest_shop",
        "sqlite:////srv/shop/shop.db",
        "sqlite:////srv/test/shop.db",
        "sqlite:///shop.db",
        "postgresql+psycopg://?service=shop",
    ],
)
def test_a_database_that_does_not_look_like_a_test_database_is_refused(url):
    with pytest.raises(
        ConfigurationError,
        match=r"^without the test's transaction, .* return the test's open transaction from outboxq_using",
    ):
        refuse_own_database(Outbox(url))


@pytest.mark.parametrize(
    "url",
    [
        f"{SERVER}/test_shop",
        f"{SERVER}/shop_test",
        f"{SERVER}/shop-tests-gw1",
        f"{SERVER}/test",
        "sqlite:////srv/shop/test.db",
        "sqlite:///shop_test.sqlite3",
    ],
)
def test_a_test_database_is_recognized_by_its_name(url):
    refuse_own_database(Outbox(url))


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file::memory:?uri=true"])
def test_an_in_memory_database_is_a_test_database(url):
    refuse_own_database(Outbox(create_engine(url)))


def test_a_temporary_file_is_a_test_database(tmp_path):
    refuse_own_database(Outbox(f"sqlite:///{tmp_path}/shop.db"))


@pytest.mark.parametrize(
    ("url", "allowed"),
    [(f"{SERVER}/shop_ci", "shop_ci"), (f"{SERVER}/shop_ci_3", "shop_ci_*"), ("sqlite:////srv/shop/ci.db", "ci.db")],
)
def test_a_database_is_allowed_by_its_name(url, allowed):
    with pytest.raises(ConfigurationError):
        refuse_own_database(Outbox(url))
    refuse_own_database(Outbox(url), allowed=allowed)
    with pytest.raises(ConfigurationError):
        refuse_own_database(Outbox(url), allowed="shop")


def test_the_message_names_the_database_without_its_password_and_the_line_to_write():
    with pytest.raises(ConfigurationError) as raised:
        refuse_own_database(Outbox(f"{SERVER}/shop"))
    assert "commits to the database postgresql+psycopg://shop:***@db.example:5432/shop," in str(raised.value)
    assert str(raised.value).endswith("write outboxq_test_database = shop")


@pytest.mark.parametrize(
    ("line", "passes"),
    [("", False), ("outboxq_test_database = shop.db", True)],
)
def test_a_run_with_only_the_application_does_not_touch_its_database(tmp_path, line, passes):
    """A database in the directory for temporary files would be allowed, so TMPDIR names another directory."""
    project, temporary = tmp_path / "project", tmp_path / "temporary"
    for directory in (project, temporary):
        directory.mkdir()
    (project / "shop.py").write_text(APPLICATION)
    (project / "test_shop.py").write_text(TEST)
    (project / "pytest.ini").write_text(f"[pytest]\npythonpath = .\noutboxq_app = shop:outbox\n{line}\n")
    outbox = Outbox(f"sqlite:///{project}/shop.db")
    outbox.upgrade()
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTEST_ADDOPTS": ""}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error::pytest.PytestWarning"]
    done = forked.run(words, warm=forked.FRAMEWORKS, cwd=project, env=environment, capture_output=True, text=True)
    assert (done.returncode == 0) is passes, done.stdout
    assert ("1 passed" if passes else f"write outboxq_test_database = {project}/shop.db") in done.stdout
    assert len(outbox.store.tasks()) == passes
    outbox.store.bound_engine.dispose()


def test_a_unittest_case_is_refused_too(monkeypatch):
    class Case(OutboxTests, unittest.TestCase):
        outboxq_app = Outbox("sqlite:////srv/shop/shop.db")

        def test_nothing(self) -> None: ...

    def said() -> str:
        result = unittest.TestResult()
        Case("test_nothing").run(result)
        [(_, text)] = result.errors
        return text

    assert "write outboxq_test_database = /srv/shop/shop.db" in said()
    monkeypatch.setattr(Case, "outboxq_test_database", "shop.db")
    assert "write outboxq_test_database" not in said(), "the error is then the missing directory"


def test_a_django_database_is_not_refused():
    class OfDjango:
        alias = "default"

    outbox = Outbox("sqlite:////srv/shop/shop.db")
    outbox.integration = OfDjango()
    refuse_own_database(outbox)


def test_the_message_contains_the_absolute_path_of_the_sqlite_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "other"))
    with pytest.raises(
        ConfigurationError, match=rf"the SQLite file .*shop\.db.* = {Path(tmp_path).resolve()}/shop\.db$"
    ):
        refuse_own_database(Outbox("sqlite:///shop.db"))
