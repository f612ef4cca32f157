"""The campaign's judge: a second run of a task is excused only for a reason of its own, and otherwise counted."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from outboxq.model import INTERRUPTED, EventType, ExecutionEvent
from tests.faults.reruns import Judge, Struck
from tests.faults.runs import Run

TASK, FIRST, SECOND = uuid4(), uuid4(), uuid4()
PID, OTHER_PID = 100, 200


def event(moment: float, kind: EventType, token: int, worker: UUID) -> ExecutionEvent:
    return ExecutionEvent(
        sequence_num=round(moment * 10),
        task_execution_id=TASK,
        pipeline_execution_id=TASK,
        event_type=kind,
        event_data={},
        worker_id=worker,
        lease_token=token,
        created_at=datetime.fromtimestamp(moment, UTC),
    )


def run(began: float, token: int, worker: UUID, pid: int, *, task: UUID = TASK) -> Run:
    return Run(
        task_id=task,
        task_name="faults.slow",
        attempt=1,
        recovery_attempts=token - 1,
        lease_token=token,
        worker_id=worker,
        pid=pid,
        began=began,
        ended=began + 1,
    )


def story(end: EventType = EventType.RESET) -> list[ExecutionEvent]:
    """Return the history of a task that was claimed at 10, ended at 15, claimed by another worker at 16, and completed."""
    return [
        event(10, EventType.CLAIMED, 1, FIRST),
        event(15, end, 1, FIRST),
        event(16, EventType.CLAIMED, 2, SECOND),
        event(18, EventType.COMPLETED, 2, SECOND),
    ]


TWICE = [run(11, 1, FIRST, PID), run(17, 2, SECOND, OTHER_PID)]


def judged(struck, *, events=None, runs=TWICE):
    [rerun] = Judge(struck, lambda _: events or story(), lease=2.0).reruns(runs)
    return rerun


@pytest.mark.parametrize(
    ("struck", "excuse"),
    [
        (Struck(kind="kill", began=12, ended=12, pid=PID), "its worker was killed"),
        (Struck(kind="freeze", began=11, ended=20, pid=PID), "its worker was frozen past its lease"),
        (Struck(kind="freeze", began=9, ended=12, pid=PID), "its worker was frozen past its lease"),
        (Struck(kind="stuck cancel", began=12, ended=18, task_id=TASK), "an administrator's call held just this task"),
    ],
)
def test_a_fault_of_its_worker_or_of_just_this_task_excuses_a_rerun(struck, excuse):
    assert judged([struck]).excuse == excuse


@pytest.mark.parametrize(
    "struck",
    [
        Struck(kind="kill", began=15.5, ended=15.5, pid=PID),  # the task had already been taken from it
        Struck(kind="kill", began=9, ended=9, pid=PID),  # another process had this number before
        Struck(kind="kill", began=12, ended=12, pid=OTHER_PID),
        Struck(kind="freeze", began=11, ended=12.5, pid=PID),  # for less than its lease
        Struck(kind="freeze", began=11, ended=20, pid=OTHER_PID),
        Struck(kind="stuck cancel", began=12, ended=18, task_id=uuid4()),
        Struck(kind="stop", began=12, pid=PID),  # a stopping worker gives tasks back, and loses none
        Struck(kind="outage", began=12, ended=15),
        Struck(kind="full disk", began=12, ended=15),
        Struck(kind="crash", began=12, ended=15),  # the claim survived the crash
    ],
)
def test_no_other_fault_excuses_a_rerun(struck):
    assert judged([struck]).excuse is None


@pytest.mark.parametrize(
    ("end", "struck", "excuse"),
    [
        (EventType.RETRY_SCHEDULED, [], "its own policy"),
        (EventType.SNOOZED, [], "its own policy"),
        (EventType.RELEASED, [Struck(kind="stop", began=12, pid=PID)], "its worker was told to stop"),
        (EventType.RELEASED, [], None),
        (EventType.COMPLETED, [Struck(kind="kill", began=12, ended=12, pid=PID)], None),
    ],
)
def test_the_end_of_the_claim_may_excuse_a_rerun(end, struck, excuse):
    assert judged(struck, events=story(end)).excuse == excuse


def test_a_claim_undone_by_a_crash_excuses_a_rerun_with_the_same_token():
    events = [event(16, EventType.CLAIMED, 1, FIRST), event(18, EventType.COMPLETED, 1, FIRST)]
    runs = [run(11, 1, FIRST, PID), run(17, 1, FIRST, PID)]
    crash = Struck(kind="crash", began=12, ended=15)
    assert judged([crash], events=events, runs=runs).excuse == "the server crashed and took its claim back"
    assert judged([Struck(kind="outage", began=12, ended=15)], events=events, runs=runs).excuse is None


@pytest.mark.parametrize("claimed", [None, 9.5])
def test_a_crash_between_a_claim_and_its_run_excuses_a_rerun(claimed):
    events = [event(16, EventType.CLAIMED, 1, FIRST), event(18, EventType.COMPLETED, 1, FIRST)]
    runs = [replace(run(11, 1, SECOND, OTHER_PID), claimed=claimed), run(17, 1, FIRST, PID)]
    crashes = [Struck(kind="crash", began=began, ended=began + 1) for began in (9.9, 7)]
    excuses = [judged([one], events=events, runs=runs).excuse for one in crashes]
    assert excuses == ["the server crashed and took its claim back", None]


@pytest.mark.parametrize("kind", ["crash", "outage"])
def test_a_run_whose_claim_a_crash_undid_may_start_after_the_valid_run(kind):
    events = [event(16, EventType.CLAIMED, 1, FIRST), event(18, EventType.COMPLETED, 1, FIRST)]
    runs = [run(16.5, 1, FIRST, PID), replace(run(17, 1, SECOND, OTHER_PID), claimed=14)]
    excuse = judged([Struck(kind=kind, began=14.2, ended=15)], events=events, runs=runs).excuse
    assert excuse == ("the server crashed and took its claim back" if kind == "crash" else None)


def test_claims_are_sorted_even_if_a_frozen_process_starts_its_run_last():
    late = [run(17, 2, SECOND, OTHER_PID), run(19, 1, FIRST, PID)]
    rerun = judged([Struck(kind="freeze", began=10.5, ended=18.5, pid=PID)], runs=late)
    assert (rerun.earlier.pid, rerun.excuse) == (PID, "its worker was frozen past its lease")


def test_a_rerun_is_attributed_to_the_latest_fault_preferably_of_its_process():
    struck = [
        Struck(kind="full disk", began=2, ended=4.5),
        Struck(kind="outage", began=12, ended=14),
        Struck(kind="freeze", began=13, ended=19, pid=OTHER_PID),
        Struck(kind="kill", began=13, ended=13, pid=OTHER_PID),
    ]
    assert judged(struck).blow == "outage"
    assert judged(struck[2:]).blow == "freeze"
    assert judged(struck[3:]).blow == "nothing but kills"


def test_a_run_of_another_task_is_not_a_rerun():
    assert list(Judge([], lambda _: story(), lease=2.0).reruns([TWICE[0], run(12, 1, SECOND, 2, task=uuid4())])) == []


@pytest.mark.parametrize(
    ("reason", "excuse"),
    [
        (INTERRUPTED, "its transaction was interrupted, with all it did"),
        ("its lease expired before the task started", None),
    ],
)
def test_only_a_release_for_an_interrupted_transaction_excuses_a_rerun(reason, excuse):
    events = story(EventType.RELEASED)
    events[1] = replace(events[1], event_data={"reason": reason})
    assert judged([], events=events).excuse == excuse
