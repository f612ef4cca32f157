"""The people who may see the dashboard, and those who may change something."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from werkzeug.exceptions import BadRequest, Forbidden
from werkzeug.wrappers import Request

from ..errors import ConfigurationError
from .browser import Client, derived, host_name, is_ip_address, is_loopback_name, matches, networks, opened, sealed
from .request import Viewer

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

Authorize = Callable[["WSGIEnvironment"], "Viewer | str | None"]
"""Returns the viewer of a request; "read" or "write" for one without a name; None for one who may see nothing."""

_LONGEST_NAME: Final = 200
_CLOSED: Final = (
    "This dashboard answers only on the machine it runs on, by the name localhost, because no way to log in is configured. "
    "Give it a token (token=…, in commands --token-file or OUTBOXQ_WEB_TOKEN), authorize=…, or the header of a proxy that knows who "
    "asks (trust_header=… with trusted_proxies=…)."
)


class LoginNeeded(Exception):
    """The person has to give the token first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """The access of one request."""

    viewer: Viewer
    person: str = ""
    """The session or the name to which forms of this person belong."""
    session_id: str | None = None
    """The log-in, which can be ended."""


class Access:
    """Finds the viewer of a request.

    Without any of `token`, `authorize` and `trust_header`, programs of this machine may see the dashboard and no others. With one of
    them, it decides for everyone.
    """

    def __init__(
        self,
        *,
        allow_actions: bool,
        show_arguments: bool,
        token: str | None,
        authorize: Authorize | None,
        trust_header: str | None,
        trusted_proxies: Sequence[str],
        trusted_hosts: Sequence[str] | None,
    ) -> None:
        """Raises ConfigurationError if the values contradict each other."""
        if authorize is not None and (token is not None or trust_header is not None):
            raise ConfigurationError("authorize decides alone who sees the dashboard; leave out token and trust_header")
        if trust_header is not None and not trusted_proxies:
            raise ConfigurationError(
                f"anyone can send the header {trust_header}; name the proxies that set it: trusted_proxies, in commands --from, such as 10.0.0.0/8"
            )
        for name, given in (("trusted_proxies", trusted_proxies), ("trusted_hosts", trusted_hosts)):
            if isinstance(given, str):
                raise ConfigurationError(f"{name} is a list of texts; write [{given!r}]")
        self.proxies = networks(trusted_proxies)
        self.sessions = None if token is None else Sessions(token)
        self._authorize = authorize
        self._trust_header = trust_header
        self._hosts = None if trusted_hosts is None else frozenset(_checked_host(one) for one in trusted_hosts)
        self._most = Viewer(name="", may_act=allow_actions, may_see_arguments=show_arguments)

    @property
    def key(self) -> bytes:
        """The key of what browsers keep; without a token, their own secrets have to do."""
        return b"outboxq dashboard" if self.sessions is None else self.sessions.key

    @property
    def is_open_to_this_machine(self) -> bool:
        """True if nothing is configured by which people could be known."""
        return self.sessions is None and self._authorize is None and self._trust_header is None

    def check_host(self, client: Client) -> None:
        """Raise BadRequest if the request asks for a host that is not this one, as a page does whose name points here suddenly.

        An IP address and the names of this machine are always right, since no name server can change them.
        """
        if not client.host:
            raise BadRequest("The request names no host, or one that no host can have.")
        if self._hosts is None or is_ip_address(client.host) or is_loopback_name(client.host):
            return
        if host_name(client.host) not in self._hosts:
            raise BadRequest(
                f"The dashboard does not know the host {host_name(client.host)}. If that is its name, add it: trusted_hosts=[…], in "
                "commands --trusted-host."
            )

    def grant(self, request: Request, client: Client) -> Grant:
        """Return the access of the request. Raises LoginNeeded, Forbidden, or TooManyTries."""
        if self._authorize is not None:
            return self._authorized(self._authorize(request.environ))
        if self._trust_header is not None and client.is_by_trusted_proxy:
            name = request.headers.get(self._trust_header, "").strip()[:_LONGEST_NAME]
            if name:
                return Grant(viewer=replace(self._most, name=name), person=f"name {name}")
            if self.sessions is None:
                raise Forbidden(f"The proxy says by no header {self._trust_header} who you are.")
        if self.sessions is not None:
            return self._by_token(self.sessions, request, client)
        if self._trust_header is not None:
            raise Forbidden("This dashboard is reached through its proxy only, which says who asks.")
        if client.is_local:
            return Grant(viewer=self._most)
        raise Forbidden(_CLOSED)

    def _by_token(self, sessions: Sessions, request: Request, client: Client) -> Grant:
        session_id = sessions.find(request.cookies, client)
        if session_id is not None:
            return Grant(viewer=self._most, person=f"session {session_id}", session_id=session_id)
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer":
            raise LoginNeeded
        if not sessions.check(token.strip(), client):
            raise Forbidden("The token is wrong.")
        return Grant(
            viewer=replace(self._most, may_act=False), person="bearer"
        )  # programs read; actions are for people

    def _authorized(self, found: Any) -> Grant:
        match found:
            case None:
                raise Forbidden("You may not see this dashboard.")
            case "read":
                return Grant(viewer=replace(self._most, may_act=False))
            case "write":
                return Grant(viewer=self._most)
            case Viewer():
                viewer = replace(
                    found,
                    name=found.name[:_LONGEST_NAME],
                    may_act=found.may_act and self._most.may_act,
                    may_see_arguments=found.may_see_arguments and self._most.may_see_arguments,
                )
                return Grant(viewer=viewer, person=f"name {viewer.name}")
        # No ConfigurationError, which a page would show: what it returned may be for no one's eyes but the log's.
        raise TypeError(f'authorize returned {found!r}; it returns None, "read", "write" or a Viewer')


def _checked_host(text: str) -> str:
    name = host_name(text.lower())
    if not name:
        raise ConfigurationError(f"{text!r} is not the name of a host; write it as tasks.example.org")
    return name


__all__ = ["Access", "Authorize", "Grant", "LoginNeeded", "TooManyTries"]


log = logging.getLogger("outboxq.web")

COOKIE: Final = "outboxq"
SECONDS: Final = 12 * 3600
"""Seconds for which a log-in holds."""
_SHORTEST: Final = 16
"""Minimum number of characters of a token."""
_MOST_ENDED: Final = 10_000


class Sessions:
    """Checks the token, and the cookies of those who had it.

    A cookie holds a number and its end, signed with a key that comes from the token: every process with this token accepts it, and
    none does after the token was changed. A log-out is known to this process only; the browser forgets the cookie.
    """

    def __init__(self, token: str) -> None:
        """Raises ConfigurationError for a token that is short enough to be guessed, or that could not be typed."""
        if token != token.strip():
            raise ConfigurationError(
                "the dashboard's token begins or ends with a space or a line break; take those away"
            )
        if len(token) < _SHORTEST:
            raise ConfigurationError(
                f"the dashboard's token has {len(token)} characters, which can be guessed; take one of {_SHORTEST} or more, such as "
                "that of: python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
        self._token = token
        self.key = derived(token.encode(), "outboxq dashboard")
        """The key of what browsers keep."""
        self._tries = LoginTries()
        self._lock = threading.Lock()
        self._ended: OrderedDict[str, float] = OrderedDict()

    def check(self, token: str, client: Client) -> bool:
        """Return whether the token is right. Raises TooManyTries if this address, or all together, gave too many wrong ones."""
        wait = self._tries.begin(client.network)
        if wait is not None:
            raise TooManyTries(wait)
        if not matches(token, self._token):
            log.warning("a wrong token was given from %s", client.address or "an unknown address")
            return False
        self._tries.succeed(client.network)
        return True

    def begin(self) -> tuple[str, str]:
        """Return the id of a new session, and the value of its cookie."""
        session_id = secrets.token_hex(16)
        return session_id, sealed(self.key, session_id, seconds=SECONDS)

    def find(self, cookies: Mapping[str, str], client: Client) -> str | None:
        """Return the id of the session that the browser has. None: none, or one that is over."""
        session_id = opened(self.key, cookies.get(client.cookie(COOKIE), ""))
        with self._lock:
            return None if session_id in self._ended else session_id

    def end(self, session_id: str) -> None:
        """End a session before its time."""
        with self._lock:
            now = time.monotonic()
            self._ended[session_id] = now + SECONDS
            while self._ended and (len(self._ended) > _MOST_ENDED or next(iter(self._ended.values())) < now):
                self._ended.popitem(last=False)


class TooManyTries(Exception):
    """Too many wrong tokens were given; after `seconds` another one may be."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


EACH: Final = 5
"""Wrong tokens of one address, or of one IPv6 network, in a minute."""
ALL: Final = 50
"""Wrong tokens of all addresses in a minute. It also bounds the memory."""
PERIOD: Final = 60.0


class LoginTries:
    """Counts the tries of the last minute in this process. A try counts from its beginning, so that parallel ones do not slip through."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tries: deque[tuple[float, str]] = deque()

    def begin(self, address: str) -> float | None:
        """Count a try of this address. Return the seconds after which it may be repeated if there were too many; None: it may go on."""
        with self._lock:
            now = self._clock()
            while self._tries and self._tries[0][0] <= now - PERIOD:
                self._tries.popleft()
            own = [at for at, one in self._tries if one == address]
            if len(own) >= EACH:
                return own[0] + PERIOD - now
            if len(self._tries) >= ALL:
                return self._tries[0][0] + PERIOD - now
            self._tries.append((now, address))
            return None

    def succeed(self, address: str) -> None:
        """Take back the tries of an address that has the right token."""
        with self._lock:
            self._tries = deque((at, one) for at, one in self._tries if one != address)
