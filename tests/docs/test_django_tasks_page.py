"""docs/django-tasks.md: its files become a Django project, and its blocks run in the project, on both databases."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests import forked
from tests.forked import ROOT

pytestmark = pytest.mark.in_turn

PAGE = ROOT / "docs" / "django-tasks.md"
PROJECT = Path(__file__).with_name("django_project.py")


@pytest.fixture
def page(tmp_path):
    """The page in the form that it gives for a Django without its own tasks."""
    text = PAGE.read_text()
    if find_spec("django.tasks") is None:
        text = text.replace("from django.tasks import", "from django_tasks import")
    copy = tmp_path / PAGE.name
    copy.write_text(text)
    return copy


def test_the_project_of_the_page_works(database, page, tmp_path):
    for package in ("project", "shop"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    url = make_url(database.url)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)]),
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "GUIDE": str(page),
        "ENGINE": f"django.db.backends.{'sqlite3' if database.name == 'sqlite' else 'postgresql'}",
        "NAME": str(url.database),
        **{name.upper(): str(getattr(url, name) or "") for name in ("username", "password", "host", "port")},
    }
    command = [*forked.PYTHON, str(PROJECT)]
    ran = forked.run(command, warm=forked.FRAMEWORKS, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.endswith("done\n")
