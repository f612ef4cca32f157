"""The code of docs/testing.md: each block is a file, which pytest, unittest or Django's test runner runs on both databases."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests import forked

pytestmark = pytest.mark.in_turn

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^```(?:python|ini)\n# (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EMBEDDED = '"sqlite:///test_kiosk.db"'
ASYNCHRONOUS = '"postgresql+psycopg://user@host/database"'

PYTEST = ("pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")

BARE = """
import sqlalchemy
from kiosk import checkout, engine


def test_what_a_test_without_the_harness_writes_is_rolled_back(connection):
    checkout(70)
    assert connection.scalar(sqlalchemy.text("SELECT count(*) FROM orders")) == 1
    connection.rollback()
    with engine.connect() as other:
        assert other.scalar(sqlalchemy.text("SELECT count(*) FROM orders")) == 0
"""

TASKS = """
from outboxq.contrib.django import outbox, outboxes

@outbox.task
def send_receipt(order_id: int) -> str:
    return f"receipt {order_id}"

@outboxes["billing"].task
def send_invoice(order_id: int) -> str:
    return f"invoice {order_id}"
"""

BILLING = """
from django.test import TestCase

from orders.tasks import send_invoice
from outboxq.contrib.django import outboxes
from outboxq.testing import OutboxTests


class InvoiceTest(OutboxTests, TestCase):
    databases = {"default", "billing"}
    outboxq_app = outboxes["billing"]

    def test_an_invoice_is_sent(self):
        send_invoice.enqueue(7)
        self.assertEqual([ran.result for ran in self.harness.drain()], ["invoice 7"])
"""

SETTINGS = """
DATABASES = {name: {"ENGINE": "django.db.backends.sqlite3"} for name in ("default", "billing")}
INSTALLED_APPS = ["outboxq.contrib.django", "orders"]
USE_TZ = True
"""


def files_of(page: str) -> dict[str, str]:
    return {found[1]: found[2] for found in FENCE.finditer((DOCS / page).read_text())}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name, source in (files_of("testing.md") | {"app.py": files_of("flask.md")["app.py"]}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(source)
    return root


def run(project: Path, *command: str) -> str:
    environment = {**os.environ, "NO_COLOR": "1", "PYTEST_ADDOPTS": ""}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    words = [*forked.PYTHON, "-m", *command]
    done = forked.run(words, warm=forked.FRAMEWORKS, cwd=project, env=environment, **streams, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_tests_of_an_application_pass(project, database):
    assert all(EMBEDDED in (project / name).read_text() for name in ("conftest.py", "cases.py"))
    if database.name == "postgresql":
        url = make_url(database.url).render_as_string(hide_password=False)
        for name in ("conftest.py", "cases.py"):
            (project / name).write_text((project / name).read_text().replace(EMBEDDED, repr(url)))
    (project / "test_bare.py").write_text(BARE)
    told = run(project, *PYTEST, "-W", "error", "test_kiosk.py", "test_commits.py", "test_async.py", "test_bare.py")
    assert "9 passed" in told, told
    assert "Ran 1 test" in run(project, "unittest", "cases")
    again = run(project, *PYTEST, "-W", "error", "test_commits.py", "test_async.py")  # in the same database
    assert "2 passed" in again, again
    if database.name == "postgresql":
        assert database.counts()[0] == 8  # the tasks that the committing tests left behind
        asynchronous = project / "test_async_session.py"
        text = asynchronous.read_text()
        assert ASYNCHRONOUS in text
        asynchronous.write_text(text.replace(ASYNCHRONOUS, repr(url)))
        told = run(project, *PYTEST, "-W", "error", "test_async_session.py")
        assert "2 passed" in told, told
        database.run("DROP TABLE orders")
    assert not (project / "kiosk.db").exists(), "the tests have used the development database"


def test_the_tests_of_a_django_project_pass(project):
    """The test database is in memory. (On both databases: tests/integrations/testing_helpers/test_django_classes.py.)"""
    orders = project / "orders"
    (orders / "__init__.py").touch()
    (orders / "tasks.py").write_text(TASKS)
    (orders / "test_billing.py").write_text(BILLING)
    (project / "settings.py").write_text(SETTINGS)
    assert "Ran 2 tests" in run(
        project, "django", "test", "--settings", "settings", "orders.tests", "orders.test_billing"
    )
    (project / "conftest.py").unlink()
    (project / "pytest.ini").write_text(
        "[pytest]\nDJANGO_SETTINGS_MODULE = settings\nfilterwarnings = error\npythonpath = .\n"
    )
    assert "3 passed" in run(project, *PYTEST, "orders/test_receipts.py", "orders/test_invoices.py")


@pytest.mark.current  # the page's model_class is from Flask-SQLAlchemy 3.1, which requires SQLAlchemy 2.0.16
@pytest.mark.parametrize("plugin", [(), ("-p", "no:flask")], ids=["pytest-flask", "without"])
def test_the_tests_of_a_flask_application_pass(project, plugin):
    """The tests use a SQLite file, as the page says. They name neither the outbox nor the application."""
    (project / "conftest.py").unlink()
    (project / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\npythonpath = .\n")
    assert "2 passed" in run(project, *PYTEST, *plugin, "test_web.py")


SCHEDULED = """
import pytest
from app import outbox
from on_postgresql import app


@outbox.periodic(every=30)
@outbox.task(name="shop.tick")
def tick() -> None: ...


@pytest.mark.parametrize("time", [1, 2])
def test_ticks(app, harness, time):
    assert len(harness.advance(95)) == 3
"""


@pytest.mark.current  # as the test above
def test_each_test_on_postgresql_has_a_separate_database_with_its_schedules(project, postgresql):
    (project / "conftest.py").unlink()
    (project / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\npythonpath = .\n")
    fixture, address = (project / "on_postgresql.py").read_text(), '"postgresql+psycopg://user@host/postgres"'
    assert address in fixture
    url = make_url(postgresql.url).render_as_string(hide_password=False)
    (project / "on_postgresql.py").write_text(fixture.replace(address, repr(url)))
    (project / "test_ticks.py").write_text(SCHEDULED)
    assert "2 passed" in run(project, *PYTEST, "test_ticks.py")


ORDERS = """
from test_web import app, book


def check(client, harness):
    for cents, status, tasks in (("995", 200, 2), ("99500", 409, 0), ("995", 200, 2)):
        assert client.post("/orders", data={"cents": cents}).status_code == status
        assert len(harness.drain()) == tasks


def test_client_first(client, harness):
    check(client, harness)


def test_harness_first(harness, client):
    check(client, harness)
"""


@pytest.mark.current  # as the test above
def test_the_client_of_pytest_flask_and_the_harness_work_in_either_order(project):
    (project / "conftest.py").unlink()
    (project / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\npythonpath = .\n")
    (project / "test_orders.py").write_text(ORDERS)
    assert "2 passed" in (told := run(project, *PYTEST, "-p", "no:django", "test_orders.py")), told
    assert "error" not in told
