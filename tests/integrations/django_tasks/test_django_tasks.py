"""Django's own test runner runs the cases in `site/parity`, in a separate project on each database."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests import forked, postgres

pytestmark = pytest.mark.in_turn

SITE = Path(__file__).parent / "site"


@pytest.fixture(params=["sqlite", "postgresql"])
def django_database(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, object]:
    """The entry DATABASES["default"]. Django creates its test database."""
    if request.param == "sqlite":
        pragmas = "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF"
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(tmp_path / "shop.db"),
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": pragmas},
            "TEST": {"NAME": str(tmp_path / "test.db")},
        }
    cluster: postgres.Cluster = request.getfixturevalue("cluster")
    url = make_url(cluster.create_database())
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.database,
        "TEST": {"NAME": f"{url.database}_test"},
        "HOST": url.host or url.query.get("host"),
        "PORT": url.port or url.query.get("port", ""),
        "USER": url.username,
        "PASSWORD": url.password or "",
    }


def run(database: dict[str, object], *arguments: str) -> str:
    """Run a program in the project, and return its output."""
    environment = os.environ | {
        "TASKS_DATABASE": json.dumps(database),
        "DJANGO_SETTINGS_MODULE": "settings",
        "PYTHONPATH": os.pathsep.join([str(SITE), str(Path.cwd())]),
    }
    command = [*forked.PYTHON, *arguments]
    done = forked.run(command, warm=forked.FRAMEWORKS, env=environment, cwd=SITE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr + done.stdout


def test_cases_of_django_and_of_outboxq_pass(django_database: dict[str, object]) -> None:
    said = run(django_database, "-m", "django", "test", "parity", "--pattern", "cases_*.py", "--noinput")
    ran = re.search(r"Ran (\d+) tests.*\n\nOK\n", said)
    assert ran is not None, said
    assert int(ran[1]) >= 60  # no case was overlooked
    assert "skipped" not in said


def test_a_worker_process_runs_what_another_process_enqueued(django_database: dict[str, object]) -> None:
    """The worker has imported only the `tasks.py` of the apps. It finds `elsewhere.jobs` by the task's name."""
    said = run(django_database, str(SITE / "two_processes.py"))
    assert json.loads(said.splitlines()[-1]) == [42, 1, 2, "from a module that is no app"]
