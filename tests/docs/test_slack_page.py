"""The Django variant of the report in docs/recipes/slack.md. (The rest of the page is a guide: test_guides.py.)"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests import forked
from tests.docs.test_django_page import databases
from tests.forked import ROOT

pytestmark = pytest.mark.in_turn

PAGE = (ROOT / "docs" / "recipes" / "slack.md").read_text()

PROGRAM = """
import django
from django.conf import settings

settings.configure(USE_TZ=True, DATABASES={databases}, INSTALLED_APPS=["outboxq.contrib.django", "shop"])
django.setup()

from django.core.management import call_command
from shop.tasks import charge, outbox, posted, report_failures

call_command("migrate", run_syncdb=True, verbosity=0)
for task, *args in ([report_failures], [charge, 7], [charge, 8], [report_failures], [report_failures]):
    task.enqueue(*args)
    assert outbox.worker().run(burst=True) == 0
print(posted)
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_report_works_in_django(kind, request, tmp_path: Path) -> None:
    [module] = re.findall(r"^```python\n(# shop\.py\n.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    models, own = re.findall(r"^```py\n# shop/(?:models|tasks)\.py\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    tasks = re.sub(r"^from sqlalchemy.*\n|^engine = .*\n", "", module, flags=re.MULTILINE)
    tasks = re.sub(r"^(class|def) (Base|Reader|load|save)\b.*?\n\n\n", "", tasks, flags=re.DOTALL | re.MULTILINE)
    tasks = tasks.replace("outbox = Outbox(engine)\n", f"from outboxq.contrib.django import outbox\n{own}")
    assert not re.search(r"\bSession\b|engine", tasks)
    (tmp_path / "shop").mkdir()
    for name, source in (("__init__", ""), ("models", models), ("tasks", tasks)):
        (tmp_path / "shop" / f"{name}.py").write_text(source)
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    environment["PYTHONPATH"] = f"{ROOT}:{tmp_path}"
    program = PROGRAM.format(databases=databases(request.getfixturevalue(f"{kind}_url")))
    command = [*forked.PYTHON, "-c", program]
    done = forked.run(command, warm=forked.FRAMEWORKS, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "['New dead letters: 2 × shop.charge']\n"), done.stdout + done.stderr
