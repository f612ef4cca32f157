"""Problems that keep a worker from its work: they are reported once they have lasted for some time, and until they end."""

from __future__ import annotations

import pytest

from outboxq.worker.work_failures import CLAIM, END, WorkFailures


@pytest.fixture
def failures():
    changes = []
    made = WorkFailures(lambda: changes.append(made.current))
    made.changes = changes
    return made


def test_a_lasting_failure_is_reported_once_and_cleared_on_success(failures):
    for _ in range(2):
        failures.failed(CLAIM, OSError("the disk is full"))
    assert (failures.current, failures.changes) == (None, [])
    for number in range(5):
        failures.failed(CLAIM, OSError(f"block {number} cannot be written"))
    found = failures.current
    assert found.failure == "cannot claim tasks: OSError: block 0 cannot be written"
    assert failures.changes == [found]
    failures.worked(END)
    assert failures.current == found
    failures.worked(CLAIM)
    failures.worked(CLAIM)
    assert failures.changes == [found, None]


def test_a_failure_between_successes_is_not_reported(failures):
    for _ in range(5):
        failures.failed(CLAIM, OSError("gone"))
        failures.failed(CLAIM, OSError("gone"))
        failures.worked(CLAIM)
    assert failures.changes == []


def test_the_failure_that_has_lasted_longest_is_reported(failures):
    for activity in (END, CLAIM):
        for _ in range(3):
            failures.failed(activity, OSError("full"))
    assert failures.current.failure == "cannot write the outcomes of tasks: OSError: full"
    failures.worked(END)
    assert failures.current.failure == "cannot claim tasks: OSError: full"
