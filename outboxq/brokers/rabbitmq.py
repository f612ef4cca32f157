"""RabbitMQ: publish with confirms in batches, and receive with manual acknowledgements."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..model.cloud_events import Body
from ..model.transports import Confirmed, Message, Outcome, Refused, SourceConnection, Unsure
from ..model.unknown_options import naming_fields
from .letters import Destination, Letter, checked_url, reason_of, text_of
from .transport import BrokerTransport, Publisher

if TYPE_CHECKING:
    import pika

_PREFIX = "cloudEvents_"
"""The prefix of attribute names in headers, as the AMQP binding of CloudEvents defines it."""
_ROUTING = ("CC", "BCC")
"""The names of headers that contain additional routing keys, as lists. The broker closes the channel if such a
header contains text instead of a list.
"""
_WRITE = 256 * 1024
"""The total size of the message bodies that are written in one call, in bytes. The last body may bring the total above
this size.
"""
_FRAME_EDGES = 8
"""The number of bytes that a frame adds to its content."""
_CLOSE_TIMEOUT = 2.0
"""Seconds within which the broker must answer when a connection is closed."""
_TOO_LARGE = re.compile(r"message size \d+ is larger than (?:configured )?max size (\d+)")


_thread = threading.local()
"""An object that has the attribute `is_quiet` in a thread while that thread works with an outboxq connection."""


@contextmanager
def _quietly() -> Iterator[None]:
    """Mark the thread as one that works with an outboxq connection."""
    before = getattr(_thread, "is_quiet", False)
    _thread.is_quiet = True
    try:
        yield
    finally:
        _thread.is_quiet = before


def _is_wanted(_: logging.LogRecord) -> bool:
    """Drop pika's log records about an outboxq connection, because outboxq itself reports a lost connection.

    pika's loggers also serve the application's connections. The loggers' levels, handlers and propagation are therefore
    left alone, and the records from other threads are kept. If the application has set the level of the `pika` logger,
    every record is kept.
    """
    return not getattr(_thread, "is_quiet", False) or logging.getLogger("pika").level != logging.NOTSET


def _add_filter() -> None:
    """Filter each of pika's loggers, because a logger's filter does not see the records of the loggers below it."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("pika."):
            logging.getLogger(name).addFilter(_is_wanted)  # logging adds the same filter only once


@naming_fields
@dataclass(frozen=True, kw_only=True, eq=False)
class RabbitMQ(BrokerTransport):
    """A RabbitMQ server: an exchange that relays publish to, or a queue that messages are received from.

    Exchanges and queues must already exist. Messages are persistent and mandatory. An event is confirmed when the
    broker has acknowledged its message. A message in a durable queue is then on disk, and a message in a quorum queue
    is on most of the queue's nodes. An event that is too large, or that is not routed to any queue, is refused.
    """

    _client_package, _extra, _destination_field, prefix = "pika", "rabbitmq", "routing_key", _PREFIX
    url: str = field(repr=False)  # it contains the password
    """``amqp://user:password@host/virtual-host``, or ``amqps://``, with pika's parameters in its query."""
    exchange: str = ""
    """The exchange to publish to. "" means the default exchange, whose routing keys are queue names."""
    routing_key: Destination = "{topic}"
    """The routing key for an event, in which ``{topic}`` stands for its topic, or a function that returns the key for
    an event.
    """
    queue: str | None = None
    """The queue to receive from."""
    body: Body | str = Body.CLOUDEVENT
    prefetch: int = 500
    """The maximum number of unacknowledged messages that the broker sends."""

    def _check(self) -> None:
        checked_url(self.url, ("amqp", "amqps"), "amqp://user:password@host/", "RabbitMQ")
        if not 1 <= self.prefetch <= 65_535:
            raise ConfigurationError(f"prefetch of {self} must be from 1 to 65535, not {self.prefetch!r}")

    def _new_publisher(self) -> _Publisher:
        return _Publisher(self)

    def __str__(self) -> str:
        place = f"queue {self.queue!r}" if self.queue else f"exchange {self.exchange!r}"
        return f"the RabbitMQ {place} at {checked_url(self.url, ('amqp', 'amqps'), '', '').hostname}"

    def connect(self) -> SourceConnection:
        """Return a new connection that receives from the queue."""
        if self.queue is None:
            raise ConfigurationError(f"cannot receive from {self}; write RabbitMQ(…, queue='NAME')")
        return _Consumer(self)

    @property
    def parameters(self) -> pika.URLParameters:
        """The connection parameters."""
        import pika

        _add_filter()
        parameters = pika.URLParameters(self.url)
        parameters.client_properties = {"connection_name": "outboxq"}
        return parameters


class _Publisher(Publisher[RabbitMQ]):
    """A transport's connection, which is opened when it is needed."""

    _link: _Link | None = None

    def _fault_of(self, letter: Letter) -> str:
        name = next((one for one in _ROUTING if one in letter.headers), None) if letter.headers else None
        return f"RabbitMQ reads the header {name!r} as routing keys; give it another name" if name else ""

    def _send(self, letters: Sequence[Letter], outcomes: list[Outcome | None], deadline: float) -> str:
        place = self._place
        if self._link is None or self._link.fault is not None:
            self._link = _Link(place.parameters)
        link = self._link
        batch = _Batch(outcomes, len(letters))
        if link.ready.wait(deadline - time.monotonic()) and link.fault is None:
            link.send(partial(link.publish, batch, letters, place.exchange), batch)
            batch.answered.wait(deadline - time.monotonic())
        with batch.lock:  # an answer that comes now is too late
            batch.is_over = True
            reason = link.fault or link.blocked or "the broker did not answer in time"
        if batch.left:
            link.abort()
            self._link = None
        return reason

    def _discard(self) -> None:
        """Keep the connection: `_send` has aborted it if an answer is missing, and a nack does not concern it."""


class _Batch:
    """Letters that are waiting for their answers."""

    def __init__(self, outcomes: list[Outcome | None], left: int) -> None:
        self.outcomes = outcomes
        self.left = left
        """The number of answers that are missing."""
        self.answered = threading.Event()
        """A `threading.Event` that is set when every answer has arrived, or when no more answers can arrive."""
        self.lock = threading.Lock()
        self.is_over = False

    def settle(self, number: int, outcome: Outcome) -> None:
        with self.lock:
            if not self.is_over and self.outcomes[number] is None:
                self.outcomes[number] = outcome
                self.left -= 1
        if not self.left:
            self.answered.set()


class _Link(threading.Thread):
    """A connection with its event loop in a thread, which also answers the broker's heartbeats.

    It replaces pika's blocking connection, which waits for each message's confirm before it sends the next one.
    """

    def __init__(self, parameters: pika.URLParameters) -> None:
        import pika

        super().__init__(name="outboxq-rabbitmq", daemon=True)
        self.ready = threading.Event()
        """A `threading.Event` that is set when the connection can be used, or when it is lost."""
        self.fault: str | None = None
        """The reason why the connection was lost."""
        self.blocked: str | None = None
        """The reason why the broker is not accepting messages at the moment."""
        self._channel: Any = None
        self._batch: _Batch | None = None
        self._letters: dict[int, Letter] = {}
        """The letters without an answer, keyed by their delivery tags."""
        self._sent = 0
        self._returned: dict[str, str] = {}
        """The reasons why messages were returned, keyed by message id."""
        self._closing = threading.Lock()
        """The lock that is held while the loop is called from outside, so that the loop is not closed in the meantime.
        """
        self._has_ended = False
        with _quietly():
            self._connection = pika.SelectConnection(
                parameters,
                on_open_callback=lambda connection: connection.channel(on_open_callback=self._on_channel),
                on_open_error_callback=self._lost,
                on_close_callback=self._lost,
            )
        self._connection.add_on_connection_blocked_callback(self._on_blocked)
        self._connection.add_on_connection_unblocked_callback(self._on_unblocked)
        self.start()

    @_quietly()
    def run(self) -> None:
        try:
            self._connection.ioloop.start()
        except Exception as error:  # noqa: BLE001 - whatever ends the loop ends the connection
            self._end(_cause(error))
        finally:
            self._end("the connection was closed")
            with self._closing:
                self._has_ended = True
                self._connection.ioloop.close()

    def send(self, work: Any, batch: _Batch | None = None) -> None:
        """Have the thread call `work`. If the connection is lost, notify the batch, unless it was already notified."""
        with self._closing:
            self._batch = batch or self._batch
            if not self._has_ended:
                self._connection.ioloop.add_callback_threadsafe(work)
            if batch is not None and self.fault is not None:
                batch.answered.set()

    def publish(self, batch: _Batch, letters: Sequence[Letter], exchange: str) -> None:
        """Send the letters. The thread calls this method."""
        frames: list[bytes] = []
        size = 0
        for letter in letters if self.fault is None else ():
            try:
                own = self._frames(letter, exchange)
            except Exception as error:  # noqa: BLE001 - the letter cannot be encoded, and no part of it was sent
                batch.settle(letter.number, Refused(f"the event cannot be sent: {reason_of(error)}"))
                continue
            self._sent += 1
            self._letters[self._sent] = letter
            frames += own
            size += len(letter.body)
            if size >= _WRITE:
                self._write(frames)
                frames, size = [], 0
        if frames:
            self._write(frames)

    def _frames(self, letter: Letter, exchange: str) -> list[bytes]:
        """Return the frames that publish the letter."""
        import pika

        event, channel = letter.event, self._channel.channel_number
        properties = pika.BasicProperties(
            content_type=letter.content_type,
            headers=letter.headers,
            delivery_mode=2,
            message_id=str(event.id),
            timestamp=int(event.time.timestamp()),
            type=event.type,
            app_id=event.source,
        )
        method = pika.spec.Basic.Publish(exchange=exchange, routing_key=letter.to, mandatory=True)
        body, most = letter.body, self._connection.params.frame_max - _FRAME_EDGES
        return [
            pika.frame.Method(channel, method).marshal(),
            pika.frame.Header(channel, len(body), properties).marshal(),
            *(pika.frame.Body(channel, body[at : at + most]).marshal() for at in range(0, len(body), most)),
        ]

    def _write(self, frames: Sequence[bytes]) -> None:
        """Write the frames in one call. For each message, pika's own method makes three system calls."""
        if not self._connection.is_open:
            self._end("the connection was closed")
        elif not self._channel.is_open:
            self._end("the channel was closed")
        else:
            self._connection._output_marshaled_frames([b"".join(frames)])  # noqa: SLF001

    def close(self) -> None:
        """Close the connection, or cut it if the broker does not answer."""
        self.send(self._close)
        self.join(_CLOSE_TIMEOUT)
        self.abort()

    def abort(self) -> None:
        """Cut the connection instead of closing it, because `close` waits for an answer from the broker."""
        self.send(partial(self._cut, ConnectionAbortedError("cut")))
        self.join(_CLOSE_TIMEOUT)

    def _close(self) -> None:
        if self._connection.is_open:
            self._connection.close()
        elif not self._connection.is_closing:  # pika closes the channel first
            self._cut(ConnectionAbortedError("closed"))

    def _cut(self, error: Exception) -> None:
        if self._connection.is_closed:
            self._connection.ioloop.stop()
        else:  # this calls `_lost`; pika's public methods offer only an orderly close
            self._connection._terminate_stream(error)  # noqa: SLF001

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self.ready.set())

    def _on_return(self, _: Any, returned: Any, properties: Any, __: Any) -> None:
        # A return comes before the confirm for the same message.
        self._returned[properties.message_id] = (
            f"the broker returned the event: {returned.reply_code} {returned.reply_text}"
        )

    def _on_confirm(self, frame: Any) -> None:
        answer, batch = frame.method, self._batch
        last, waiting = answer.delivery_tag, self._letters
        tags = list(takewhile(lambda tag: tag <= last, waiting)) if answer.multiple else [last]  # in ascending order
        for tag in tags:
            letter = waiting.pop(tag, None)
            if letter is None or batch is None:
                continue
            reason = self._returned.get(str(letter.event.id))
            if answer.NAME == "Basic.Nack":
                outcome: Outcome = Unsure("the broker could not store the event (nack)")
            else:
                outcome = Confirmed() if reason is None else Refused(reason)
            batch.settle(letter.number, outcome)
        if not waiting:
            self._returned.clear()

    def _on_channel_closed(self, _: Any, error: BaseException) -> None:
        if found := _TOO_LARGE.search(str(error)):
            most = int(found[1])
            for letter in self._letters.values():
                if self._batch is not None and len(letter.body) > most:
                    reason = f"the event is {len(letter.body)} bytes long, but the broker accepts at most {most}"
                    self._batch.settle(letter.number, Refused(reason))
        self._end(_cause(error))
        self._close()

    def _on_blocked(self, _: Any, frame: Any) -> None:
        self.blocked = f"the broker is not accepting messages at the moment: {frame.method.reason}"

    def _on_unblocked(self, *_: Any) -> None:
        self.blocked = None

    def _lost(self, connection: Any, error: BaseException) -> None:
        self._end(_cause(error))
        connection.ioloop.stop()

    def _end(self, reason: str) -> None:
        with self._closing:
            self.fault = self.fault or reason
            batch = self._batch
        self.ready.set()
        if batch is not None:
            batch.answered.set()


def _cause(error: BaseException) -> str:
    """Return the reason for an error. The error for a connection that could not be opened contains the errors from the
    individual attempts.
    """
    inner = next((one for one in error.args if isinstance(one, BaseException)), None)
    attempts = getattr(inner, "exceptions", None) or getattr(error, "exceptions", None)
    if attempts:
        return _cause(attempts[-1])
    inner = getattr(error, "exception", None) or inner
    return reason_of(error) if inner is None else _cause(inner)


class _Consumer:
    """A connection that receives from a queue."""

    @_quietly()
    def __init__(self, place: RabbitMQ) -> None:
        import pika

        assert place.queue is not None
        self._arrived: list[Message] = []
        self._is_cancelled = False
        self._connection = pika.BlockingConnection(place.parameters)
        try:
            self._channel = self._connection.channel()
            self._channel.basic_qos(prefetch_count=place.prefetch)
            self._channel.add_on_cancel_callback(self._on_cancel)
            self._channel.basic_consume(place.queue, self._on_message)
        except BaseException:
            self.close()
            raise

    @_quietly()
    def receive(self, limit: int, deadline: float) -> Sequence[Message]:
        self._connection.process_data_events(time_limit=0)
        while not self._arrived and (left := deadline - time.monotonic()) > 0:
            if self._is_cancelled:
                raise ConnectionError("the queue was deleted or has moved")
            self._connection.process_data_events(time_limit=left)
        taken, self._arrived = self._arrived[:limit], self._arrived[limit:]
        return taken

    @_quietly()
    def acknowledge(self, messages: Sequence[Message]) -> None:
        if messages:
            last: Any = messages[-1].tag
            self._channel.basic_ack(last, multiple=True)
            self._connection.process_data_events(time_limit=0)

    @_quietly()
    def close(self) -> None:
        with suppress(Exception):
            self._connection.close()

    def _on_cancel(self, *_: Any) -> None:
        self._is_cancelled = True

    def _on_message(self, _: Any, delivered: Any, properties: Any, body: bytes) -> None:
        headers = {
            re.sub(r"^cloudEvents[:_]", "ce_", text_of(name)): str(value)
            for name, value in (properties.headers or {}).items()
            if isinstance(value, str | int | float)
        }
        self._arrived.append(
            Message(
                body=body,
                headers=headers,
                id=None if properties.message_id is None else text_of(properties.message_id),
                type=text_of(properties.type or delivered.routing_key),
                source=text_of(properties.app_id or delivered.exchange),
                tag=delivered.delivery_tag,
            )
        )
