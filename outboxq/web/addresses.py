"""The browser's address, the host that it asked for and the way there, as far as they can be believed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Self

from werkzeug.wrappers import Request, Response

from ..errors import ConfigurationError

Network = IPv4Network | IPv6Network

_FORWARDED: Final = (
    "Forwarded",
    "Via",
    "X-Client-IP",
    "X-Cluster-Client-IP",
    "X-Real-IP",
    "True-Client-IP",
    "CF-Connecting-IP",
)
"""Headers that a proxy adds, beside those that begin with X-Forwarded: the browser is not where the request comes from."""
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9_.-]{0,252}[a-z0-9_.])?)(:[0-9]{1,5})?", re.ASCII)


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Return the networks, such as 10.0.0.0/8, or single addresses. Raises ConfigurationError if a text is neither."""
    try:
        return tuple(ip_network(text.strip(), strict=False) for text in texts)
    except ValueError as error:
        raise ConfigurationError(f"{error}; write a network as 10.0.0.0/8, or one address") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """The sender of one request."""

    address: str
    """Its IP address. "": it is unknown, as behind a Unix socket."""
    host: str
    """The host that it asked for, in lower case, with its port if that was given. "": none, or no valid one."""
    is_secure: bool
    """True if it came by HTTPS."""
    is_local: bool
    """True if it is a program of this machine that asked this machine by name, without a proxy between."""
    is_by_trusted_proxy: bool
    """True if one of the trusted proxies passed the request on."""
    root: str
    """The path at which the dashboard is mounted; "": at the top."""

    @classmethod
    def of(cls, request: Request, trusted_proxies: Sequence[Network]) -> Self:
        """Return the sender of the request. Only a trusted proxy is believed what it says of address and HTTPS."""
        environ = request.environ
        address = _address(environ.get("REMOTE_ADDR") or "")
        is_proxied = _is_in(address, trusted_proxies)
        is_secure = environ.get("wsgi.url_scheme") == "https"
        host = (environ.get("HTTP_HOST") or environ.get("SERVER_NAME", "")).lower()
        host = host if _HOST.fullmatch(host) else ""
        is_local = (
            _is_loopback(address)
            and is_loopback_name(host)
            and not any(request.headers.get(name) for name in _FORWARDED)
            and not any(name.startswith("HTTP_X_FORWARDED") and value for name, value in environ.items())
            # What speaks HTTP/1.0 is no browser, but nginx as it is set up by default, which adds none of these headers.
            and environ.get("SERVER_PROTOCOL") != "HTTP/1.0"
        )
        if is_proxied:
            is_secure = request.headers.get("X-Forwarded-Proto", "").split(",")[-1].strip() == "https" or is_secure
            chain = [_address(text.strip()) for text in request.headers.get("X-Forwarded-For", "").split(",")]
            others = [one for one in chain if not _is_in(one, trusted_proxies)]
            address = others[-1] if others and others[-1] else address
        return cls(
            address=address,
            host=host,
            is_secure=is_secure,
            is_local=is_local,
            is_by_trusted_proxy=is_proxied,
            root=request.root_path.rstrip("/"),
        )

    @property
    def network(self) -> str:
        """The address by which tries are counted: of IPv6, the network that one customer has."""
        if not self.address:
            return ""
        found = ip_address(self.address)
        return str(ip_network((found, 64), strict=False)) if isinstance(found, IPv6Address) else str(found)

    def cookie(self, name: str) -> str:
        """Return the full name of a cookie. Over HTTPS its prefix keeps neighbouring hosts from setting it.

        Dashboards on other ports and at other paths of the host have cookies of their own.
        """
        if self.is_secure:
            return f"__Host-{name}{_mark(self.root)}" if self.root else f"__Host-{name}"
        return f"{name}{_mark(self.host + self.root)}"

    def set_cookie(self, response: Response, name: str, value: str, *, seconds: int | None = None) -> None:
        """Have the browser keep a cookie that scripts cannot read and other sites cannot send; `seconds` None: until it ends."""
        response.set_cookie(
            self.cookie(name), value, max_age=seconds, secure=self.is_secure, httponly=True, samesite="Strict", path="/"
        )

    def delete_cookie(self, response: Response, name: str) -> None:
        """Have the browser forget a cookie."""
        response.delete_cookie(self.cookie(name), secure=self.is_secure, httponly=True, samesite="Strict", path="/")


def host_name(host: str) -> str:
    """Return a host without its port and without the dot at its end."""
    found = _HOST.fullmatch(host)
    return found[1].removesuffix(".") if found is not None else ""


def is_loopback_name(host: str) -> bool:
    """Return whether the host is this machine, whatever a name server says."""
    name = host_name(host)
    return name == "localhost" or name.endswith(".localhost") or _is_loopback(_address(name.strip("[]")))


def is_ip_address(host: str) -> bool:
    """Return whether the host is an IP address: a foreign name that a name server points here is none."""
    return _address(host_name(host).strip("[]")) != ""


def _mark(text: str) -> str:
    return f"-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _address(text: str) -> str:
    """Return the IP address; that of IPv4 in the clothes of IPv6 as IPv4. "" if it is none."""
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)


def _is_loopback(address: str) -> bool:
    return address != "" and ip_address(address).is_loopback


def _is_in(address: str, found: Sequence[Network]) -> bool:
    return address != "" and any(ip_address(address) in one for one in found)
