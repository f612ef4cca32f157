"""A process of test_django_page.py that prints what each of the three task decorators does by default, as JSON.

The output has the form of the cells of the page's table, in this order: `outbox.task`, Django's `task`, `outboxq.contrib.django.task`.
"""

import json
import sys
from types import ModuleType
from uuid import UUID, uuid4

import django
from django.conf import settings

settings.configure(
    SECRET_KEY="not a secret",
    USE_TZ=True,
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["outboxq.contrib.django"],
    TASKS={
        "default": {"BACKEND": "outboxq.contrib.django.OutboxqBackend", "QUEUES": [], "OPTIONS": {"modules": ["tasks"]}}
    },
)
django.setup()

from django.core.management import call_command  # noqa: E402

from outboxq import RetryPolicy  # noqa: E402
from outboxq.contrib.django import outbox  # noqa: E402
from outboxq.contrib.django import task as ours  # noqa: E402
from outboxq.contrib.django.compat import PACKAGE  # noqa: E402

djangos = __import__(PACKAGE, fromlist=["task"]).task
call_command("migrate", verbosity=0)
tasks = sys.modules["tasks"] = ModuleType("tasks")


def declare(decorator, name, function=None, **options):
    def work(value: UUID) -> None: ...

    function = function or work
    function.__module__, function.__qualname__, function.__name__ = "tasks", name, name
    made = decorator(**options)(function) if options or decorator is outbox.task else decorator(function)
    setattr(tasks, name, made)
    return made


def accepts(what):
    try:
        what()
    except Exception:  # noqa: BLE001 - each refuses in its own way
        return "no"
    return "yes"


def facts(decorator, name):
    made = declare(decorator, name)
    known = outbox.tasks.get(f"tasks.{name}")
    as_it_is, as_text = uuid4(), str(uuid4())

    async def run(value: UUID) -> None: ...

    given = as_it_is if accepts(lambda: made.enqueue(as_it_is)) == "yes" else as_text
    return {
        "Attempts": str(known.retry_policy.max_attempts),
        "Lease": f"{known.options.lease.total_seconds():g} s",
        "Queue": known.options.queue,
        "`retry`, `lease`, `timeout`, `transactional`": accepts(
            lambda: declare(decorator, f"{name}_options", retry=RetryPolicy(), lease=5, transactional=True)
        ),
        "`subscribe`": accepts(lambda: declare(decorator, f"{name}_events", subscribe="order.paid")),
        "`async def`": accepts(lambda: declare(decorator, f"{name}_async", run)),
        "Arguments": "by their annotations" if given is as_it_is else "JSON",
        "`enqueue()` returns": type(made.enqueue(given)).__name__,
    }


found = [facts(outbox.task, "first"), facts(djangos, "second"), facts(ours, "third")]
print(json.dumps({name: [one[name] for one in found] for name in found[0]}))
