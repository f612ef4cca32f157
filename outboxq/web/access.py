"""The people who may see the dashboard, and those who may change something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from werkzeug.exceptions import BadRequest, Forbidden
from werkzeug.wrappers import Request

from ..errors import ConfigurationError
from .addresses import Client, host_name, is_ip_address, is_loopback_name, networks
from .request import Viewer
from .sessions import Sessions, TooManyTries

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
