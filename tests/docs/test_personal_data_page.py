"""The erasure in docs/recipes/personal-data.md, while a worker ends tasks, and its variant for Django."""

from __future__ import annotations

import itertools
import os
import re
import sys
from functools import partial
from types import ModuleType

import pytest
from sqlalchemy import event
from sqlalchemy.engine import make_url

from outboxq import TaskNotFound
from tests import forked
from tests.docs.test_django_page import databases
from tests.forked import ROOT

pytestmark = pytest.mark.in_turn

PAGE = (ROOT / "docs" / "recipes" / "personal-data.md").read_text()
KEY = "customer:9"

DJANGO = """
import django
from django.conf import settings

settings.configure(USE_TZ=True, DATABASES={databases}, INSTALLED_APPS=["outboxq.contrib.django"])
django.setup()

from django.core.management import call_command

from outboxq.contrib.django import outbox

call_command("migrate", verbosity=0)


@outbox.task(name="shop.invite")
def invite(email: str) -> str:
    return f"invited {{email}}"


# the page's code

for _ in range(2):
    done = invite.using(partition_key="customer:8").enqueue("bob@example.com")
assert outbox.worker().run(burst=True) == 0
waiting = invite.using(partition_key="customer:8", idempotency_key="8").enqueue("bob@example.com")
old = invite.enqueue("bob@example.com")
other = invite.enqueue("ada@example.com")
assert erase("customer:8") == 0
assert erase("customer:8") == 0
assert erase_task(old.id)
assert [task.id for task in outbox.store.tasks()] == [other.id]
assert all(outbox.store.history(task.id) == [] for task in (done, waiting, old))
assert outbox.store.verify() == []
print("erased")
"""
IMPORTS = "from uuid import UUID\nfrom outboxq import TaskStatus\n"


@pytest.fixture
def page(postgresql, monkeypatch):
    """The names that the page's Python code defines. The code's calls have been run, too."""
    shop, *rest = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    url = make_url(postgresql.url).render_as_string(hide_password=False)
    module = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", module)
    exec(shop.replace('"sqlite:///shop.db"', repr(url)), vars(module))
    names: dict[str, object] = {}
    for source in rest:
        exec(source, names)
    yield names
    module.Base.metadata.drop_all(module.engine)
    module.engine.dispose()


def test_a_task_that_ends_between_the_deletions_is_erased_completely_or_not_at_all(page, postgresql):
    outbox = page["outbox"]
    claims, deletions = [], itertools.count(1)

    def end_meanwhile(_connection, _cursor, statement, *_):
        if statement.startswith("DELETE") and next(deletions) == nth:  # in another session
            postgresql.store.complete(claims.pop(), result='"invited eve@example.com"')

    event.listen(page["engine"], "before_cursor_execute", end_meanwhile)
    for by, nth in itertools.product(("key", "id"), (1, 2, 3, 4)):
        running = page["invite"].using(outbox, partition_key=KEY).enqueue("eve@example.com").id
        erase = partial(page["erase"], KEY) if by == "key" else partial(page["erase_task"], running)
        claims += postgresql.claim(store=postgresql.store)
        deletions = itertools.count(1)
        erase()
        assert (claims, next(deletions)) == ([], 5)
        assert outbox.store.verify() == []
        if nth > 1:
            assert outbox.store.get(running).status == "Completed"
            assert erase() in {0, True}
        with pytest.raises(TaskNotFound):
            outbox.store.get(running)
        assert outbox.store.history(running) == []


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_erasure_works_in_django(kind, request, tmp_path):
    [code] = re.findall(r"^```py\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    [erase, erase_task] = [
        re.search(rf"^def {name}\(.*?(?=^```$|\n\n\n)", PAGE, re.DOTALL | re.MULTILINE)[0]
        for name in ("erase", "erase_task")
    ]
    erase = erase.replace("delete_ended(TASKS.c.partition_key == key)", 'delete_ended("partition_key", key)')
    erase_task = erase_task.replace("delete_ended(TASKS.c.id == task_id)", 'delete_ended("id", task_id)')
    assert "TASKS" not in erase + erase_task
    program = DJANGO.format(databases=databases(request.getfixturevalue(f"{kind}_url")))
    program = program.replace("# the page's code", f"{code}\n{IMPORTS}\n{erase}\n{erase_task}")
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [*forked.PYTHON, "-c", program]
    environment["PYTHONPATH"] = str(ROOT)
    done = forked.run(command, warm=forked.FRAMEWORKS, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "erased\n"), done.stdout + done.stderr
