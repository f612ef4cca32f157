"""Several releases side by side: this checkout's package, and simulated later releases derived from it, each in its own directory.

A later release has one more revision, one more event type, and a Django migration for them. Otherwise it has today's code.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from outboxq.database.revisions import REVISION
from tests import forked
from tests.forked import ROOT

NEXT, LAST = (f"{int(REVISION) + number:04}" for number in (1, 2))
"""The revisions of the two releases after this one."""

_EXPAND = '''
"""A column more, which code of {before} may overlook."""

import sqlalchemy as sa
from alembic import op

from outboxq.migrations import admit_from

revision = "{revision}"
down_revision = "{before}"


def upgrade():
    op.add_column("task_executions", sa.Column("colour", sa.Text()))
    admit_from("0001")


def downgrade():
    op.drop_column("task_executions", "colour")
    admit_from("0001")
'''

_CONTRACT = '''
"""A column that code from before {before} does not fill in."""

import sqlalchemy as sa
from alembic import op

from outboxq.migrations import admit_from

revision = "{revision}"
down_revision = "{before}"


def upgrade():
    op.drop_column("task_executions", "colour")
    op.add_column("task_executions", sa.Column("tone", sa.Text()))
    admit_from("{before}")


def downgrade():
    op.drop_column("task_executions", "tone")
    op.add_column("task_executions", sa.Column("colour", sa.Text()))
    admit_from("0001")
'''

_DJANGO = """
from django.db import migrations

from ..operations import reaching


class Migration(migrations.Migration):
    dependencies = [("outboxq", "{before}")]
    operations = [reaching("{revision}", before="{down}")]
"""

_APP = '''
import os

from sqlalchemy import create_engine, insert

from outboxq import EventType, Outbox
from outboxq.database.engine import configure_sqlite
from outboxq.database.tables import execution_events

outbox = Outbox(os.environ["OUTBOXQ_DATABASE_URL"])


@outbox.task(name="count", queue="counts", lease=30)
def count(number: int) -> int:
    return number


engine = create_engine(os.environ["OUTBOXQ_DATABASE_URL"])
if engine.dialect.name == "sqlite":
    configure_sqlite(engine)


def enqueue(number):
    """It is one transaction with the event that only a later release writes."""
    with engine.begin() as connection:
        handle = count.using(connection).enqueue(number)
        if exploded := getattr(EventType, "EXPLODED", None):
            created = outbox.store.get(handle.id, using=connection).created_at
            connection.execute(insert(execution_events).values(
                pipeline_execution_id=handle.id, task_execution_id=handle.id, event_type=exploded, created_at=created,
            ))
    return handle.id
'''

_PRODUCER = """
import sys
from app import enqueue
print(enqueue(0), flush=True)
for line in sys.stdin:
    print(enqueue(int(line)), flush=True)
"""

_COMMANDS = """
import json, sys
from click.testing import CliRunner
from outboxq.cli import main
told = []
for command in json.loads(sys.argv[1]):
    done = CliRunner().invoke(main, command, catch_exceptions=False)
    told.append([done.exit_code, done.output])
print(json.dumps(told))
"""

_LOOK = """
import json, sys
from app import outbox
read, cursor = outbox.store.log.tail(limit=10_000)
by_task = {str(event.task_execution_id) for event in read}
tasks = outbox.store.tasks(limit=10_000)
histories = [outbox.store.history(task.id) for task in tasks]
outbox.store.log.state_at(tasks[0].id, outbox.store.now())
print(json.dumps({
    "statuses": {str(task.id): task.status for task in tasks},
    "events": [str(event.event_type) for event in read],
    "read": sum(len(history) for history in histories),
    "package": __import__("outboxq").__file__,
}))
"""


class Release:
    """One release's package, and the programs that run with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.warm = forked.Warm(*forked.OUTBOXQ.modules, root=directory)

    def next(self, *, known: str, revision: str, script: str) -> Release:
        """Return the release after this one, which adds a migration."""
        later = Release(self.directory.with_name(f"release-{revision}"))
        shutil.copytree(self.directory, later.directory)
        package = later.directory / "outboxq"
        _edit(package / "database/revisions.py", f'REVISION = "{known}"', f'REVISION = "{revision}"')
        if known == REVISION:
            _edit(
                package / "model/records.py",
                '    UNROUTED = "event_unrouted"\n',
                '    EXPLODED = "task_exploded"\n    UNROUTED = "event_unrouted"\n',
            )
        (package / f"_migrations/alembic/versions/{revision}_next.py").write_text(
            script.format(revision=revision, before=known)
        )
        migrations = package / "contrib/django/migrations"
        before = next(path.stem for path in migrations.glob(f"{known}_*.py"))
        (migrations / f"{revision}_next.py").write_text(_DJANGO.format(revision=revision, down=known, before=before))
        return later

    def environment(self, url: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOXQ", "PYTHON"))}
        return {**kept, "PYTHONPATH": str(self.directory), "OUTBOXQ_DATABASE_URL": url}

    def start(self, url: str, *arguments: str, **streams: Any) -> forked.Popen:
        """Start Python with this release."""
        environment, options = self.environment(url), {"warm": self.warm, "text": True, "bufsize": 1}
        return forked.Popen([*forked.PYTHON, *arguments], cwd=self.directory, env=environment, **options, **streams)

    def python(self, url: str, *arguments: str) -> str:
        with self.start(url, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            said, complaints = process.communicate()
        assert process.returncode == 0, said + complaints
        return str(said)

    def commands(self, url: str, *commands: tuple[str, ...]) -> list[tuple[int, str]]:
        """Run these commands one after another, and return each command's exit code and output."""
        return [(code, said) for code, said in json.loads(self.python(url, "-c", _COMMANDS, json.dumps(commands)))]

    def upgrade(self, url: str, *options: str) -> str:
        ((code, said),) = self.commands(url, ("upgrade", url, *options))
        assert code == 0, said
        return said

    def look(self, url: str) -> dict[str, Any]:
        """Return what this release reads: each task's status, the events' types, and the number of events in the histories."""
        seen: dict[str, Any] = json.loads(self.python(url, "-c", _LOOK))
        assert Path(seen["package"]).is_relative_to(self.directory)
        return seen

    def produce(self, url: str) -> Producer:
        return Producer(self, url)

    def work(self, url: str) -> str:
        """Start a worker, and run it until no due tasks are left."""
        return self.python(url, "-m", "outboxq", "worker", "app:outbox", "--burst")


class Producer:
    """A process that enqueues a task on request. It enqueues its first task when it starts."""

    def __init__(self, release: Release, url: str) -> None:
        pipes = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE)
        self._process = release.start(url, "-c", _PRODUCER, **pipes)
        self.first = self._answer()

    def enqueue(self) -> str:
        self._process.stdin.write("1\n")
        return self._answer()

    def _answer(self) -> str:
        line: str = self._process.stdout.readline().strip()
        if len(line) != 36:  # not an id: the process reports an error and ends
            raise AssertionError(line + self._process.stderr.read())
        return line

    def end(self) -> None:
        with self._process:
            self._process.kill()


def make(directory: Path) -> tuple[Release, Release, Release]:
    """Return today's release, the next one, which expands the schema, and the one after, which no longer admits today's."""
    today = Release(directory / f"release-{REVISION}")
    shutil.copytree(ROOT / "outboxq", today.directory / "outboxq")  # with its compiled modules
    migrations = today.directory / "outboxq/_migrations"  # as in the wheel: tests/unit/test_packaging.py
    shutil.copytree(ROOT / "alembic", migrations / "alembic")
    shutil.copy(ROOT / "alembic.ini", migrations)
    (today.directory / "app.py").write_text(_APP)
    following = today.next(known=REVISION, revision=NEXT, script=_EXPAND)
    return today, following, following.next(known=NEXT, revision=LAST, script=_CONTRACT)


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} in {path}"
    path.write_text(text.replace(old, new))
