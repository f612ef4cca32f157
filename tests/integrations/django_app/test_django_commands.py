"""`manage.py outboxq …` in a separate project."""

from __future__ import annotations

import pytest

from tests.integrations.django_app.conftest import django_database

pytestmark = pytest.mark.in_turn


def test_every_command_works_on_the_database_of_the_settings(project, tmp_path):
    project.databases["other"] = django_database(f"sqlite:///{tmp_path / 'other.sqlite3'}")
    assert project.python("commands.py").endswith("to the end\n")


def test_a_queue_used_only_by_a_declared_task_is_known(project):
    project.manage("migrate", "--verbosity=0")
    assert "1 in 7.0 s" in project.manage("outboxq", "queue", "limit", "mail", "--per-key", "1/7s")


def test_a_worker_with_several_processes_passes_its_options_on(project):
    project.manage("migrate", "--verbosity=0")
    said = project.manage("outboxq", "worker", "--burst", "--processes", "2", "--skip-checks")
    assert said.count("it is done") == 2, said


@pytest.mark.parametrize("command", ["status", "worker"])
@pytest.mark.parametrize(
    ("app", "settings"),
    [
        ("shop.tasks:outbox", "project_settings"),
        ("shop.tasks:outbox", ""),
        ("outboxq.contrib.django:outbox", "project_settings"),
    ],
)
def test_the_plain_outboxq_command_names_the_manage_py_command(project, monkeypatch, command, app, settings):
    monkeypatch.setattr(type(project), "environment", {**project.environment, "DJANGO_SETTINGS_MODULE": settings})
    said = project.python("-m", "outboxq", command, app, fails=2)
    assert said.endswith("; run: python manage.py outboxq …\n"), said
    assert said.count("\n") == 1, said
