"""A Django project that runs in separate processes, because its settings are global to a process."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from tests import forked
from tests.forked import ROOT

PROJECT = Path(__file__).parent / "project"


def django_database(url: str) -> dict[str, Any]:
    """Return the entry in DATABASES for a URL."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        options = {"transaction_mode": "IMMEDIATE", "timeout": 30, "init_command": "PRAGMA journal_mode=WAL;"}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": parsed.database, "OPTIONS": options}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parsed.database,
        "USER": parsed.username or "",
        "PASSWORD": parsed.password or "",
        "HOST": parsed.host or parsed.query.get("host", ""),
        "PORT": parsed.port or parsed.query.get("port", ""),
    }


class Project:
    """The project's commands, run on one database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = make_url(url).get_backend_name()
        self.databases = {"default": django_database(url), "other": django_database("sqlite:///:memory:")}
        self.settings: dict[str, Any] = {}

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "SHOP_DATABASES": json.dumps(self.databases),
            "SHOP_SETTINGS": json.dumps(self.settings),
            "DJANGO_SETTINGS_MODULE": "project_settings",
            "PYTHONPATH": os.pathsep.join([str(PROJECT), str(ROOT)]),
            "PYTHONWARNINGS": "error",
        }
        return {**os.environ, **own}

    def start(self, *arguments: str, stdout: Any) -> forked.Popen:
        """Start Python with these arguments. Its output and its errors go to `stdout`."""
        command, streams = [*forked.PYTHON, *arguments], {"stdout": stdout, "stderr": subprocess.STDOUT, "text": True}
        starts_others = "--processes" in arguments
        options = {"warm": forked.FRAMEWORKS, "starts_others": starts_others, "cwd": PROJECT, "env": self.environment}
        return forked.Popen(command, **options, **streams)

    def python(self, *arguments: str, fails: int = 0, seconds: float = 240) -> str:
        """Run Python with these arguments; return its output and its errors."""
        with self.start(*arguments, stdout=subprocess.PIPE) as process:
            said, _ = process.communicate(timeout=seconds)
        assert process.returncode == fails, said
        return str(said)

    def manage(self, *arguments: str, fails: int = 0) -> str:
        return self.python("manage.py", *arguments, fails=fails)


@pytest.fixture(params=["sqlite", "postgresql"])
def project(request: pytest.FixtureRequest) -> Project:
    return Project(request.getfixturevalue(f"{request.param}_url"))
