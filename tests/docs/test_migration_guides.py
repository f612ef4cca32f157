"""The migration guides: their examples run, and each name, option and command in their tables exists. The index of the documentation is
complete.

test_guides.py runs from-celery.md, from-procrastinate.md and the pages in docs/migrating. from-django-tasks-db.md is a Django project,
which runs here in a separate process. The statements about other libraries were compared with the versions that the guides name.
"""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests import forked
from tests.docs.equivalents import cells, check

pytestmark = pytest.mark.in_turn

ROOT = Path(__file__).parents[2]
GUIDES = sorted([*(ROOT / "docs").glob("from-*.md"), *(ROOT / "docs" / "migrating").glob("*.md")])
PATTERNS = ROOT / "docs" / "how-to" / "celery-patterns.md"
DJANGO = ROOT / "docs" / "from-django-tasks-db.md"
PROJECT = Path(__file__).with_name("django_project.py")

of_each_guide = pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)


@pytest.mark.parametrize("guide", [*GUIDES, PATTERNS], ids=lambda guide: guide.stem)
def test_every_name_in_a_table_of_equivalents_exists(guide):
    if guide != DJANGO:  # its names need Django's settings, so django_project.py checks them
        complaints = []
        for line, code in cells(guide):
            try:
                check(code)
            except AssertionError as error:
                complaints.append(f"{guide.name}:{line}: `{code}`: {error}")
        assert complaints == []


@of_each_guide
def test_a_guide_has_the_required_sections(guide):
    text = guide.read_text()
    assert sum(1 for _ in cells(guide)) >= 15
    for heading in (
        "The same shop, before and after",
        "Equivalents",
        "What changes in meaning",
        "Moving a running system",
    ):
        assert f"\n## {heading}\n" in text
    assert re.search(r"^The guide compares outboxq with .* \d+\.\d+", text, re.MULTILINE), (
        "a guide must name the version that it describes"
    )


@of_each_guide
def test_blocks_that_cannot_be_run_here_are_valid_python(guide):
    blocks = re.findall(r"^ *```py\n(.*?)^ *```$", guide.read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        compile(textwrap.dedent(block), str(guide), "exec")


@pytest.mark.parametrize(
    "code",
    [
        "outbox.store.nothing(id)",
        "outbox.store.get(id).state",
        "outbox.worker(threads=8)",
        "task.using(session, countdown=60)",
        "task.using(session, delay=60).defer(1)",
        "@outbox.task(acks_late=True)",
        "@outbox.task(retry=RetryPolicy(max_retries=5))",
        "ctx.retries",
        "wait_nothing(3)",
        "raise Ignore()",
        "outboxq.integration.Hostess",
        "outboxq work shop:outbox",
        "outboxq worker shop:outbox --threads 8",
        "outboxq task cancel ID -x",
        "outboxq task lst",
    ],
)
def test_nonexistent_names_are_detected(code):
    with pytest.raises(AssertionError):
        check(code)


def test_the_index_links_to_every_page():
    listed = set(re.findall(r"\]\(([^)#]+)", (ROOT / "docs" / "README.md").read_text()))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    own = {
        page for page in pages if re.match(r"decisions/0|reference/(?!README)", page)
    }  # these pages have their own index
    assert pages - own - {"README.md", "index.md"} - listed == set()


def test_a_django_project_can_be_migrated_as_its_guide_describes(database, tmp_path):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "project").mkdir()
    url = make_url(database.url)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "GUIDE": str(DJANGO),
        "ENGINE": f"django.db.backends.{'sqlite3' if database.name == 'sqlite' else 'postgresql'}",
        "NAME": str(url.database),
        **{name.upper(): str(getattr(url, name) or "") for name in ("username", "password", "host", "port")},
    }
    command = [*forked.PYTHON, str(PROJECT)]
    ran = forked.run(command, warm=forked.FRAMEWORKS, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.endswith("done\n")
