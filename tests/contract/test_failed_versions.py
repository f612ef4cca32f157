"""The version of a bad release is named wherever its failures are shown, and the good version is never blamed."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from click.testing import CliRunner

from outboxq.cli import main
from outboxq.model import EventType, Outcome
from outboxq.store import HealthLimits, Rule
from tests.contract import helpers

BAD, GOOD = "2.4.1", "2.4.0"
BLAME = "all 4 failures came from version 2.4.1; 2.4.0 had none"


def registered(database, version, *, knows="tests.work", queues=None):
    """Register a worker of this version."""
    worker_id = uuid4()
    store = database.store
    store.workers.register(worker_id, label=f"{version}:1", queues=queues, concurrency=8, task_names=[knows])
    store.workers.describe(worker_id, host=version, pid=1, version=version, release="0.1.0", busy=0)
    return worker_id


def failed(database, worker_id, number=4, *, error="KeyError: 'sku'"):
    for _ in range(number):
        database.add(database.store)
        [claim] = database.claim(store=database.store, worker_id=worker_id)
        data = {"exception": "builtins.KeyError", "error": error}
        database.store.finish([Outcome(claim=claim, event_type=EventType.FAILED, error=error, data=data)])


def outboxq(database, *words: str, code: int = 0):
    environment = {"OUTBOXQ_DATABASE_URL": database.url}
    result = CliRunner().invoke(main, words, env=environment, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def blame_of(database):
    [group] = database.store.dead_letters.groups().groups
    return group.blame


def test_a_failing_version_is_named_by_check_and_in_the_groups(database):
    registered(database, GOOD)
    failed(database, registered(database, BAD))
    assert blame_of(database) == BLAME
    [problem] = database.store.health(HealthLimits())
    assert problem.rule is Rule.FAILED
    [part] = problem.parts
    assert part.sentence.endswith(f"; {BLAME}")
    assert [one.command for one in part.cures][1:] == [("workers", "list")]
    assert BLAME in outboxq(database, "check", code=1)
    assert BLAME in outboxq(database, "failed", "summary")
    [group] = database.store.dead_letters.groups().groups
    assert [(one.version, one.count) for one in group.versions] == [(BAD, 4), (GOOD, 0)]


def test_a_version_with_far_more_failures_is_named_with_both_numbers(database):
    good, bad = registered(database, GOOD), registered(database, BAD)
    failed(database, bad, 19)
    failed(database, good, 1)
    assert blame_of(database) == "19 of 20 failures came from version 2.4.1; 2.4.0 had 1"


@pytest.mark.parametrize("of_good", [2, 4])
def test_failures_in_all_versions_blame_no_version(database, of_good):
    good, bad = registered(database, GOOD), registered(database, BAD)
    failed(database, bad, 4)
    failed(database, good, of_good)
    assert blame_of(database) is None


def test_a_version_is_blamed_only_if_another_version_knows_the_task(database):
    bad = registered(database, BAD)
    failed(database, bad, 5)
    assert blame_of(database) is None
    registered(database, GOOD, knows="tests.other")
    assert blame_of(database) is None
    registered(database, GOOD)
    assert blame_of(database) is not None


def test_two_failures_blame_no_version(database):
    registered(database, GOOD)
    failed(database, registered(database, BAD), 2)
    assert blame_of(database) is None


def test_a_version_last_seen_long_before_the_failures_is_not_compared(database):
    registered(database, GOOD)
    failed(database, registered(database, BAD))
    long_ago = database.store.now() - timedelta(hours=2)
    database.run(f"UPDATE workers SET last_seen_at = '{stored(database, long_ago)}' WHERE version = '{GOOD}'")
    assert blame_of(database) is None


def stored(database, moment):
    return moment.isoformat(timespec="microseconds")


def test_failures_without_a_version_blame_no_version(database):
    registered(database, GOOD)
    helpers.dead(database)
    assert blame_of(database) is None


def test_the_list_marks_the_failing_version_instead_of_the_other_one(database):
    good, bad = registered(database, GOOD), registered(database, BAD)
    before = {
        line.split("\t")[2]: line.split("\t")[7] for line in outboxq(database, "workers", "list").splitlines()[1:]
    }
    assert before == {GOOD: "other version", BAD: ""}
    failed(database, bad)
    assert database.store.dead_letters.blamed_versions() == {BAD: {"default"}}
    after = {line.split("\t")[2]: line.split("\t")[7] for line in outboxq(database, "workers", "list").splitlines()[1:]}
    assert after == {GOOD: "", BAD: "failing version"}
    assert good != bad


def test_a_worker_whose_queues_have_no_failures_is_not_marked(database):
    registered(database, GOOD)
    failed(database, registered(database, BAD))
    registered(database, BAD, queues=["reports"])
    bad = [line.split("\t") for line in outboxq(database, "workers", "list").splitlines()[1:] if f"\t{BAD}\t" in line]
    assert sorted((one[5], one[7]) for one in bad) == [("all", "failing version"), ("reports", "")]
