"""A process of test_migration_guides.py that creates the guide's project in the working directory, and runs its blocks in order."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

from django import VERSION

from outboxq.task.task import CallOptions
from tests.docs.equivalents import DECLARED, A, cells, check

GUIDE = Path(os.environ["GUIDE"])
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TABLES = """
SECRET_KEY = "of a test"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {name: os.environ[variable] for name, variable in VARIABLES.items()}}
"""
VARIABLES = {
    "ENGINE": "ENGINE",
    "NAME": "NAME",
    "USER": "USERNAME",
    "PASSWORD": "PASSWORD",
    "HOST": "HOST",
    "PORT": "PORT",
}
SHORT = {"migrate": ["--run-syncdb", "--verbosity=0"], "outboxq": ["--burst"]}
"""Arguments for a project whose app has no migrations, and for a worker that must stop on its own."""


def main() -> None:
    names: dict[str, object] = {}
    is_up = False
    blocks = [(language, _present(source)) for language, source in BLOCK.findall(GUIDE.read_text())]
    for _, source in blocks:
        if path := re.match(r"# (\S+\.py)\n", source):
            settings = f"import os\nVARIABLES = {VARIABLES}\n{TABLES}" if path[1].endswith("settings.py") else ""
            Path(path[1]).write_text(source + settings)
    for language, source in blocks:
        if re.match(r"# \S+\.py\n", source):
            continue
        is_up = is_up or _set_up()
        if language == "python":
            exec(compile(source, str(GUIDE), "exec"), names)
        else:
            _manage(source)
    _check_tables()
    print("done")


def _present(source: str) -> str:
    """Return the source as the guide describes it for Django 6, if Django 6 is installed."""
    if find_spec("django.tasks") is None:
        return source
    source = source.replace("from django_tasks ", "from django.tasks ").replace('"django_tasks", ', "")
    if VERSION[:2] == (6, 0):
        source = source.replace("from django.tasks import task\n", "from outboxq.contrib.django import task\n")
    return source


def _set_up() -> bool:
    import django

    django.setup()
    return True


def _manage(source: str) -> None:
    from django.core.management import call_command

    for line in source.splitlines():
        python, manage, name, *words = line.split()
        assert (python, manage) == ("python", "manage.py")
        call_command(name, *words, *SHORT[name])


def _check_tables() -> None:
    from outboxq.contrib.django import outbox
    from outboxq.contrib.django.backend import OutboxqTask, task

    roots = {"task": A(OutboxqTask)}
    DECLARED[OutboxqTask.using] = CallOptions
    for line, code in cells(GUIDE):
        try:
            check(code, roots)
        except AssertionError as error:
            raise AssertionError(f"{GUIDE.name}:{line}: `{code}`: {error}") from error
    assert callable(task)
    assert outbox.store.verify() == []


if __name__ == "__main__":
    main()
