"""Receivers, which turn each message from a broker into one task, and the inbox, which accepts each message once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from typing import Any

from ..context import TaskContext
from ..errors import ConfigurationError, InvalidArgument, InvalidCall, InvalidTarget, MessageUnreadable, PayloadError
from ..integration.ambient import CURRENT, OutboxRef, resolve_target
from ..model import TaskOptions, duration
from ..model.cloud_events import ReceivedEvent, read_event
from ..model.options import bad_span, is_name, is_span
from ..model.records import NewTask
from ..model.transports import Message, Source
from ..model.uuid7 import uuid7
from ..payload.parameters import dump_payload
from ..retry import RetryPolicy
from ..store.messages.inbox import KEPT, Arrival
from ..webhooks import WebhookSource
from .registry import Receiver, TaskRegistry
from .results import AwaitedResults
from .task import ContextTask, Task, subscriptions_of

UNREADABLE = "outboxq.unreadable_message"
"""The name of the task that keeps a message that could not become a task."""


class Receivers(AwaitedResults):
    """An Outbox's receivers."""

    task: Any
    """`Outbox.task`, which declares a function as a task."""

    def receive(
        self,
        topics: str | Sequence[str],
        /,
        *,
        source: Source | WebhookSource,
        keep: timedelta | float = KEPT,
        **options: Any,
    ) -> Callable[[Callable[..., Any]], Task[..., Any]]:
        """Declare a function as a task for the messages from another program: ``@outbox.receive("billing.*", source=…)``.

        Workers receive the messages from a broker, and `receive_webhook` receives the messages from a `WebhookSource`.
        Each message becomes exactly one task of this receiver. The task is enqueued in the transaction that writes the
        message's row in the inbox; then the message is acknowledged. A message that arrives again is acknowledged and
        dropped. The function gets the payload as its only argument, as with `subscribe`. `ctx.headers` contains the
        event's headers and attributes: ``ce_id``, ``ce_source``, ``ce_type``. A message's `partitionkey` attribute
        becomes the task's partition key.

        A message that cannot be read, or whose topic none of the source's receivers accepts, is kept as a dead letter.

        Args:
            topics: Exact topics (the `type` of a CloudEvent), or patterns such as ``billing.*``.
            source: The place in the broker, such as a `RabbitMQ` with a queue, or a `WebhookSource`. Several receivers
                may share one object; each of them then gets its own task for a message.
            keep: The minimum time for which the inbox remembers a message. It must be longer than the period in which
                the message can be delivered again.
            options: The options of `task`, except `subscribe`.

        Raises the same exceptions as `task`, and ConfigurationError for a function that cannot take a payload and for a
        source from which nothing can be received.
        """
        if not isinstance(source, WebhookSource) and not callable(getattr(source, "connect", None)):
            raise ConfigurationError(
                f"source= of receive() takes a WebhookSource, or an object with connect(), such as RabbitMQ, not {source!r}"
            )
        if "subscribe" in options:
            raise InvalidCall(
                "receive() does not take subscribe=; declare another task for this application's own events"
            )
        if not is_span(kept := duration(keep, "keep"), timedelta(microseconds=1)):
            raise bad_span("keep", "receive()")

        def declare(function: Callable[..., Any]) -> Task[..., Any]:
            task: Task[..., Any] = self.task(**options)(function)
            found = subscriptions_of(task, topics)
            if not found:
                raise ConfigurationError(f"{task.name}: receive() needs a topic, or the pattern '*' for all messages")
            self.tasks.add_receiver(Receiver(task=task, source=source, topics=found, keep=kept))
            self.tasks.built_in.setdefault(UNREADABLE, _unreadable_task(task.outbox))
            return task

        return declare

    def receive_webhook(
        self,
        headers: Mapping[str, str],
        body: bytes,
        *,
        source: WebhookSource | None = None,
        using: object = None,
    ) -> int:
        """Verify a webhook, enqueue its tasks, and return the number of new tasks: 0 for a webhook that has arrived
        before.

        When this method returns, the tasks are committed; respond with status 204. A webhook that cannot be read is
        kept as a dead letter, and counts as a task. In a framework, use the functions in `outboxq.contrib`, which do
        this for you.

        Args:
            headers: The request's headers, with names in upper or lower case.
            body: The request's body, byte for byte as it arrived.
            source: The sender. None means this outbox's only `WebhookSource`.
            using: A transaction, as for a task; commit it before you respond. None means a separate transaction.

        Raises WebhookInvalid for a request that must be refused with the error's `status`, and ConfigurationError for a
        source without a receiver. Both errors are raised before anything is written. After any other error, the sender
        must send the webhook again, so respond with a status from 500 to 599.
        """
        known, receivers = _webhooks_of(self.tasks, source)
        message = known.verify(headers, body)
        return self.store.inbox.receive(Reader(known, receivers).read(message), using=using)


class Reader:
    """Turns the messages from a source into tasks."""

    def __init__(self, source: Source | WebhookSource, receivers: Sequence[Receiver]) -> None:
        self._source, self._receivers = source, receivers

    @property
    def task_names(self) -> tuple[str, ...]:
        """The names of the tasks that the source's messages become."""
        return tuple(sorted(one.task.name for one in self._receivers))

    def read(self, message: Message) -> list[Arrival]:
        """Return the tasks for the message or, if it cannot be read, the task that keeps it."""
        try:
            return self.arrivals(message)
        except MessageUnreadable as error:
            return [self._kept(message, str(error))]

    def arrivals(self, message: Message) -> list[Arrival]:
        """Return the tasks for the message, one for each of its receivers. Raises MessageUnreadable."""
        event = read_event(message.body, message.headers, id=message.id, source=message.source, type=message.type)
        for name, value in (("id", event.id), ("type", event.type), ("source", event.source)):
            if not is_name(value) and (value or name != "source"):
                raise MessageUnreadable(f"the event's {name} has more than 200 characters or contains NUL")
        found = [one for one in self._receivers if one.takes(event.type)]
        if not found:
            raise MessageUnreadable(f"no receiver of this source subscribes to the topic {event.type!r}")
        try:
            dump_payload(json.loads(event.data), name=f"event {event.type!r}")  # checks its depth and its size
            return [_arrival(one, event) for one in found]
        except (PayloadError, InvalidArgument, RecursionError) as error:
            raise MessageUnreadable(str(error)) from None

    def _kept(self, message: Message, reason: str) -> Arrival:
        """Return the task that keeps the message and fails with the reason. The message may lack an id, so its body and
        the attributes in its headers identify it too.
        """
        source = _storable(str(self._source))
        given = {name: getattr(message, name) for name in ("id", "type", "source")}
        fields: dict[str, Any] = {name: None if text is None else _storable(text) for name, text in given.items()}
        fields["headers"] = {_storable(name): _storable(value) for name, value in message.headers.items()}
        fields["body"] = _storable(message.body.decode(errors="backslashreplace"))
        args = {"source": source, "reason": _storable(reason), "message": fields}
        options = self._receivers[0].task.options
        shared = {**vars(TaskOptions(queue=options.queue)), "task_name": UNREADABLE}
        task = NewTask.of(shared, uuid7(), json.dumps(args, ensure_ascii=False))
        own = "".join(f"{message.headers[name]} " for name in ("ce_id", "ce_source") if name in message.headers)
        digest = sha256(f"{source} {message.id} {own}".encode(errors="replace") + message.body).hexdigest()
        return Arrival(consumer=UNREADABLE, source="", message_id=digest, keep=KEPT, task=task)


def _webhooks_of(tasks: TaskRegistry, source: WebhookSource | None) -> tuple[WebhookSource, list[Receiver]]:
    """Return the source with its receivers. Raises ConfigurationError."""
    found = [(one, several) for one, several in tasks.receivers if isinstance(one, WebhookSource)]
    if source is not None:
        found = [pair for pair in found if pair[0] is source]
    if not found:
        raise ConfigurationError(
            f"no task receives {source or 'webhooks'}; declare one with @outbox.receive(topics, source=WebhookSource(…)), and "
            "import its module"
        )
    if len(found) > 1:
        raise ConfigurationError("several programs send webhooks to this outbox; name one of them with source=")
    return found[0]


def _arrival(receiver: Receiver, event: ReceivedEvent) -> Arrival:
    """Return one receiver's task. Raises InvalidArgument."""
    own = {"ce_id": event.id, "ce_source": event.source, "ce_type": event.type}
    try:
        bound = receiver.task.using(partition_key=event.partition_key, headers={**event.headers, **own})
    except InvalidArgument:  # the event's headers are too large or have reserved names
        bound = receiver.task.using(partition_key=event.partition_key, headers=own)
    args = f"{{{json.dumps(receiver.topics[0].parameter)}:{event.data}}}"
    return Arrival(
        consumer=receiver.task.name,
        source=event.source,
        message_id=event.id,
        keep=receiver.keep,
        task=bound.planned_as(args, topic=event.type),
    )


def _storable(text: str) -> str:
    """Return the text in a form that every database can store."""
    return text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


def _unreadable_task(outbox: OutboxRef) -> Task[..., Any]:
    """Return the task that keeps a message. The task fails immediately; when redriven, it reads the message again."""

    def unreadable_message(ctx: TaskContext, source: str, reason: str, message: dict[str, Any]) -> None:
        again = Message(**{**message, "body": message["body"].encode()})
        for known, receivers in ctx.outbox.tasks.receivers:
            if str(known) == source:
                with suppress(MessageUnreadable):  # the new reason may differ, because the text differs from the bytes
                    outbox.store.inbox.receive(Reader(known, receivers).arrivals(again))
                    return
        raise MessageUnreadable(reason)

    return ContextTask(
        unreadable_message, name=UNREADABLE, options=TaskOptions(), retry=RetryPolicy(max_attempts=1), outbox=outbox
    )


class Inbox:
    """The messages that consumers in this application have accepted. Each consumer accepts a message once."""

    def __init__(self, outbox: OutboxRef) -> None:
        self._outbox = outbox

    def accept(
        self,
        consumer: str,
        message_id: str,
        *,
        source: str = "",
        keep: timedelta | float = KEPT,
        using: object = CURRENT,
    ) -> bool:
        """Record, in the transaction that `using` specifies, that the consumer has this message. Return False if the
        consumer already had the message.

        The transaction must also contain what the consumer does with the message. That work then takes effect only
        once, no matter how often the message arrives. If the transaction is rolled back, the message is not accepted,
        and is handled when it arrives again. If another transaction is accepting the message, the call waits until that
        transaction ends.

        Args:
            consumer: The name of the part of the application that handles the message. Several consumers of the same
                message each accept it once.
            message_id: The id that the message keeps when it is delivered again, such as the CloudEvents `id`.
            source: The program that chose the id, such as the CloudEvents `source`. Two programs may use the same ids.
            keep: The minimum time for which the message is remembered: a timedelta or seconds. It must be longer than
                the period in which the message can arrive again. After that time, `prune` forgets the message.
            using: The Session or connection that owns the transaction, as in `Task.using`. If it is omitted, the current
                transaction of the task or the framework is used.

        Raises InvalidArgument for a value that is out of range, and InvalidTarget if there is no transaction to write in.
        """
        what = f"inbox.accept({consumer!r})"
        if using is self._outbox:
            raise InvalidTarget(
                f"{what}: a message must be accepted in the same transaction as the work that it causes; otherwise, "
                "the message is lost if that work fails; write using=session with the session or connection that owns the transaction"
            )
        with resolve_target(self._outbox, using, what, is_option=True) as target:
            return self._outbox.store.inbox.accept(consumer, message_id, source=source, keep=keep, using=target)
