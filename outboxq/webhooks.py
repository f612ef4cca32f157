"""Webhooks: send signed events to an HTTP endpoint, and verify the events that arrive at your own endpoint.

The signatures follow Standard Webhooks (https://www.standardwebhooks.com).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from .errors import ConfigurationError, EndpointGone, EndpointRefused, InvalidArgument, WebhookFailed, WebhookInvalid
from .model import duration
from .model.cloud_events import Body, CloudEvent
from .model.options import bad_name, bad_span, is_name, is_span
from .model.transports import Message

TOLERANCE = timedelta(minutes=5)
"""The maximum difference, in either direction, between a webhook's signing time and its arrival time."""
_LONGEST_WAIT = timedelta(days=1)
"""The maximum wait that is accepted from a `Retry-After` header."""
_PREFIX = "whsec_"
_LEAST_KEY, _MOST_KEY = 24, 64
_READ_AT_MOST = 65_536
"""The maximum number of bytes to read from a response. Only the response's status matters."""
_TRACE = frozenset({"traceparent", "tracestate"})
_NAT64 = IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = IPv6Network("2000::/3")
"""The only IPv6 addresses that are public. Python treats other addresses, such as site-local ones, as global too."""
_NOT_PUBLIC = (ip_network("192.0.0.0/24"), ip_network("168.63.129.16/32"))
"""Networks that Python may treat as global: IETF protocol assignments, and Azure's host service."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Webhook:
    """Another program's HTTP endpoint, to which events are sent."""

    url: str = field(repr=False)  # its path may be a secret
    """An https URL. A user name or password in the URL is refused, and redirects are not followed."""
    secret: str | Sequence[str] = field(repr=False)
    """The secret that signs each event: ``whsec_`` followed by 24 to 64 bytes in base64. While the secret is being
    rotated, give both the new and the old one; each event then has two signatures.
    """
    timeout: timedelta | float = timedelta(seconds=10)
    """The time within which the endpoint must respond, from the start of the connection to the end of the response."""
    body: Body | str = Body.CLOUDEVENT
    allowed_networks: Sequence[str] = ()
    """Networks that are not public but may contain the endpoint, such as ``10.1.0.0/16``."""
    allow_http: bool = False
    """Accept an ``http`` URL. Events are then sent without encryption."""
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    """The TLS settings, for example for a private certificate authority. None means Python's defaults."""

    def __post_init__(self) -> None:
        """Raise InvalidArgument or ConfigurationError for a webhook that can never be sent."""
        if not _is_url(self.url):
            raise ConfigurationError(
                "a webhook needs a URL such as https://crm.example/hooks, in ASCII and without spaces; encode other characters"
            )
        keys_of(self.secret)
        if self.seconds <= 0:
            raise InvalidArgument(f"timeout of {self} must be greater than zero")
        if self.body not in list(Body):
            raise InvalidArgument(f"body of {self} must be one of {', '.join(Body)}, not {self.body!r}")
        self._networks()
        parts = urlsplit(self.url)
        if parts.username is not None or parts.password is not None:
            raise ConfigurationError(
                f"the URL of {self} contains a user name or a password; remove them, because the signature authenticates the sender"
            )
        if parts.scheme == "http" and not self.allow_http:
            raise ConfigurationError(f"the URL of {self} does not use encryption; use https, or set allow_http=True")

    def __str__(self) -> str:
        return f"the webhook to {urlsplit(self.url).hostname}"

    @property
    def seconds(self) -> float:
        """The timeout in seconds."""
        return duration(self.timeout, "timeout").total_seconds()

    def send(self, event: CloudEvent) -> None:
        """Send the event once, and return when the endpoint answers with a status from 200 to 299.

        Raises WebhookFailed for any other status and for an endpoint that cannot be reached, EndpointGone if the endpoint
        says that it no longer exists, and EndpointRefused if its address is not allowed.
        """
        is_event = Body(self.body) is Body.CLOUDEVENT
        body = (event.as_json() if is_event else event.data).encode()
        sendable = {name: value for name, value in event.headers.items() if value.isascii() and value.isprintable()}
        headers = {
            **{name: value for name, value in sendable.items() if name in _TRACE},
            **signed_headers(str(event.id), body, self.secret),
            "content-type": f"application/{'cloudevents+' if is_event else ''}json",
            "user-agent": "outboxq",
        }
        try:
            status, after = self._post(body, headers)
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise WebhookFailed(f"{self} cannot be delivered: {type(error).__name__}: {error}") from None
        if status == 410:
            raise EndpointGone(f"the endpoint of {self} answered 410: it no longer exists")
        if not 200 <= status < 300:
            failed = WebhookFailed(f"the endpoint of {self} answered {status}")
            if (wait := _seconds_of(after)) is not None:
                failed.retry_after = min(wait, _LONGEST_WAIT)
            raise failed

    def _post(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, str | None]:
        """Return the status and the `Retry-After` header."""
        parts, deadline = urlsplit(self.url), time.monotonic() + self.seconds
        path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
        with self._open(deadline) as open_socket:
            # The connection uses this socket and never opens another. Given a port, it does not look for one in an IPv6
            # address.
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 443)
            connection.sock, connection.auto_open = open_socket, 0
            with _cut_at(deadline, open_socket):
                connection.request("POST", path, body, {"host": parts.netloc, **headers})
                answer = connection.getresponse()
                answer.read(_READ_AT_MOST)
            return answer.status, answer.getheader("retry-after")

    def _open(self, deadline: float) -> socket.socket:
        """Connect to the address that was checked, so that the name is resolved only once."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        if parts.scheme == "http":
            return self._connected(host, parts.port or 80, deadline)
        tls = self.tls or ssl.create_default_context()
        plain = self._connected(host, parts.port or 443, deadline)
        secured = tls.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
        try:
            with _cut_at(deadline, secured):
                secured.do_handshake()
        except BaseException:
            secured.close()
            raise
        return secured

    def _connected(self, host: str, port: int, deadline: float) -> socket.socket:
        """Connect to the first address that answers. Raises EndpointRefused if one of the host's addresses is not
        allowed.
        """
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for *_, address in found:
            self._check(str(address[0]))
        failed = OSError(f"{host} has no address")
        for number, (family, kind, protocol, _, address) in enumerate(found):
            made = socket.socket(family, kind, protocol)
            try:  # an address that does not answer must leave time for the others
                made.settimeout(max(0.001, (deadline - time.monotonic()) / (len(found) - number)))
                made.connect(address)
            except OSError as error:
                made.close()
                failed = error
            else:
                return made
        raise failed

    def _check(self, text: str) -> None:
        """Raise EndpointRefused unless the address is public or in an allowed network.

        For an IPv6 address that represents an IPv4 address, the IPv4 address is checked.
        """
        address = _inner(ip_address(text.partition("%")[0]))
        is_public = address.is_global and not address.is_multicast and not any(address in one for one in _NOT_PUBLIC)
        if is_public and (address.version == 4 or address in _GLOBAL_UNICAST):
            return
        if any(address in network for network in self._networks()):
            return
        raise EndpointRefused(
            f"{self} would go to {address}, which is not a public address; if that is intended, name its network in "
            "allowed_networks="
        )

    def _networks(self) -> list[Any]:
        try:
            return [ip_network(one) for one in self.allowed_networks]
        except ValueError as error:
            raise InvalidArgument(f"allowed_networks accepts networks such as '10.1.0.0/16': {error}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class WebhookSource:
    """A source for `Outbox.receive`: another program that sends signed webhooks to this application."""

    name: str
    """The name of the program, which is stored with a webhook that cannot be read."""
    secret: str | Sequence[str] = field(repr=False)
    """The secret that signs each webhook: ``whsec_`` followed by 24 to 64 bytes in base64. While the secret is being
    rotated, give both the new and the old one.
    """
    tolerance: timedelta | float = TOLERANCE
    """The maximum difference, in either direction, between a webhook's signing time and its arrival time."""
    topic: str | None = None
    """The topic for a webhook whose body has no `type`. None means that a webhook without a `type` cannot be read."""
    max_bytes: int = 1_048_576
    """The size in bytes of the largest body that is read."""

    def __post_init__(self) -> None:
        """Raise InvalidArgument for a source from which nothing can be received."""
        for key, value in (("name", self.name), ("topic", self.name if self.topic is None else self.topic)):
            if not is_name(value):
                raise bad_name(key, "WebhookSource()")
        keys_of(self.secret)
        if not is_span(duration(self.tolerance, "tolerance"), timedelta(seconds=1)):
            raise bad_span("tolerance", str(self))
        if self.max_bytes < 1:
            raise InvalidArgument(f"max_bytes of {self} must be at least 1, not {self.max_bytes!r}")

    def __str__(self) -> str:
        return f"the webhooks of {self.name}"

    def check_length(self, length: int | None) -> None:
        """Raise WebhookInvalid with status 413 if a body of this length in bytes is too large to be read."""
        if length is not None and length > self.max_bytes:
            error = WebhookInvalid(f"the body has more than {self.max_bytes} bytes")
            error.status = 413
            raise error

    def verify(self, headers: Mapping[str, str], body: bytes) -> Message:
        """Return the webhook as a message if its signature, its age and its length are valid. Raises WebhookInvalid
        otherwise.

        The message is identified only by its signed parts: the id and the body. The only headers that are kept are the
        trace headers.
        """
        self.check_length(len(body))
        found = verify_webhook(headers, body, self.secret, tolerance=self.tolerance)
        trace = {name.lower(): value for name, value in headers.items() if name.lower() in _TRACE}
        return Message(body=body, headers=trace, id=found.id, type=_type_of(body) or self.topic)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedWebhook:
    """A webhook whose signature and age are valid."""

    id: str
    """The id of the message, which is the same in every delivery. Pass the id to `outbox.inbox.accept`."""
    timestamp: datetime
    """The time at which this delivery was signed."""
    body: bytes = field(repr=False)


def verify_webhook(
    headers: Mapping[str, str],
    body: bytes,
    secret: str | Sequence[str],
    *,
    tolerance: timedelta | float = TOLERANCE,
    now: datetime | None = None,
) -> ReceivedWebhook:
    """Return the webhook if it is signed with one of the secrets and its signature is not older than `tolerance`.

    `headers` are the request's headers, with names in upper or lower case, and `body` is its body, byte for byte as it
    arrived. `now` replaces the current time in tests. A second delivery within the tolerance is also valid, so pass the
    id to `outbox.inbox.accept`. Raises WebhookInvalid, with a reason that may be shown to the sender, and
    InvalidArgument for a malformed secret.
    """
    keys = keys_of(secret)
    given = {name.lower(): value for name, value in headers.items()}
    missing = [name for name in ("webhook-id", "webhook-timestamp", "webhook-signature") if not given.get(name)]
    if missing:
        raise WebhookInvalid(f"the {missing[0]} header is missing")
    message_id, stamp = given["webhook-id"], given["webhook-timestamp"]
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12):
        raise WebhookInvalid("the webhook-timestamp header is not a number of seconds")
    wanted = [_signature(key, message_id, stamp, body).encode() for key in keys]
    found = given["webhook-signature"].split()
    if not any(hmac.compare_digest(one, another.encode(errors="replace")) for one in wanted for another in found):
        raise WebhookInvalid("no signature in the webhook-signature header is valid")
    age = (now or datetime.now(UTC)).timestamp() - int(stamp)
    if abs(age) > duration(tolerance, "tolerance").total_seconds():
        raise WebhookInvalid("the webhook was signed too long ago, or the clocks differ")
    return ReceivedWebhook(id=message_id, timestamp=datetime.fromtimestamp(int(stamp), UTC), body=body)


def signed_headers(
    message_id: str, body: bytes, secret: str | Sequence[str], *, now: datetime | None = None
) -> dict[str, str]:
    """Return a webhook's three headers, with one signature for each secret."""
    stamp = str(int((now or datetime.now(UTC)).timestamp()))
    signatures = [_signature(key, message_id, stamp, body) for key in keys_of(secret)]
    return {"webhook-id": message_id, "webhook-timestamp": stamp, "webhook-signature": " ".join(signatures)}


def keys_of(secret: str | Sequence[str]) -> list[bytes]:
    """Return the keys in one or more secrets. The error for a malformed secret does not contain the secret."""
    given: Any = secret  # may have any type if the caller does not use a type checker
    keys = [_key(one) for one in (given if isinstance(given, list | tuple) else [given])]
    if not keys:
        raise InvalidArgument("a webhook needs at least one secret")
    return keys


def _type_of(body: bytes) -> str | None:
    """Return a body's `type` member, which Standard Webhooks recommends; None if it is missing."""
    with suppress(ValueError, RecursionError):
        value = json.loads(body)
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            return str(value["type"])
    return None


def _is_url(url: object) -> bool:
    """Return whether the value is an endpoint's URL that can be sent in a request unchanged."""
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in {"https", "http"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _key(secret: object) -> bytes:
    try:
        key = base64.b64decode(str(secret).removeprefix(_PREFIX), validate=True) if isinstance(secret, str) else b""
    except binascii.Error:
        key = b""
    if not _LEAST_KEY <= len(key) <= _MOST_KEY:
        raise InvalidArgument(
            f"the secret of a webhook must be {_PREFIX!r} followed by {_LEAST_KEY} to {_MOST_KEY} random bytes in base64; "
            "make one with: python -c \"import base64, secrets; print('whsec_' + base64.b64encode(secrets.token_bytes(32)).decode())\""
        )
    return key


def _signature(key: bytes, message_id: str, stamp: str, body: bytes) -> str:
    digest = hmac.new(key, f"{message_id}.{stamp}.".encode(errors="replace") + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def _seconds_of(after: str | None) -> timedelta | None:
    """Return the wait that a `Retry-After` header requests, whether as seconds or as a date; None if the header is
    missing or malformed.
    """
    if after is None:
        return None
    if after.isascii() and after.isdigit():
        return timedelta(seconds=min(int(after[:9]), _LONGEST_WAIT.total_seconds()))
    with suppress(ValueError, OverflowError):
        moment = parsedate_to_datetime(after)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return max(timedelta(0), moment - datetime.now(UTC))
    return None


def _inner(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address represents, or the address itself if it does not represent one."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
        teredo = address.teredo
        return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)
    return address


@contextmanager
def _cut_at(deadline: float, connection: socket.socket) -> Iterator[None]:
    """Shut down the connection at the deadline. A socket's timeout applies to each read, so an endpoint that responds
    one byte at a time could otherwise keep the handler waiting for hours.
    """
    is_late = threading.Event()

    def cut() -> None:
        is_late.set()
        with suppress(OSError):
            socket.socket.shutdown(
                connection, socket.SHUT_RDWR
            )  # not the TLS socket's shutdown(), which would confuse the reading thread

    left = max(0.001, deadline - time.monotonic())
    connection.settimeout(left + 1)  # the timer fires first
    timer = threading.Timer(left, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()
    if is_late.is_set():
        raise TimeoutError("the endpoint did not answer in time")
