"""The start of a worker by each front end: a stop signal during the import of the application, and the first log line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outboxq import migrations
from tests import forked

FLASK = """
import os, signal
from flask import Flask
from outboxq.contrib.flask import Outboxq

outbox = Outboxq()
{signalled}

def create_app():
    app = Flask("shop")
    app.config["OUTBOXQ_DATABASE_URL"] = "sqlite:///shop.db"
    outbox.init_app(app)
    return app
"""
DJANGO = """
SECRET_KEY = "tests"
INSTALLED_APPS = ["outboxq.contrib.django", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}}
"""
PLAIN = """
import os, signal
from outboxq import Outbox

outbox = Outbox("sqlite:///shop.db")
{signalled}
"""
WORKERS = {
    "flask": ["flask", "--app", "shop", "outboxq", "worker"],
    "django": ["django", "outboxq", "worker"],
    "none": ["outboxq", "worker", "shop:outbox"],
}


pytestmark = pytest.mark.slow


@pytest.fixture(params=WORKERS)
def front_end(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return request.param


def run(front_end, words, *, number=None):
    """Run a command of `python -m`. With `number`, a new interpreter is used, and the application sends this signal to
    its own process during its import.
    """
    signalled = "" if number is None else f"os.kill(os.getpid(), {int(number)}); os._exit(7)"
    source = {"flask": FLASK, "none": PLAIN}.get(front_end, "import os, signal\n{signalled}\n")
    Path("shop.py").write_text(source.format(signalled=signalled))
    Path("settings.py").write_text(DJANGO)
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": os.pathsep.join([".", *sys.path])}
    command = [sys.executable, "-m", *words]
    if number is None:
        return forked.run(command, warm=forked.FRAMEWORKS, capture_output=True, text=True, env=environment)
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


def test_a_worker_stops_cleanly_while_its_application_is_imported(front_end):
    done = run(front_end, WORKERS[front_end], number=signal.SIGTERM)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words",
    [["flask", "--app=shop", "outboxq", "workers", "list"], ["flask", "--app", "shop", "routes"]],
)
def test_a_signal_ends_another_flask_command(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("flask", words, number=signal.SIGTERM).returncode == -signal.SIGTERM


def test_each_front_end_logs_that_its_worker_has_started(front_end):
    if "django" in front_end:
        run(front_end, ["django", "migrate"])
    else:
        migrations.upgrade("sqlite:///shop.db")
    done = run(front_end, [*WORKERS[front_end], "--burst"])
    assert done.returncode == 0, done.stderr
    assert re.search(r"worker \S+ \([0-9a-f-]{36}\) started on the SQLite file .*shop\.db: all queues, ", done.stderr)
