"""django-tasks-db, whose worker is a management command."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import django
from django.conf import settings
from django.utils import timezone

from benchmarks.peers.driver import Driver, main


def configure(url: str) -> None:
    if url.startswith("postgresql:"):
        from urllib.parse import urlsplit

        parts = urlsplit(url)
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path.strip("/"),
            "USER": parts.username,
            "HOST": parts.hostname,
            "PORT": parts.port,
        }
    else:
        options = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 30,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        }
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": url, "OPTIONS": options}
    settings.configure(
        DATABASES={"default": {**database, "CONN_MAX_AGE": None}},
        INSTALLED_APPS=["django_tasks", "django_tasks_db"],
        TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": []}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        LOGGING_CONFIG=None,
        USE_TZ=True,
    )
    django.setup()


class DjangoTasksDriver(Driver):
    settings = "DEBUG off, persistent connections, the worker's default interval of 1 s; SQLite: WAL, NORMAL, IMMEDIATE"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        configure(url)
        from benchmarks.peers import django_tasks_db_task

        self._bench = django_tasks_db_task.bench

    def setup(self) -> None:
        from django.core.management import call_command

        call_command("migrate", verbosity=0)

    def enqueue(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._bench.enqueue(number)

    def later(self, number: int, seconds: float) -> None:
        self._bench.using(run_after=timezone.now() + timedelta(seconds=seconds)).enqueue(number)

    def work(self) -> None:
        from django.core.management import call_command

        call_command("db_worker", verbosity=0, startup_delay=False)


if __name__ == "__main__":
    main(DjangoTasksDriver)
