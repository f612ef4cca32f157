"""Access to the dashboard: who may read it, who may change things, and how people log in."""

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
"""A function that returns the viewer for a request, "read" or "write" for a viewer without a name, or None to refuse
the request.
"""

REFUSED: Final = "You are not allowed to see this dashboard."
_LONGEST_NAME: Final = 200
_CLOSED: Final = (
    "This dashboard is available only on the machine that it runs on, at localhost, because no login is configured. Give it a token "
    "(token=…; in commands, --token-file or OUTBOXQ_WEB_TOKEN), authorize=…, or the header of a proxy that identifies people "
    "(trust_header=… with trusted_proxies=…)."
)


class LoginNeeded(Exception):
    """The person must log in first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """The access that a request has."""

    viewer: Viewer
    person: str = ""
    """The session or name to which this person's forms belong."""
    session_id: str | None = None
    """The id of the session, which is needed to end the session."""


class Access:
    """Identifies the viewer who sends a request.

    If none of `token`, `authorize` and `trust_header` is given, only programs on this machine may see the dashboard.
    Each of those programs decides who else can see the dashboard through it.
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
        """Raise ConfigurationError if the values contradict each other."""
        if authorize is not None and (token is not None or trust_header is not None):
            raise ConfigurationError("authorize alone decides who sees the dashboard; leave out token and trust_header")
        if trust_header is not None and not trusted_proxies:
            raise ConfigurationError(
                f"anyone can send the header {trust_header}; use trusted_proxies (in commands, --from) to name the proxies that set it, such as 10.0.0.0/8"
            )
        for name, given in (("trusted_proxies", trusted_proxies), ("trusted_hosts", trusted_hosts)):
            if isinstance(given, str):
                raise ConfigurationError(f"{name} must be a list of strings; write [{given!r}]")
        self.proxies = networks(trusted_proxies)
        self.sessions = None if token is None else Sessions(token)
        self._authorize = authorize
        self._trust_header = trust_header
        self._hosts = None if trusted_hosts is None else frozenset(_checked_host(one) for one in trusted_hosts)
        self._most = Viewer(name="", may_act=allow_actions, may_see_arguments=show_arguments)

    @property
    def key(self) -> bytes:
        """The key that protects the data kept in browsers. Without a token, the key is public, and a browser's data is
        protected only by the browser's own secret.
        """
        return b"outboxq dashboard" if self.sessions is None else self.sessions.key

    @property
    def is_open_to_this_machine(self) -> bool:
        """True if the dashboard is not configured to identify people."""
        return self.sessions is None and self._authorize is None and self._trust_header is None

    def check_host(self, client: Client) -> None:
        """Raise BadRequest if the request was sent to an untrusted host name, such as a foreign name that was made to
        resolve to this machine.

        IP addresses and the loopback names of this machine are always accepted, because a name server cannot redirect
        them.
        """
        if not client.host:
            raise BadRequest("The request does not name a host, or the host is invalid.")
        if self._hosts is None or is_ip_address(client.host) or is_loopback_name(client.host):
            return
        if host_name(client.host) not in self._hosts:
            raise BadRequest(
                f"The dashboard does not recognize the host {host_name(client.host)}. If the dashboard has this name, add it to trusted_hosts=[…] (in "
                "commands, --trusted-host)."
            )

    def grant(self, request: Request, client: Client) -> Grant:
        """Return the access to grant to the request. Raises LoginNeeded, Forbidden or TooManyTries."""
        if self._authorize is not None:
            return self._authorized(self._authorize(request.environ))
        if self._trust_header is not None and client.is_by_trusted_proxy:
            name = request.headers.get(self._trust_header, "").strip()[:_LONGEST_NAME]
            if "," in name:  # a server joins two headers of this name; the visitor may have sent the first
                raise Forbidden(f"The header {self._trust_header} names several people; the proxy must overwrite it.")
            if name:
                return Grant(viewer=replace(self._most, name=name), person=f"name {name}")
            if self.sessions is None:
                raise Forbidden(f"The proxy did not identify you with the header {self._trust_header}.")
        if self.sessions is not None:
            return self._by_token(self.sessions, request, client)
        if self._trust_header is not None:
            raise Forbidden("This dashboard can be reached only through its proxy, which identifies people.")
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
        # Programs may only read. Actions are reserved for people.
        return Grant(viewer=replace(self._most, may_act=False), person="bearer")

    def _authorized(self, found: Any) -> Grant:
        match found:
            case None:
                raise Forbidden(REFUSED)
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
        # Not a ConfigurationError, because a page would show it. Only the log may contain the returned value.
        raise TypeError(f'authorize returned {found!r}; it must return None, "read", "write" or a Viewer')


def _checked_host(text: str) -> str:
    name = host_name(text.lower())
    if not name:
        raise ConfigurationError(f"{text!r} is not a host name; write it like tasks.example.org")
    return name


log = logging.getLogger("outboxq.web")

COOKIE: Final = "outboxq"
SECONDS: Final = 12 * 3600
"""The time in seconds for which a session is valid."""
_SHORTEST: Final = 16
"""The minimum number of characters in a token."""
_MOST_ENDED: Final = 10_000


class Sessions:
    """Checks the token, and the cookies of people who are logged in.

    A cookie contains a random number and an expiry time, signed with a key that is derived from the token. Every
    process with the same token therefore accepts the cookie, and no process accepts it after the token has been
    changed. Logging out deletes the cookie in the browser, but only this process remembers that the session has ended.
    """

    def __init__(self, token: str) -> None:
        """Raise ConfigurationError if the token can be guessed or cannot be typed."""
        if token != token.strip():
            raise ConfigurationError(
                "the dashboard's token begins or ends with a space or a line break; remove that character"
            )
        if len(token) < _SHORTEST:
            raise ConfigurationError(
                f"the dashboard's token has {len(token)} characters, so it can be guessed; use {_SHORTEST} or more, such as the output "
                "of: python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
        self._token = token
        self.key = derived(token.encode(), "outboxq dashboard")
        """The key that protects the data kept in browsers."""
        self._tries = LoginTries()
        self._lock = threading.Lock()
        self._ended: OrderedDict[str, float] = OrderedDict()

    def check(self, token: str, client: Client) -> bool:
        """Return whether the token is right. Raises TooManyTries for a wrong token if too many have been sent from this
        address, or from all addresses together.

        The right token is always accepted. Otherwise, anyone could lock everyone out, since behind a proxy that is not
        trusted, all people have the same address. The token is too long to be guessed, however fast an attacker tries.
        """
        if matches(token, self._token):
            self._tries.succeed(client.network)
            return True
        wait = self._tries.fail(client.network)
        if wait is not None:
            raise TooManyTries(wait)
        log.warning("someone at %s sent an invalid token", client.address or "an unknown address")
        return False

    def begin(self) -> tuple[str, str]:
        """Return the id of a new session, and the value of its cookie."""
        session_id = secrets.token_hex(16)
        return session_id, sealed(self.key, session_id, seconds=SECONDS)

    def find(self, cookies: Mapping[str, str], client: Client) -> str | None:
        """Return the id of the browser's session; None if the browser has no session, or the session has ended."""
        session_id = opened(self.key, cookies.get(client.cookie(COOKIE), ""))
        with self._lock:
            return None if session_id in self._ended else session_id

    def end(self, session_id: str) -> None:
        """End a session before it expires."""
        with self._lock:
            now = time.monotonic()
            self._ended[session_id] = now + SECONDS
            while self._ended and (len(self._ended) > _MOST_ENDED or next(iter(self._ended.values())) < now):
                self._ended.popitem(last=False)


class TooManyTries(Exception):
    """Too many wrong tokens were given. After `seconds`, a wrong token gets the usual response again."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


EACH: Final = 5
"""The maximum number of wrong tokens per minute from one address, or from one IPv6 network."""
ALL: Final = 50
"""The maximum number of wrong tokens per minute from all addresses together. This limit also bounds memory use."""
PERIOD: Final = 60.0


class LoginTries:
    """Counts the wrong tokens that were sent to this process during the last minute. Beyond the limits, wrong tokens
    are neither logged nor answered with a page, so that a flood of them costs little.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tries: deque[tuple[float, str]] = deque()

    def fail(self, address: str) -> float | None:
        """Count a wrong token from this address. Return None if the token is within the limits, or else the number of
        seconds until another wrong token would be within the limits.
        """
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
        """Forget the wrong tokens from an address that has sent the right one."""
        with self._lock:
            self._tries = deque((at, one) for at, one in self._tries if one != address)
