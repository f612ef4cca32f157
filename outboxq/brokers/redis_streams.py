"""Redis Streams: publish with XADD, and receive through a consumer group."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..errors import ConfigurationError
from ..model.cloud_events import Body
from ..model.transports import Confirmed, Message, Outcome, Refused, SourceConnection, Unsure
from ..model.unknown_options import naming_fields
from .letters import Destination, Letter, checked_url, reason_of, text_of
from .transport import BrokerTransport, Publisher

if TYPE_CHECKING:
    import redis

_SCHEMES = ("redis", "rediss", "unix")
_BODY = b"body"
"""The entry field that contains the message body."""
_HEADER = "header:"
"""The name prefix of the fields that contain the event's headers."""
_HAS_IDMP = (8, 6)
"""The first Redis version that recognizes an id when a producer sends it again."""
_SIZE = "proto-max-bulk-len"
_MOST = 512 * 1024 * 1024
"""The default maximum size of a string, in bytes."""
_WRITE = 256 * 1024
"""The number of bytes that are written in one call. The last command may bring the total above this number."""
_LIMIT_EVERY = 0.05
"""Seconds between two reductions of the socket's timeout. Each reduction takes a system call."""
_LONGEST_BLOCK = 5.0
_TIMEOUT = 15.0
"""Seconds without an answer after which a receiving connection counts as lost. It must exceed `_LONGEST_BLOCK`."""


@naming_fields
@dataclass(frozen=True, kw_only=True, eq=False)
class RedisStreams(BrokerTransport):
    """A Redis server: streams that relays publish to, or a stream that a consumer group receives from.

    An event is confirmed when the server has added it to the stream. Whether the event is then on disk or on a replica
    depends on the server's settings. An event that is too large for the server, or whose stream is a key of another
    type, is refused.
    """

    _client_package, _extra, _destination_field = "redis", "redis", "stream"
    url: str = field(repr=False)  # it may contain the password
    """``redis://:password@host:6379/0``, ``rediss://`` or ``unix://``, with redis-py's options in its query."""
    stream: Destination = "{topic}"
    """The stream for an event, in which ``{topic}`` stands for its topic, or a function that returns the stream for an
    event. Missing streams are created.
    """
    max_length: int | None = None
    """The approximate length to which publishing trims the stream. Trimming deletes the oldest messages, even if nobody
    has read them. None means that nothing is deleted.
    """
    group: str | None = None
    """The consumer group to receive with. The group is created if it is missing, and begins with the oldest message."""
    claim_after: timedelta = timedelta(minutes=1)
    """The time after which this consumer takes over a message that another consumer has received but not acknowledged.
    """
    body: Body | str = Body.CLOUDEVENT
    _names: dict[int, str] = field(init=False, repr=False, default_factory=dict)
    """The consumer name in each process."""

    def _check(self) -> None:
        checked_url(self.url, _SCHEMES, "redis://:password@host:6379/0", "RedisStreams")
        if self.max_length is not None and self.max_length < 1:
            raise ConfigurationError(f"max_length of {self} must be at least 1, not {self.max_length!r}")
        if self.claim_after <= timedelta(0):
            raise ConfigurationError(f"claim_after of {self} must be greater than zero, not {self.claim_after!r}")

    def _new_publisher(self) -> _Publisher:
        return _Publisher(self)

    def __str__(self) -> str:
        parts = checked_url(self.url, _SCHEMES, "", "")
        name = f"the Redis stream {self.stream!r}" if isinstance(self.stream, str) else "the Redis stream of each event"
        return f"{name} at {parts.hostname or parts.path}"

    def connect(self) -> SourceConnection:
        """Return a new connection that receives from the stream."""
        if self.group is None or not isinstance(self.stream, str) or "{topic}" in self.stream:
            raise ConfigurationError(f"cannot receive from {self}; write RedisStreams(…, stream='NAME', group='GROUP')")
        name = self._names.setdefault(os.getpid(), f"outboxq-{uuid4()}")
        return _Consumer(self.client(_TIMEOUT), self.stream, self.group, name, self.claim_after)

    def client(self, seconds: float) -> redis.Redis:
        """Return a client with one connection. The client waits up to `seconds` for an answer, and does not retry
        commands.
        """
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        return redis.Redis.from_url(
            self.url,
            single_connection_client=True,
            socket_timeout=seconds,
            socket_connect_timeout=seconds,
            retry=Retry(NoBackoff(), 0),
            decode_responses=False,
        )


class _Publisher(Publisher[RedisStreams]):
    """A transport's connection, which is opened when it is needed."""

    _link: redis.Redis | None = None
    _has_idmp = False
    _most = _MOST
    """The size of the largest body that the server accepts. The server would close the connection if it received a
    larger one.
    """

    def _send(self, letters: Sequence[Letter], outcomes: list[Outcome | None], deadline: float) -> str:
        import redis

        try:
            self._add(letters, outcomes, deadline)
        except (redis.RedisError, OSError) as error:
            self.close()
            return reason_of(error)
        except BaseException:
            self.close()
            raise
        return "the server did not add the event"

    def _add(self, letters: Sequence[Letter], outcomes: list[Outcome | None], deadline: float) -> None:
        """Add the letters, which are sent together. A letter that fails does not stop the others, because no two of
        them have the same key.
        """
        connection: Any = self._connected(deadline).connection
        small = [letter for letter in letters if len(letter.body) <= self._most]
        for letter in letters if len(small) < len(letters) else ():
            if len(letter.body) > self._most:
                reason = f"the event is {len(letter.body)} bytes long, but the server accepts at most {self._most} (proto-max-bulk-len)"
                outcomes[letter.number] = Refused(reason)
        _limit(connection, deadline)
        connection.send_packed_command(_parts(map(self._command, small)))
        limited_at = time.monotonic()
        for letter in small:
            if (now := time.monotonic()) >= limited_at + _LIMIT_EVERY:
                limited_at = now
                _limit(connection, deadline)
            outcomes[letter.number] = _answer(connection)

    def _command(self, letter: Letter) -> bytes:
        """Return the XADD command in the Redis protocol. redis-py would take three times as long as this method
        to encode it.
        """
        event = letter.event
        options = [b"IDMP", event.source.encode(), letter.identity.encode()] if self._has_idmp else []
        if self._place.max_length is not None:
            options += (b"MAXLEN", b"~", b"%d" % self._place.max_length)
        fields = [_BODY, letter.body]
        for name, value in letter.headers.items():
            fields += (f"{_HEADER}{name}".encode() if name in event.headers else name.encode(), value.encode())
        return _command(b"XADD", letter.to.encode(), *options, b"*", *fields)

    def _connected(self, deadline: float) -> redis.Redis:
        """Return the client. If it is not connected, connect it first."""
        import redis

        if self._link is None:
            self._link = client = self._place.client(max(0.001, deadline - time.monotonic()))
            with suppress(redis.ResponseError):  # the user may lack the permission
                version = client.info("server").get("redis_version", "0")
                self._has_idmp = tuple(map(int, re.findall(r"\d+", str(version))[:2])) >= _HAS_IDMP
            with suppress(redis.ResponseError):  # managed servers do not reveal this setting
                self._most = int(client.config_get(_SIZE).get(_SIZE) or _MOST)
        return self._link


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(words), b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words]))


def _parts(commands: Iterable[bytes]) -> list[bytes]:
    """Return the commands in parts, each of which is written in one call."""
    parts: list[bytes] = []
    some: list[bytes] = []
    size = 0
    for command in commands:
        some.append(command)
        size += len(command)
        if size >= _WRITE:
            parts.append(b"".join(some))
            some, size = [], 0
    return [*parts, b"".join(some)] if some else parts


def _answer(connection: Any) -> Outcome:
    """Return the outcome that the server's next answer describes."""
    import redis

    try:
        connection.read_response()
    except redis.ResponseError as error:
        return Refused(reason_of(error)) if "WRONGTYPE" in str(error) else Unsure(reason_of(error))
    return Confirmed()


def _limit(connection: Any, deadline: float) -> None:
    """Make the next read or write fail at the deadline, because redis-py has only a fixed timeout for each read."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the server did not answer in time")
    if connection._sock is not None:  # noqa: SLF001
        connection._sock.settimeout(left)  # noqa: SLF001


class _Consumer:
    """A connection that receives from a stream, as one consumer in a group."""

    def __init__(self, client: redis.Redis, stream: str, group: str, name: str, claim_after: timedelta) -> None:
        import redis

        self._client, self._stream, self._group, self._name = client, stream, group, name
        self._claim_after = claim_after.total_seconds()
        self._claim_at = 0.0
        self._claim_from: Any = "0-0"
        self._own_from: Any = "0"
        """The id after which to read the messages that an earlier connection received but did not acknowledge; None
        once all of them have been read.
        """
        try:
            client.xgroup_create(stream, group, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                self.close()
                raise

    def receive(self, limit: int, deadline: float) -> Sequence[Message]:
        if self._own_from is not None:
            found = self._read(self._own_from, limit)
            self._own_from = found[-1].tag if found else None
            if found:
                return found
        if time.monotonic() >= self._claim_at and (claimed := self._claim(limit)):
            return claimed
        while True:
            left = min(_LONGEST_BLOCK, self._claim_after, deadline - time.monotonic())
            if (found := self._read(">", limit, max(1, int(left * 1000)))) or time.monotonic() >= deadline:
                return found

    def acknowledge(self, messages: Sequence[Message]) -> None:
        if messages:
            self._client.xack(self._stream, self._group, *(one.tag for one in messages))

    def close(self) -> None:
        with suppress(Exception):
            self._forget_consumer()
        with suppress(Exception):
            self._client.close()

    def _read(self, after: Any, limit: int, block: int | None = None) -> list[Message]:
        found: Any = self._client.xreadgroup(self._group, self._name, {self._stream: after}, count=limit, block=block)
        pairs = found.items() if isinstance(found, dict) else found or ()
        return self._messages(entry for _, entries in pairs for entry in _flat(entries))

    def _claim(self, limit: int) -> list[Message]:
        """Take over messages that a dead consumer has not acknowledged. Once all messages have been checked, the next
        search starts after a quarter of `claim_after`.
        """
        least, start = int(self._claim_after * 1000), self._claim_from
        answer: Any = self._client.xautoclaim(self._stream, self._group, self._name, least, start, count=limit)
        self._claim_from = answer[0]
        if self._claim_from in {b"0-0", "0-0"}:
            self._claim_at = time.monotonic() + self._claim_after / 4
        return self._messages(entry for entry in answer[1] if entry[0] is not None)

    def _messages(self, entries: Any) -> list[Message]:
        return [self._message(key, values) for key, values in entries if values]

    def _message(self, key: bytes, values: Any) -> Message:
        fields = dict(values) if isinstance(values, Mapping) else dict(zip(values[::2], values[1::2], strict=True))
        named = {text_of(name): value for name, value in fields.items()}
        body = named.pop(_BODY.decode(), None)
        texts = {name.removeprefix(_HEADER): text_of(value) for name, value in named.items()}
        return Message(
            body=json.dumps(texts).encode() if body is None else body,
            headers={} if body is None else texts,
            id=text_of(key),
            type=self._stream,
            source=self._stream,
            tag=key,
        )

    def _forget_consumer(self) -> None:
        """Remove the consumer from the group, unless messages are waiting for its acknowledgement."""
        waiting: Any = self._client.xpending_range(self._stream, self._group, "-", "+", 1, consumername=self._name)
        if not waiting:
            self._client.xgroup_delconsumer(self._stream, self._group, self._name)


def _flat(entries: Any) -> Any:
    """Return the entries. With RESP3, redis-py wraps them in another list."""
    return entries[0] if entries and isinstance(entries[0], list) else entries
