"""NATS JetStream: publish with message ids, and receive through a durable pull consumer."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ConfigurationError
from ..model.cloud_events import Body
from ..model.transports import Confirmed, Message, Outcome, Refused, SourceConnection, Unsure
from ..model.unknown_options import naming_fields
from .letters import Destination, Letter, checked_url, reason_of
from .transport import BrokerTransport, Publisher

if TYPE_CHECKING:
    import nats.aio.client
    import nats.aio.msg
    import nats.js

R = TypeVar("R")

_SCHEMES = ("nats", "tls", "ws", "wss")
_ID = "Nats-Msg-Id"
_STATUS, _RENAMED = "Status", "Status of the message"
_STATUS_LINE = b"NATS/1.0 "
"""The beginning of the headers of a message in which the server reports a status."""
_BAD_REQUEST, _ROLLUP_FAILED = 400, 10111
"""The codes of errors that would recur on every attempt. One is for an event that the stream does not accept, for
example because it is too large or has a `Nats-Expected-…` header. The other is for a `Nats-Rollup` header that the
stream does not permit.
"""
_CLOSE_TIMEOUT = 2.0
_CONNECT_TIMEOUT = 10.0
_LOST_AFTER = 0.1
"""Seconds between two checks for a lost connection while waiting for answers."""
_CHECK_EVERY = 5.0
"""Seconds between two checks that the consumer exists, while no messages arrive."""
_ENOUGH = 0.1
"""The wait for answers ends at most this many seconds before the deadline, so that the answers that have arrived are
recorded.
"""
_SUBJECT = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_HEADER = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""The name of a header that nats-py sends."""
_UNSENDABLE = re.compile(r"[\x00-\x1f\x7f]")
"""Characters that would end a header."""


@naming_fields
@dataclass(frozen=True, kw_only=True, eq=False)
class NatsJetStream(BrokerTransport):
    """A NATS server with JetStream: subjects that relays publish to, or a stream that messages are received from.

    Streams must exist. An event is confirmed when a stream has stored it. An event that is too large, or whose subject
    does not belong to any stream, is refused. The message id consists of the event's id, the kind of the body and the
    subject, so a stream drops a duplicate within its duplicate window.
    """

    _client_package, _extra, _destination_field, prefix = "nats", "nats", "subject", "ce-"
    servers: str | Sequence[str] = field(repr=False)  # they may contain a password
    """The URLs of the servers in one cluster: ``nats://user:password@host:4222``."""
    subject: Destination = "{topic}"
    """The subject for an event, in which ``{topic}`` stands for its topic, or a function that returns the subject for
    an event.
    """
    stream: str | None = None
    """The stream to receive from."""
    durable: str | None = None
    """The name of the durable consumer to receive with. The consumer is created if it is missing, and begins with the
    oldest message.
    """
    body: Body | str = Body.CLOUDEVENT
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # they may contain a password
    """More arguments for ``nats.connect``, such as ``{"user_credentials": PATH}``."""

    def _check(self) -> None:
        for url in self.urls or ("",):
            checked_url(url, _SCHEMES, "nats://user:password@host:4222", "NatsJetStream")

    def _new_publisher(self) -> _Publisher:
        return _Publisher(self)

    def __str__(self) -> str:
        hosts = ", ".join(str(checked_url(url, _SCHEMES, "", "").hostname) for url in self.urls)
        place = f"the NATS stream {self.stream!r}" if self.stream else f"the NATS subject {self.subject!r}"
        return f"{place if isinstance(self.subject, str) else 'the NATS subject of each event'} at {hosts}"

    @property
    def urls(self) -> list[str]:
        """The server URLs."""
        return [self.servers] if isinstance(self.servers, str) else list(self.servers)

    def connect(self) -> SourceConnection:
        """Return a new connection that receives from the stream."""
        if self.stream is None or self.durable is None:
            raise ConfigurationError(
                f"cannot receive from {self}; write NatsJetStream(…, stream='NAME', durable='CONSUMER')"
            )
        return _Consumer(self, self.stream, self.durable)


class _Link:
    """A connection on an event loop in a thread, because nats-py supports only asyncio."""

    def __init__(self, place: NatsJetStream, deadline: float) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="outboxq-nats", daemon=True)
        self._thread.start()
        self._client: nats.aio.client.Client | None = None
        self.fault = ""
        """The last connection error."""
        try:
            self.client = self.do(self._connect(place, deadline), deadline)
            self.stream = _passing_errors_on(self.client.jetstream())
            """The JetStream context. The context is created once per connection, because each context subscribes to its
            answers when it first publishes.
            """
        except BaseException:
            self.close()
            raise

    @property
    def is_usable(self) -> bool:
        return self._client is not None and self._client.is_connected

    def do(self, work: Coroutine[Any, Any, R], deadline: float) -> R:
        """Run the coroutine in the thread, and return its result. Raises TimeoutError at the deadline."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            future.cancel()
            raise TimeoutError(self.fault or "the server did not answer in time") from None

    def close(self) -> None:
        """Close the connection and end the thread."""
        if self._loop.is_closed():
            return
        with suppress(Exception):
            self.do(self._close(), time.monotonic() + _CLOSE_TIMEOUT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_TIMEOUT)
        if not self._thread.is_alive():
            self._loop.close()

    async def _connect(self, place: NatsJetStream, deadline: float) -> nats.aio.client.Client:
        from nats.aio.client import Client

        async def note(error: Exception) -> None:
            self.fault = reason_of(error)

        left = max(0.001, deadline - time.monotonic())
        given = {
            "name": "outboxq",
            "allow_reconnect": False,
            "error_cb": note,
            "connect_timeout": left,
            **place.options,
        }
        client = Client()
        self._client = client
        await client.connect(place.urls, **given)
        return client

    async def _close(self) -> None:
        if self._client is not None:
            with suppress(Exception):
                await asyncio.wait_for(self._client.close(), _CLOSE_TIMEOUT / 2)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


class _Publisher(Publisher[NatsJetStream]):
    """A transport's connection, which is opened when it is needed."""

    _link: _Link | None = None

    def _send(self, letters: Sequence[Letter], outcomes: list[Outcome | None], deadline: float) -> str:
        try:
            if self._link is not None and not self._link.is_usable:
                self.close()
            if self._link is None:
                self._link = _Link(self._place, deadline)
            until = deadline - min(_ENOUGH, (deadline - time.monotonic()) / 10)
            self._link.do(_publish(self._link, letters, outcomes, until), deadline)
            return self._link.fault or "the server did not answer in time"
        except Exception as error:  # noqa: BLE001 - the client raises its own errors and asyncio's
            return reason_of(error)

    def _fault_of(self, letter: Letter) -> str:
        if not _SUBJECT.fullmatch(letter.to):
            return f"{letter.to!r} is not a subject that can be published to"
        for name, value in letter.headers.items():
            if _UNSENDABLE.search(f"{name}{value}") or not _HEADER.fullmatch(name.strip()):
                return f"the header {name!r} cannot be sent"
        return ""


def _passing_errors_on(context: nats.js.JetStreamContext) -> nats.js.JetStreamContext:
    """Make the context end the wait for an answer if the answer is an error. nats-py raises the error where it reads
    the answer, so the wait for the answer would otherwise never end.
    """
    from nats.js.errors import APIError

    read = context._handle_async_reply  # noqa: SLF001

    async def read_or_fail(msg: nats.aio.msg.Msg) -> None:
        try:
            await read(msg)
        except APIError as error:
            for token, future in list(context._publish_async_futures.items()):  # noqa: SLF001
                if msg.subject.endswith(token) and not future.done():
                    future.set_exception(error)

    context._handle_async_reply = read_or_fail  # type: ignore[method-assign]  # noqa: SLF001
    return context


async def _publish(link: _Link, letters: Sequence[Letter], outcomes: list[Outcome | None], deadline: float) -> None:
    """Send the letters in order, and record the answers that arrive by the deadline."""
    import nats.js.errors

    stream, most = link.stream, link.client.max_payload
    answers: list[tuple[Letter, asyncio.Future[Any]]] = []
    for letter in letters:
        headers = {**letter.headers, "content-type": letter.content_type, _ID: letter.identity}
        # A larger message would make the server close the connection. If the client refused it instead, the message
        # would continue to count as waiting for an answer.
        if (size := len(letter.body) + _size(headers)) > most:
            outcomes[letter.number] = Refused(
                f"the event is {size} bytes long with its headers, but the server accepts at most {most}"
            )
            continue
        answers.append((letter, await stream.publish_async(letter.to, letter.body, headers=headers)))
    left: Collection[asyncio.Future[Any]] = [answer for _, answer in answers]
    # nats-py does not end the wait for an answer when the connection is lost.
    while left and link.is_usable and (seconds := deadline - time.monotonic()) > 0:
        _, left = await asyncio.wait(left, timeout=min(_LOST_AFTER, seconds))
    for letter, answer in answers:
        if not answer.done():
            continue
        try:
            answer.result()
        except nats.js.errors.NoStreamResponseError:
            outcomes[letter.number] = await _without_stream(stream, letter.to)
        except nats.js.errors.APIError as error:
            is_final = error.code == _BAD_REQUEST or error.err_code == _ROLLUP_FAILED
            outcomes[letter.number] = (Refused if is_final else Unsure)(reason_of(error.description))
        else:
            outcomes[letter.number] = Confirmed()


def _size(headers: Mapping[str, str]) -> int:
    """Return the size of the headers in the protocol, in bytes: a line for the version, one for each header, and an
    empty line.
    """
    lines = ["NATS/1.0", *(f"{name.strip()}: {value.strip()}" for name, value in headers.items()), ""]
    return sum(len(line.encode()) + 2 for line in lines)


async def _without_stream(stream: nats.js.JetStreamContext, subject: str) -> Outcome:
    """Return the outcome for an event that no stream has acknowledged: no stream has its subject, or the stream has no
    leader at the moment.
    """
    import nats.js.errors

    try:
        name = await stream.find_stream_name_by_subject(subject)
    except nats.js.errors.NotFoundError:
        return Refused(f"no stream has the subject {subject!r}")
    except Exception as error:  # noqa: BLE001 - JetStream itself does not answer
        return Unsure(reason_of(error))
    return Unsure(f"the stream {name!r} is not answering at the moment")


class _Consumer:
    """A connection that receives through a durable consumer."""

    def __init__(self, place: NatsJetStream, stream: str, durable: str) -> None:
        deadline = time.monotonic() + _CONNECT_TIMEOUT
        self._stream, self._durable = stream, durable
        self._check_at = time.monotonic() + _CHECK_EVERY
        self._most = sys.maxsize
        """The consumer's `max_ack_pending`. A request for more messages would wait until its deadline, although no more
        can arrive.
        """
        self._link = _Link(place, deadline)
        try:
            self._subscription = self._link.do(self._subscribe(), deadline)
        except BaseException:
            self.close()
            raise

    async def _subscribe(self) -> nats.js.JetStreamContext.PullSubscription:
        from nats.js.api import AckPolicy, ConsumerConfig
        from nats.js.errors import NotFoundError

        context, stream, durable = self._link.stream, self._stream, self._durable
        _renaming_status(self._link.client)
        try:
            found = await context.consumer_info(stream, durable)
        except NotFoundError:
            new = ConsumerConfig(durable_name=durable, ack_policy=AckPolicy.EXPLICIT)
            found = await context.add_consumer(stream, new)
        self._note(found)
        return await context.pull_subscribe_bind(consumer=durable, stream=stream)

    def receive(self, limit: int, deadline: float) -> Sequence[Message]:
        if not self._link.is_usable:
            raise ConnectionError(self._link.fault or "the connection was lost")
        return self._link.do(self._fetch(limit, deadline), deadline + _CLOSE_TIMEOUT)

    async def _fetch(self, limit: int, deadline: float) -> list[Message]:
        try:
            seconds = max(0.01, deadline - time.monotonic())
            found = await self._subscription.fetch(min(limit, self._most), timeout=seconds)
        except TimeoutError:  # raised by the library, or by asyncio if the deadline passes in a later step
            await self._ensure_it_exists()
            return []
        return [_message(one) for one in found]

    def _note(self, info: nats.js.api.ConsumerInfo) -> None:
        most = info.config.max_ack_pending
        self._most = most if most and most > 0 else sys.maxsize

    async def _ensure_it_exists(self) -> None:
        """Check from time to time that the consumer exists, and raise an error if it was deleted, for example with its
        stream. Requests to a missing consumer merely time out. The next connection creates the consumer again.
        """
        if time.monotonic() >= self._check_at:
            self._note(await self._link.stream.consumer_info(self._stream, self._durable))
            self._check_at = time.monotonic() + _CHECK_EVERY

    def acknowledge(self, messages: Sequence[Message]) -> None:
        self._link.do(self._acknowledge([one.tag for one in messages]), time.monotonic() + _CONNECT_TIMEOUT)

    async def _acknowledge(self, arrived: Sequence[Any]) -> None:
        for one in arrived:
            await one.ack()
        await self._link.client.flush()

    def close(self) -> None:
        self._link.close()


def _renaming_status(client: nats.aio.client.Client) -> None:
    """Make the client rename a message's `Status` header. nats-py mistakes a message with this header for a server
    error, although the server reports its own status in the first line.
    """
    read = client._process_headers  # noqa: SLF001

    async def read_and_rename(headers: Any) -> dict[str, str] | None:
        found = await read(headers)
        if found and _STATUS in found and not headers.startswith(_STATUS_LINE):
            found[_RENAMED] = found.pop(_STATUS)
        return found

    client._process_headers = read_and_rename  # type: ignore[method-assign]  # noqa: SLF001


def _message(one: Any) -> Message:
    given = {_STATUS if name == _RENAMED else name: value for name, value in (one.headers or {}).items()}
    headers = {re.sub(r"^ce-", "ce_", name): value for name, value in given.items() if name != _ID}
    place = one.metadata
    # The time distinguishes the messages of a stream that was deleted and created again, which is numbered from 1.
    position = f"{place.stream}/{place.sequence.stream}/{place.timestamp.isoformat()}"
    return Message(
        body=one.data,
        headers=headers,
        id=(one.headers or {}).get(_ID) or position,
        type=one.subject,
        source=place.stream,
        tag=one,
    )
