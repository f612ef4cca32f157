"""TestCase and TransactionTestCase of Django, each in a process of its own, for settings are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests import forked

pytestmark = pytest.mark.in_turn

ENGINES = {"sqlite": "sqlite3", "postgresql": "postgresql"}


def test_djangos_test_classes(database):
    """On SQLite in memory, as Django's tests are by default."""
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
