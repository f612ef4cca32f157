"""The page about Django, as a project: its files are written and its commands run, on both databases."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from django import VERSION as DJANGO
from sqlalchemy.engine import make_url

from tests import forked
from tests.forked import ROOT

pytestmark = pytest.mark.in_turn

PAGE = (ROOT / "docs" / "django.md").read_text()
FENCE = re.compile(r"^```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

SETTINGS = """
SECRET_KEY = "not a secret"
ROOT_URLCONF = "urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {databases}
INSTALLED_APPS = []
"""

URLS = """
from django.urls import path
from shop.views import place_order

urlpatterns = [path("orders/", place_order, name="place_order")]
"""

MANAGE = """
import importlib
import sys

import django
from django.core.management import execute_from_command_line

for line in sys.argv[1:]:
    print("$", line, flush=True)
    importlib.invalidate_caches()
    try:
        if line == "order":
            from django.test import Client

            given = {"email": "a@example.com", "cents": "5"}
            print(Client(SERVER_NAME="localhost").post("/orders/", given).json()["order"])
        else:
            execute_from_command_line(line.split()[1:])
    except SystemExit as ended:
        assert not ended.code, ended.code
"""


def databases(url: str) -> dict[str, object]:
    """Return the settings. `reports` is the same database, because its tasks are only declared."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        default = {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3", "TEST": {"NAME": "test.sqlite3"}}
    else:
        host = parsed.host or parsed.query.get("host", "")
        user, password = parsed.username or "", parsed.password or ""
        default = {"NAME": parsed.database, "USER": user, "PASSWORD": password, "HOST": host, "PORT": parsed.port or ""}
        default["ENGINE"] = "django.db.backends.postgresql"
    return {"default": default, "reports": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request, tmp_path) -> Path:
    """The project, with the page's files in it."""
    (tmp_path / "shop").mkdir()
    url = request.getfixturevalue(f"{request.param}_url")
    files = {
        "settings.py": SETTINGS.replace("{databases}", repr(databases(url))),
        "manage.py": MANAGE,
        "urls.py": URLS,
        "shop/__init__.py": "",
    }
    for name, source in modules():
        if "OPTIONS" not in source or request.param == "sqlite":
            files[name] = files.get(name, "") + source
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def modules() -> list[tuple[str, str]]:
    """Return the page's Python code by file. Code that names no file belongs to the tasks."""
    found = [source for language, source in FENCE.findall(PAGE) if language == "python"]
    named = [(source.partition("\n")[0].removeprefix("# "), source) for source in found]
    return [(name if name.endswith(".py") else "shop/tasks.py", source) for name, source in named]


def test_the_page_works_from_top_to_bottom(site):
    commands = [line for language, source in FENCE.findall(PAGE) if language == "sh" for line in source.splitlines()]
    migrate, worker, *others = commands
    lines = [
        "python manage.py makemigrations shop --skip-checks",
        migrate,
        "order",
        worker,
        *others,
        "python manage.py test --noinput",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "settings"}
    command, streams = [*forked.PYTHON, "manage.py", *lines], {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = forked.run(command, warm=forked.FRAMEWORKS, cwd=site, env=environment, **streams, text=True)
    assert done.returncode == 0, done.stdout
    _, _, migrated, ordered, worked, status, listed, failed, paused, resumed, pruned, tested = done.stdout.split("$ ")
    assert "outboxq.0001_initial... OK" in migrated
    assert ordered.endswith("1\n")
    for task in ("book", "send_receipt"):
        assert f"shop.tasks.{task}): task_completed" in worked
    assert [line.split("\t")[0] for line in status.splitlines()[1:]] == ["queue", "ledger", "mail"]
    assert "shop.tasks.send_receipt\tmail\tcompleted" in listed
    assert "failed\tid\ttask" in failed
    assert ["mail\t20" in said for said in (paused, resumed)] == [True, False]
    assert "0 tasks were deleted" in pruned
    assert "\nOK\n" in tested


def test_the_check_imports_the_tasks_as_a_worker_does(site):
    """The project's models do not import the tasks, and `reports` is a database without models."""
    with (site / "settings.py").open("a") as settings:
        settings.write("ROOT_URLCONF = None\n")  # the check of URLs would import the views, and thus the tasks
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "settings"}
    command = [*forked.PYTHON, "-m", "django", "check"]
    for line, said in (("", "outboxq.W003"), ("OUTBOXQ = {'SOURCE': 'no name'}\n", "outboxq.E001")):
        with (site / "settings.py").open("a") as settings:
            settings.write(line)
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = forked.run(command, warm=forked.FRAMEWORKS, cwd=site, env=environment, **streams, text=True)
        assert said in done.stdout, done.stdout
        assert "Traceback" not in done.stdout


def test_the_table_of_decorators_matches_their_behavior():
    """Each decorator is used without options, by a project in a separate process."""
    command = [*forked.PYTHON, str(Path(__file__).with_name("django_decorators.py"))]
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    environment["PYTHONPATH"] = str(ROOT)
    done = forked.run(command, warm=forked.FRAMEWORKS, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    passes_options = DJANGO[:2] != (6, 0)
    assert found["`retry`, `lease`, `timeout`, `transactional`"][1] == ("yes" if passes_options else "no")
    found["`retry`, `lease`, `timeout`, `transactional`"][1] = "yes; not on Django 6.0"
    _, _, section = PAGE.partition("## Which decorator\n")
    head, _, *rows = re.findall(r"^\|(.*)\|$", section.partition("\n## ")[0], re.MULTILINE)
    columns = [cell.strip() for cell in head.split("|")]
    assert columns == ["", "`outbox.task`", "`django.tasks.task`", "`outboxq.contrib.django.task`"]
    written = {name.strip(): [cell.strip() for cell in cells] for name, *cells in (row.split("|") for row in rows)}
    assert written == found


def test_the_page_lists_every_check():
    written = (ROOT / "outboxq" / "contrib" / "django" / "operations.py").read_text()
    ids = set(re.findall(r'"outboxq\.([EW]\d+)"', written))
    assert ids == set(re.findall(r"`(?:outboxq\.)?([EW]\d+)`", PAGE))
