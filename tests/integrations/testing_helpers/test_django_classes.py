"""Django's TestCase and TransactionTestCase, in separate processes, because Django's settings are global to a process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests import forked

pytestmark = pytest.mark.in_turn

ENGINES = {"sqlite": "sqlite3", "postgresql": "postgresql"}


def test_the_test_classes_of_django_work(database):
    """On SQLite, the test database is in memory, as by default in Django."""
    url = make_url(database.url)
    settings = {"ENGINE": f"django.db.backends.{ENGINES[database.name]}", "NAME": url.database}
    if database.name == "postgresql":
        settings |= {
            "HOST": url.host or url.query["host"],
            "PORT": url.port,
            "USER": url.username,
            "PASSWORD": url.password,
        }
    command = [*forked.PYTHON, str(Path(__file__).with_name("django_child.py")), json.dumps(settings)]
    done = forked.run(command, warm=forked.FRAMEWORKS, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "15 run\n"), done.stdout + done.stderr
