"""Reasons why tasks are not running, with their descriptions and the commands that help."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Self
from uuid import UUID

from ...model.running import Progress
from ...model.wording import TENTHS, span


class Reason(StrEnum):
    """The reason why a task is in its state."""

    words: str
    """The reason in a few words, for a list of tasks. `Store.explain` returns the whole sentence."""

    def __new__(cls, value: str, words: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_, member.words = value, words or value
        return member

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CANCEL_REQUESTED = "cancel_requested", "asked to stop"
    """The task is running and has been asked to stop."""
    LEASE_ENDED = "lease_ended", "its lease has expired"
    """The lease has expired, and the task is about to be recovered."""
    WORKER_SILENT = "worker_silent", "its worker is silent"
    """The worker may be dead, but the lease has not expired."""
    RUNNING = "running"
    NOT_ENQUEUED = "not_enqueued", "not enqueued"
    """The task follows a batch or another task in a chain, and has not been enqueued yet, or never will be."""
    EXPIRED = "expired"
    RETRY_LATER = "retry_later", "waiting for its retry"
    DELAYED = "delayed"
    QUEUE_PAUSED = "queue_paused", "queue paused"
    KEY_HELD = "key_held", "a dead letter holds its key"
    """A dead letter holds the task's partition key."""
    KEY_RUNNING = "key_running", "another task with its key is running"
    KEY_WAITING = "key_waiting", "behind another task with its key"
    """An earlier task with the same partition key comes first."""
    KEY_LIMIT = "key_limit", "limit per key"
    """The number of running tasks with the concurrency key has reached its limit."""
    KEY_RATE = "key_rate", "rate limit per key"
    """The key has used up the starts that its rate limit allows."""
    CONCURRENCY_LIMIT = "concurrency_limit", "concurrency limit"
    RATE_LIMIT = "rate_limit", "rate limit"
    NO_WORKER = "no_worker", "no worker on its queue"
    WORKERS_QUIET = "workers_quiet", "its workers are quiet"
    """A person has told the workers that could run the task not to claim any tasks."""
    TOPIC_UNWANTED = "topic_unwanted", "no worker handles its topic"
    TASK_UNKNOWN = "task_unknown", "no worker knows it"
    # The reasons for events are in the order in which a person should deal with them (`explain_event`).
    RELAY_MISSING = "relay_missing", "no relay"
    """No relay subscribes to the event's topic, or the event's relay does not exist."""
    RELAY_PAUSED = "relay_paused", "relay paused"
    RELAY_UNSENT = "relay_unsent", "no worker serves its relay"
    RELAY_FAILING = "relay_failing", "its broker is unavailable"
    """The relay's broker has not confirmed any event since a failure."""
    RELAY_REFUSED = "relay_refused", "refused"
    """The broker refused the event, which is now a dead letter."""
    RELAY_KEY_HELD = "relay_key_held", "a refused event holds its key"
    RELAY_BEHIND = "relay_behind", "behind an open transaction"
    """An open transaction may still write an event that comes before this one."""
    RELAY_DUE = "relay_due", "about to be published"
    RELAY_DISCARDED = "relay_discarded", "discarded"
    """The event was refused, and its dead letter was discarded."""
    RELAY_PUBLISHED = "relay_published", "published"
    DUE = "due"
    """Nothing prevents the task from starting."""
    INCONSISTENT = "inconsistent", "see outboxq verify"
    """The tables contradict each other about the task; see `verify`."""

    @property
    def is_of_event(self) -> bool:
        """True for the reasons why the relays have not published an event."""
        return self.value.startswith("relay_")


@dataclass(frozen=True, slots=True)
class Cure:
    """A command that helps to solve a problem."""

    purpose: str
    """Purpose of the command, such as ``resume it``."""
    command: tuple[str, ...]
    """The words that follow the program's name, for `FrontEnd.typed`: ``("queue", "resume", "mail")``."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer from `explain`: the reason why a task is not running, and the commands that help."""

    reason: Reason
    sentence: str
    cures: tuple[Cure, ...] = ()
    """Commands that help; empty if there are no such commands."""
    waits_for: UUID | None = None
    """Id of the task that must end first."""
    due_at: datetime | None = None
    """Due time of a Ready task; None in any other status."""
    progress: Progress | None = None
    """Progress of a running task, if its handler has reported any."""

    @property
    def hindrance(self) -> str:
        """The sentence, preceded by a colon, to be appended to another sentence; "" if nothing prevents the task from
        starting.
        """
        return "" if self.reason is Reason.DUE else f": {self.sentence}"


def span_of(value: timedelta) -> str:
    """Return the span in one or two units: 0.2 s, 12 s, 3 min 5 s, 2 h, 4 d 1 h."""
    seconds = max(0.0, value.total_seconds())
    return f"{seconds:.1f} s" if seconds < TENTHS else span(seconds)


def inconsistent(what: str) -> Explanation:
    """Return the explanation for tables that contradict each other; `what` describes the contradiction."""
    sentence = f"{what}; verify and repair the tables"
    return Explanation(Reason.INCONSISTENT, sentence, cure_of("repair it", "verify", "--repair"))


def of_dead_letter(task_id: UUID, which: str) -> tuple[Cure, ...]:
    """Return the commands that redrive or discard a dead letter. Their descriptions refer to the dead letter as
    `which`.
    """
    redrive = cure_of(f"redrive {which}", "failed", "redrive", task_id)
    return redrive + cure_of(f"discard {which}", "failed", "discard", task_id)


def of_lost(task_id: UUID) -> tuple[Cure, ...]:
    """Return the command that recovers a running task from a lost worker."""
    return cure_of("recover it from the lost worker", "task", "recover", task_id)


def of_other(task_id: UUID) -> tuple[Cure, ...]:
    """Return the command that explains the task that must finish first."""
    return cure_of("see why it has not finished", "task", "explain", task_id)


def cure_of(purpose: str, *words: object) -> tuple[Cure, ...]:
    """Return a tuple with a single cure, which consists of a command and its purpose."""
    return (Cure(purpose, tuple(str(word) for word in words)),)


def cancel_of_batch(batch_id: UUID) -> tuple[Cure, ...]:
    """Return the command that cancels a batch."""
    return cure_of("cancel it", "batch", "cancel", batch_id)


def written(moment: datetime | None) -> str:
    """Return a time to the second, in the form used in the sentences."""
    return "an unknown time" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"
