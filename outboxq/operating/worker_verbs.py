"""Declare what a person can do to a worker or a database session."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from ..model import TaskStatus
from ..model.wording import grouped, plural, unseen
from ..model.workers import WorkerOrder
from .verb import Noun, Outcome, Right, Verb, declare

if TYPE_CHECKING:
    from ..store import Store
    from ..store.tasks.operations import OnChange


_for_workers = partial(declare, Noun.WORKER, right=Right.CHANGE)


@_for_workers("quiet", offered=lambda state: not state.has_ended and state.asked_to is None, undo="resume")
def QUIET_WORKER(store: Store, worker: UUID, _why: str, using: object) -> Outcome:
    """Stop a worker from claiming tasks until the worker is resumed.

    Its running tasks continue. Claimed tasks that have not started are released.
    """
    return _ordered(store, worker, WorkerOrder.QUIET, "has been asked to stop claiming tasks, and will do so", using)


@_for_workers("resume", offered=lambda state: not state.has_ended and state.asked_to is WorkerOrder.QUIET, undo="quiet")
def RESUME_WORKER(store: Store, worker: UUID, _why: str, using: object) -> Outcome:
    """Make a quiet worker claim tasks again."""
    return _ordered(store, worker, None, "has been asked to claim tasks again, and will do so", using)


@_for_workers(
    "stop",
    offered=lambda state: not state.has_ended and state.asked_to is not WorkerOrder.STOP,
    is_final=True,
    hint="The worker stops as if it had received SIGTERM: it lets running tasks finish. A supervisor or a service manager may start another worker in its place.",
)
def STOP_WORKER(store: Store, worker: UUID, _why: str, using: object) -> Outcome:
    """Stop a worker as SIGTERM does.

    The worker claims no more tasks, and lets its running tasks finish. A supervisor or a service manager may start
    another worker in its place.
    """
    return _ordered(store, worker, WorkerOrder.STOP, "has been asked to stop, and will begin to stop", using)


@_for_workers("stacks", label="Show its stacks", offered=lambda state: not state.has_ended)
def STACKS(store: Store, worker: UUID, _why: str, using: object) -> Outcome:
    """Ask a worker for the stacks of its threads.

    The stacks name the functions and lines that the threads are running, without the values of arguments.
    """
    store.worker_orders.ask_for_stacks(worker, using=using)
    words = f"has been asked for the stacks of its threads, and will answer {_soon(store, worker, using)}"
    return Outcome(predicate=words, record={"id": worker})


@_for_workers(
    "recover",
    label="Recover its tasks",
    offered=lambda state: state.holds_lost_tasks,
    is_final=True,
    is_long=True,
    hint="If the worker is only frozen, its outcomes are refused when it wakes up, but the tasks may have run twice.",
)
def RECOVER_WORKER(store: Store, worker: UUID, why: str, using: object, *, on_change: OnChange) -> Outcome:
    """Recover the running tasks of a worker that is gone.

    This is possible only if the worker has not been seen for at least 90 seconds. Other workers can run the tasks
    without waiting for the leases to expire. After three recoveries in a row, a task becomes a dead letter.
    """
    now = store.recover_all_lost(worker, reason=why, on_change=on_change, using=using)
    number, record = now.total(), {"id": worker, "changed": now.total(), "statuses": now}
    parts = ", ".join(f"{grouped(now[status])} {status}" for status in TaskStatus if now[status])
    words = f"has lost {grouped(number)} {plural(number, 'task')} ({parts})"
    return Outcome(predicate=words if number else "holds no running tasks", record=record, changes=number)


@declare(
    Noun.SESSION,
    "end-session",
    Right.CHANGE,
    label="End the session",
    command=("db", "end-session"),
    is_final=True,
    hint="Its open transaction is rolled back, and its program receives an error.",
)
def END_SESSION(store: Store, session: str, _why: str, using: object) -> Outcome:
    """End a session that holds a snapshot.

    SESSION consists of the session's PostgreSQL process ID and start time, as `check` prints them. The transaction is
    rolled back, and the program receives an error. Your role needs the privileges of the session's role or of
    pg_signal_backend.
    """
    store.end_session(session, using=using)
    return Outcome(predicate="was ended; its transaction was rolled back", record={"session": session, "ended": True})


def _ordered(store: Store, worker: UUID, order: WorkerOrder | None, words: str, using: object) -> Outcome:
    changed = store.worker_orders.give(worker, order, using=using)
    already = "was not told to be quiet or to stop" if order is None else f"was already told to {_TO_DO[order]}"
    record = {"id": worker, "asked_to": order, "changed": changed}
    said = f"{words} {_soon(store, worker, using)}" if changed else already
    return Outcome(predicate=said, record=record, changes=int(changed))


def _soon(store: Store, worker: UUID, using: object) -> str:
    """Return a phrase that says when the worker will obey the order. A frozen worker obeys only if it wakes up."""
    silence = store.workers.silence(worker, using=using)
    return "within six seconds" if silence is None else f"only if it wakes up: it {unseen(silence)}"


_TO_DO: Final = {WorkerOrder.QUIET: "be quiet", WorkerOrder.STOP: "stop"}

VERBS: Final = tuple(one for one in list(globals().values()) if isinstance(one, Verb))
"""The verbs for workers and sessions, in the order in which pages offer them."""
