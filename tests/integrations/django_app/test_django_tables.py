"""`migrate` and the other commands, on tables of this release and of other releases."""

from __future__ import annotations

import sys
from textwrap import dedent

import pytest

from tests import forked

pytestmark = pytest.mark.in_turn


def test_manage_py_creates_and_removes_the_tables(project):
    project.settings = {"USE_TZ": False, "TIME_ZONE": "Asia/Kolkata"}
    assert project.python("life.py").endswith("to the end\n")


def test_missing_tables_are_explained_if_the_app_is_not_installed():
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


def test_settings_of_the_wrong_kind_are_named_in_one_sentence():
    program = """
        from django.conf import settings
        from django.test import override_settings

        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        from outboxq import ConfigurationError
        from outboxq.contrib.django import DjangoOutbox

        wrong = [None, [], {"HOOKS": None}, {"RETENTION": "90d"}, {"OUTAGE_TIMEOUT": None}, {"SOURCE": 5}, {"SCHEMA": 5}]
        for given in wrong:
            with override_settings(OUTBOXQ=given):
                try:
                    DjangoOutbox().hooks
                except ConfigurationError as error:
                    print(error)
                else:
                    raise AssertionError(given)
    """
    command = [sys.executable, "-c", dedent(program)]
    said = forked.run(command, warm=forked.FRAMEWORKS, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == [
        "OUTBOXQ in the settings takes a dict, not None",
        "OUTBOXQ in the settings takes a dict, not []",
        "OUTBOXQ in the settings: HOOKS takes a list of paths, such as 'shop.hooks.Timing'",
        "OUTBOXQ in the settings: retention takes a timedelta or seconds, not str",
        "OUTBOXQ in the settings: outage_timeout takes a timedelta or seconds, not NoneType",
        "OUTBOXQ in the settings: source must be a URI or a name without spaces, such as 'shop' or 'https://shop.example', not 5",
        "schema 5 is not a plain lower-case name of at most 48 letters, digits or _",
    ]
