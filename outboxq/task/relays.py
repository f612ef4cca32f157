"""Relays, which pass emitted events on to other programs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import tenacity

from ..context import TaskContext
from ..errors import ConfigurationError, EndpointGone
from ..model import OnDeadLetter, TaskOptions
from ..model.cloud_events import CloudEvent
from ..model.options import bad_name, check_options, choice, is_name
from ..retry import RetryPolicy
from .registry import TaskRegistry
from .results import AwaitedResults
from .task import ContextTask, Task

log = logging.getLogger("outboxq.worker")

PREFIX = "relay."
"""The beginning of the name of each relay's task."""
_WAIT = tenacity.wait_random_exponential(multiplier=10, max=6 * 3600)
RETRY = RetryPolicy(max_attempts=20, wait=_WAIT)
"""The attempts of an event by default: they take about a day, because an endpoint may be down for a night."""
_SOON = timedelta(seconds=1)
"""The snooze of an event whose queue has been paused: the shortest one, because the pause keeps the event back."""


class Endpoint(Protocol):
    """A receiver of events in another program, such as a `Webhook`. Your own class may be one."""

    def send(self, event: CloudEvent) -> object:
        """Send the event, and return if the receiver has it. Any exception is a failed attempt."""


class Relays(AwaitedResults):
    """The relays of an Outbox."""

    tasks: TaskRegistry
    source: str | None
    """The name of this application in the events that leave it."""

    def relay(
        self,
        topics: str | Sequence[str],
        /,
        *,
        to: Endpoint,
        name: str,
        queue: str | None = None,
        retry: RetryPolicy | tenacity.BaseRetrying | None = None,
        on_dead_letter: OnDeadLetter | str = OnDeadLetter.RELEASE,
    ) -> Task[..., Any]:
        """Declare that events of these topics are sent to another program, each in a task of its own.

        `emit` writes the task in the transaction of the caller, so the events of a rolled-back transaction are never
        sent. Each event is delivered at least once. The events of one partition key are sent one at a time and in
        order. Returns the task, which is called `relay.NAME`.

        Args:
            topics: Exact topics, or patterns such as ``order.*``.
            to: The receiver, such as a `Webhook`, or any object with a method `send(event)`.
            name: The name of the relay. It is stored permanently.
            queue: The queue of its tasks, which can be limited and paused. None: a queue with the name of the task.
            retry: When an event is sent again after a failure. None: 20 attempts in about a day.
            on_dead_letter: What happens to a partition key whose event was given up. "release": its next event is sent.
            "hold": the key waits until the dead letter is redriven or discarded.

        Raises ConfigurationError if the outbox has no `source` or the name is already taken, and InvalidArgument for an
        option that is out of range.
        """
        if not is_name(name):
            raise bad_name("name", f"relay {str(name)[:40]!r}")
        if self.source is None:
            raise ConfigurationError(
                f"relay {name!r} needs a name for this application in its events: write Outbox(source='shop')"
            )
        if not callable(getattr(to, "send", None)):
            raise ConfigurationError(f"to= of relay {name!r} takes a Webhook or an object with send(), not {to!r}")
        task_name = f"{PREFIX}{name}"
        options = TaskOptions(
            queue=task_name if queue is None else queue,
            on_dead_letter=choice(OnDeadLetter, on_dead_letter, "on_dead_letter"),
        )
        check_options(options, f"relay {name!r}")

        def send(ctx: TaskContext, payload: object) -> None:
            del payload  # the stored text is sent, so that its numbers are not parsed and printed again
            source = self.source
            assert source is not None
            try:
                to.send(event_of(ctx, source))
            except EndpointGone as error:
                if ctx.queue != task_name:  # other tasks use this queue too, so this event fails alone
                    raise
                self.store.queues.pause(ctx.queue, reason=str(error), create=True)
                log.warning("%s; the queue %r is paused", error, ctx.queue)
                ctx.snooze(_SOON)

        task: Task[..., Any] = ContextTask(
            send,
            name=task_name,
            options=options,
            retry=RETRY if retry is None else RetryPolicy.of(retry),
            outbox=self,
            subscribe=topics,
        )
        self.tasks.add(task)
        return task


def event_of(ctx: TaskContext, source: str) -> CloudEvent:
    """Return the event that a relay's task is about."""
    claim = ctx.claim
    _, _, stored = claim.args.partition(":")
    return CloudEvent(
        id=claim.pipeline_execution_id,
        source=source,
        type=claim.topic or claim.task_name,
        time=claim.created_at,
        data=stored.rpartition("}")[0].strip(),
        partition_key=None if ctx.concurrency_key is not None else claim.partition_key,
        headers=ctx.headers,
    )
