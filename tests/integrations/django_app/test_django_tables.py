"""`migrate` and the other commands, on tables of every age."""

from __future__ import annotations

import sys
from textwrap import dedent

import pytest

from tests import forked

pytestmark = pytest.mark.in_turn


def test_the_tables_live_and_die_by_manage_py(project):
    project.settings = {"USE_TZ": False, "TIME_ZONE": "Asia/Kolkata"}
    assert project.python("life.py").endswith("to the end\n")


def test_missing_tables_of_a_project_without_the_app_are_named_with_their_cause():
    program = """
        import django
        from django.conf import settings

        databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
        settings.configure(DATABASES=databases)
        django.setup()
        from django.db import transaction

        from outboxq import SchemaOutOfDate
        from outboxq.contrib.django import outbox

        @outbox.task(name="work")
        def work() -> None: ...

        try:
            with transaction.atomic():
                work.enqueue()
        except SchemaOutOfDate as error:
            print(error)
    """
    command = [sys.executable, "-c", dedent(program)]
    said = forked.run(command, warm=forked.FRAMEWORKS, capture_output=True, text=True, check=True).stdout
    assert "run: manage.py migrate, after you have added 'outboxq.contrib.django' to INSTALLED_APPS" in said
