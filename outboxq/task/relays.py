"""Relays, which pass emitted events on to other programs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Protocol

import tenacity

from ..context import TaskContext
from ..errors import ConfigurationError, EndpointGone, EventRefused, InvalidArgument
from ..model import OnDeadLetter, TaskOptions, duration
from ..model.cloud_events import CloudEvent
from ..model.options import bad_name, check_options, choice, is_name
from ..model.relays import NewRelay, OnRefused, check_relay, task_of
from ..model.subscriptions import Subscription, patterns_of
from ..model.transports import Transport
from ..model.unknown_options import naming_options
from ..retry import RetryPolicy
from ..store import Store
from ..store.transactions import patience
from .registry import BrokerRelay, TaskRegistry
from .results import AwaitedResults
from .task import ContextTask, Task

log = logging.getLogger("outboxq.worker")

_WAIT = tenacity.wait_random_exponential(multiplier=10, max=6 * 3600)
RETRY = RetryPolicy(max_attempts=20, wait=_WAIT)
"""The default retry policy for an event. The attempts are spread over about a day, because an endpoint may be down
overnight.
"""
_AGAIN = RetryPolicy(
    max_attempts=20,
    wait=tenacity.wait_random_exponential(multiplier=1, max=60),
    retry=tenacity.retry_if_not_exception_type(EventRefused),
)
"""The retry policy for an event that was redriven after the broker had refused it."""
PUBLISH_TIMEOUT = timedelta(seconds=10)
"""The default time within which a broker has to confirm a batch."""
_LONGEST = timedelta(minutes=1)
_SOON = timedelta(seconds=1)
"""The snooze for an event whose queue has been paused. The snooze is the shortest possible, because the pause holds the
event back.
"""


class Endpoint(Protocol):
    """A destination for events in another program, such as a `Webhook`. You can also write your own class."""

    def send(self, event: CloudEvent) -> object:
        """Send the event, and return once the other program has it. Any exception counts as a failed attempt."""


class Relays(AwaitedResults):
    """An Outbox's relays."""

    source: str | None
    """The name of this application in the events that it sends."""

    @naming_options("relay()")
    def relay(
        self,
        topics: str | Sequence[str],
        /,
        *,
        to: Endpoint | Transport,
        name: str,
        queue: str | None = None,
        retry: RetryPolicy | tenacity.BaseRetrying | None = None,
        on_dead_letter: OnDeadLetter | str | None = None,
        shards: int = 1,
        on_refused: OnRefused | str = OnRefused.HOLD,
        timeout: timedelta | float = PUBLISH_TIMEOUT,
    ) -> Task[..., Any]:
        """Declare that events with these topics are sent to another program.

        `emit` writes the event in the caller's transaction, so events from a rolled-back transaction are never sent.
        Each event is delivered at least once, and events with the same partition key are delivered in order. Return the
        task, which is called `relay.NAME`.

        If `to` has a `send(event)` method, as a `Webhook` does, each event becomes a separate task. If `to` has a
        `publish(events, deadline)` method, it is a `Transport` to a message broker. Each event becomes a separate row,
        and a worker publishes the rows in batches. Only an event that the broker refuses becomes a task: a dead letter,
        which is published again when it is redriven.

        Args:
            topics: Exact topics, or patterns such as ``order.*``.
            to: The destination: a `Webhook`, a `Transport`, or an object of your own with a `send` or `publish` method.
            name: The name of the relay, which is stored permanently.
            queue: For `send`: the queue for the relay's tasks. The queue can be limited and paused. None means a queue
                with the task's name.
            retry: For `send`: the policy for sending an event again after a failure. None means 20 attempts in about a
                day.
            on_dead_letter: For `send`: the effect on a partition key when one of its events becomes a dead letter. None
                or "release": the key's next event is sent. "hold": the next event waits until the dead letter is redriven
                or discarded.
            shards: For a broker: the number of shards (1 to 64). The shards are published at the same time, by one
                worker or by several, and each has its own connection to the broker. All events with the same partition
                key are in one shard.
            on_refused: For a broker: the effect on a partition key when one of its events is refused. "hold": the key's
                later events wait until the dead letter is redriven or discarded. "skip": the later events are
                published.
            timeout: For a broker: the time within which the broker has to confirm a batch, as a timedelta or seconds.

        Raises ConfigurationError if the outbox has no `source`, the name is already taken, or an option does not apply
        to this kind of destination, and InvalidArgument for an option that is out of range.
        """
        if not is_name(name):
            raise bad_name("name", f"relay {str(name)[:40]!r}")
        if self.source is None:
            raise ConfigurationError(
                f"relay {name!r} must name this application in its events: write Outbox(source='shop')"
            )
        if callable(getattr(to, "publish", None)):
            if not (queue is None and retry is None and on_dead_letter is None):
                raise ConfigurationError(
                    f"queue=, retry= and on_dead_letter= of relay {name!r} are only for objects with send(); for a broker, use "
                    "shards=, on_refused= or timeout= instead"
                )
            chosen = choice(OnRefused, on_refused, "on_refused")
            declared = NewRelay(name=name, topics=patterns_of(topics), shards=shards, on_refused=chosen)
            check_relay(declared)
            return self._relay_to_broker(to, declared, timeout=timeout)  # type: ignore[arg-type]
        if (shards, on_refused, timeout) != (1, OnRefused.HOLD, PUBLISH_TIMEOUT):
            raise ConfigurationError(
                f"shards=, on_refused= and timeout= of relay {name!r} are only for brokers; for an object with send(), use queue=, "
                "retry= or on_dead_letter= instead"
            )
        if not callable(getattr(to, "send", None)):
            raise ConfigurationError(
                f"to= of relay {name!r} takes a Webhook, a Transport, or an object with send() or publish(), not {to!r}"
            )
        task_name = task_of(name)
        options = TaskOptions(
            queue=task_name if queue is None else queue,
            on_dead_letter=choice(OnDeadLetter, on_dead_letter or OnDeadLetter.RELEASE, "on_dead_letter"),
        )
        check_options(options, f"relay {name!r}")
        endpoint: Endpoint = to  # type: ignore[assignment]

        def send(ctx: TaskContext, payload: object) -> None:
            del payload  # the stored text is sent, so that its numbers are not parsed and serialized again
            source = self.source
            assert source is not None
            try:
                endpoint.send(event_of(ctx, source))
            except EndpointGone as error:
                if ctx.queue != task_name:  # other tasks use this queue too, so only this event fails
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

    def _relay_to_broker(self, to: Transport, declared: NewRelay, *, timeout: timedelta | float) -> Task[..., Any]:
        assert self.source is not None
        name, limit = declared.name, duration(timeout, "timeout")
        if not timedelta(0) < limit <= _LONGEST:
            raise InvalidArgument(
                f"timeout of relay {name!r} must be greater than zero and at most a minute, not {timeout!r}"
            )
        options = TaskOptions(queue=task_of(name), on_dead_letter=declared.on_refused.of_dead_letters)
        relay = BrokerRelay(declared=declared, transport=to, source=self.source, timeout=limit, options=options)
        for other in self.tasks.relays.values():
            if other.transport is to:  # a transport serves one thread at a time
                relay.lock = other.lock

        def publish_again(ctx: TaskContext, emitted_at: datetime, payload: object) -> None:
            del payload  # the stored text is published, so that its numbers are not parsed and serialized again
            relay.publish_again(refused_event_of(ctx, relay.source, emitted_at))

        task: Task[..., Any] = ContextTask(
            publish_again, name=task_of(name), options=options, retry=_AGAIN, outbox=self
        )
        task.subscriptions = tuple(
            Subscription(topic=topic, task_name=task.name, parameter=None, **vars(options)) for topic in declared.topics
        )
        self.tasks.add(task)
        self.tasks.relays[name] = relay
        return task


def sync(store: Store, tasks: TaskRegistry, *, using: object = None) -> None:
    """Store the relays and the subscriptions of these tasks, and delete subscriptions that the tasks no longer declare.

    The relays are stored first, because an emit writes messages as soon as there are subscriptions. Both transactions
    are retried, because the database may be busy or restarting when a process starts, and no request is waiting for the
    process yet.
    """
    names = [task.name for task in tasks]
    with patience():
        store.relays.declare([one.declared for one in tasks.relays.values()], using=using)
        store.subscriptions.replace([one for task in tasks for one in task.subscriptions], tasks=names, using=using)


def event_of(ctx: TaskContext, source: str) -> CloudEvent:
    """Return the event that a relay's task sends."""
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


def refused_event_of(ctx: TaskContext, source: str, emitted_at: datetime) -> CloudEvent:
    """Return the event that a broker relay's dead letter contains."""
    _, _, stored = ctx.claim.args.partition('"payload":')
    event = event_of(ctx, source)
    return replace(event, time=emitted_at, data=stored.rpartition("}")[0].strip())
