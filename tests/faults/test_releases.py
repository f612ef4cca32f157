"""Today's release beside a simulated next release, in separate processes, in both directions and on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outboxq.database.engine import make_engine
from outboxq.database.revisions import REVISION
from outboxq.store import Store
from tests.contract.helpers import called
from tests.releases import LAST, NEXT, Producer, Release, make
from tests.waiting import until

pytestmark = pytest.mark.in_turn

NEWER_REFUSED = (
    f" has the outboxq schema {LAST}, which supports only releases that know schema {NEXT} or later; this release knows schema {REVISION}; "
    "run: pip install --upgrade outboxq\n"
)
ASKING = (("status",), ("task", "list"), ("failed", "list"), ("queue", "list"), ("verify",))


@pytest.fixture(scope="module")
def releases(tmp_path_factory) -> Iterator[tuple[Release, Release, Release]]:
    made = make(tmp_path_factory.mktemp("releases"))
    yield made
    for one in made:
        one.warm.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    return request.getfixturevalue("cluster").create_database()


@pytest.fixture
def producers() -> Iterator[list[Producer]]:
    started: list[Producer] = []
    yield started
    for one in started:
        one.end()


def asks(release: Release, url: str, task_id: str) -> str:
    """Check that all read-only commands succeed, and return the output of `task show`."""
    said = release.commands(url, *ASKING, ("task", "show", task_id), ("task", "explain", task_id))
    assert [code for code, _ in said] == [0] * len(said), said
    return said[-2][1]


def test_two_releases_share_a_database_before_and_after_the_upgrade(releases, url, producers):
    """The upgrade is then taken back. This is one test, because the processes that fork each release's programs start once."""
    today, following, _ = releases
    assert today.upgrade(url).endswith(f" is now {REVISION}\n")
    reports_a_pending_revision(following, url)
    producers.append(early := following.produce(url))
    producers.append(running := today.produce(url))
    following.work(url)
    tasks = [early.first, running.first]
    assert following.look(url)["statuses"] == dict.fromkeys(tasks, "Completed")
    assert "task_exploded" in asks(following, url, early.first)
    assert "task_exploded" in asks(today, url, early.first)

    assert following.upgrade(url).endswith(f" is now {NEXT}\n")
    assert following.commands(url, ("db", "current", "--check")) == [(0, f"{NEXT}, the revision of this release\n")]
    producers.append(started := today.produce(url))
    producers.append(next_one := following.produce(url))
    tasks += [started.first, next_one.first]
    tasks += [one.enqueue() for one in (early, running, started, next_one)]
    today.work(url)
    seen = today.look(url)
    assert seen["statuses"] == dict.fromkeys(tasks, "Completed")
    assert seen["events"].count("task_exploded") == 4
    assert seen["read"] == len(seen["events"]) == 3 * len(tasks) + 4
    assert "task_exploded" in asks(today, url, next_one.first)

    assert today.commands(url, ("upgrade", url), ("db", "current")) == [
        (
            0,
            f"the schema {NEXT} was created by a later release but also works with this one, which knows {REVISION}; nothing was changed\n",
        ),
        (0, f"{NEXT}, from a later release; this release knows revisions up to {REVISION}\n"),
    ]
    tasks += [running.enqueue(), next_one.enqueue()]
    following.work(url)
    assert following.look(url)["statuses"] == dict.fromkeys(tasks, "Completed")

    following.python(url, "-c", _TAKE_BACK, url, REVISION)
    assert today.commands(url, ("db", "current", "--check")) == [(0, f"{REVISION}, the revision of this release\n")]
    tasks.append(running.enqueue())
    today.work(url)
    assert today.look(url)["statuses"] == dict.fromkeys(tasks, "Completed")


def reports_a_pending_revision(following: Release, url: str) -> None:
    (code, said), (_, history), (_, script) = following.commands(
        url, ("db", "current", "--check"), ("db", "history"), ("db", "sql")
    )
    assert code == 4
    assert (
        said == f"{REVISION}; this release works with it, but you can run outboxq upgrade to move to revision {NEXT}\n"
    )
    assert [line.split("\t")[:2] for line in history.splitlines()[1:]] == [[REVISION, "current"], [NEXT, "pending"]]
    assert "ADD COLUMN colour" in script
    assert "CREATE TABLE" not in script


def test_an_incompatible_schema_does_not_stop_a_running_fleet(releases, url, producers, tmp_path: Path):
    """The supervisor keeps trying to restart recycled processes until the fleet is replaced or, as here, the schema is downgraded."""
    today, following, after = releases
    today.upgrade(url)
    producers.append(running := today.produce(url))
    log = tmp_path / "fleet.log"
    with log.open("w") as output:
        options = ("--processes", "2", "--max-tasks", "1")
        streams = {"stdout": output, "stderr": output}
        fleet = today.start(url, "-m", "outboxq", "worker", "app:outbox", *options, **streams, starts_others=True)
    try:
        until(lambda: "it will be replaced in 0.0 s" in log.read_text())
        after.upgrade(url)
        running.enqueue()
        until(lambda: "could not be restarted, and another attempt will be made later" in log.read_text())
        assert NEWER_REFUSED in log.read_text()
        for code, said in today.commands(url, *ASKING, ("upgrade", url)):
            assert (code, said) == (4, f"outboxq: {called(url)}{NEWER_REFUSED}")
        assert following.commands(url, ("verify",)) == [(0, "every invariant holds\n")]  # that schema admits it

        after.python(url, "-c", _TAKE_BACK, url, NEXT)
        running.enqueue()
        engine = make_engine(url)
        until(lambda: {task.status for task in Store(engine).tasks(limit=1000)} == {"Completed"}, every=0.1)
        engine.dispose()
        assert "so all processes stop" not in log.read_text()
    finally:
        fleet.terminate()
        fleet.wait(60)


_TAKE_BACK = "import sys; from outboxq import migrations; migrations.downgrade(sys.argv[1], sys.argv[2])"
