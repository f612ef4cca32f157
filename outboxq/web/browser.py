"""The requesting browser: its address, its cookies, the forms that it sends, and its user's preferences."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, Self
from urllib.parse import quote, urlencode, urlsplit

from markupsafe import Markup
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import BadRequest, Forbidden, RequestEntityTooLarge, UnsupportedMediaType
from werkzeug.wrappers import Request, Response

from ..errors import ConfigurationError
from .request import Redirect

FIELD: Final = "csrf"
"""The name of the hidden field in each form."""
_COOKIE: Final = "outboxq-browser"
_NOTICE: Final = "outboxq-notice"
_NOTICE_SECONDS: Final = 60
_LONGEST_NOTICE: Final = 500
"""The maximum number of characters in a notice, since a cookie can hold only 4 kB."""
_LONGEST_UNDO: Final = 500
"""The maximum number of characters in the URL that undoes an action. A notice does not contain a longer URL."""
_SECRET_LENGTH: Final = 43
"""The number of characters in the secret that a browser keeps."""
_MOST_FIELDS: Final = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """A sentence about what was done in response to a form."""

    text: str
    is_warning: bool
    undo: str
    """The URL of the action that undoes what the form did; "" if there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Browser:
    """A browser, identified by the secret in its cookie, with the person who is logged in there."""

    client: Client
    secret: str
    key: bytes
    """The key that signs data for this browser and this person."""

    @classmethod
    def of(cls, request: Request, client: Client, key: bytes, *, person: str, is_renewed: bool = False) -> Self:
        """Return the browser that sent the request. With `is_renewed`, the browser gets a new secret, for example after
        a login.
        """
        kept = request.cookies.get(client.cookie(_COOKIE), "")
        secret = kept if len(kept) == _SECRET_LENGTH and not is_renewed else secrets.token_urlsafe(32)
        return cls(client=client, secret=secret, key=derived(key, "browser", secret, person))

    @property
    def form_token(self) -> str:
        """The value of the hidden field in each form that is shown to this person in this browser."""
        return derived(self.key, "form").hex()

    def remember(self, request: Request, response: Response) -> None:
        """Store the secret in the browser, unless the browser already has it."""
        if request.cookies.get(self.client.cookie(_COOKIE)) != self.secret:
            self.client.set_cookie(response, _COOKIE, self.secret)

    def accepts(self, form: Mapping[str, str]) -> bool:
        """Return whether the form comes from a page that was shown to this person in this browser."""
        return matches(form.get(FIELD, ""), self.form_token)

    def leave_notice(self, response: Response, redirect: Redirect) -> None:
        """Have the next page show the redirect's notice."""
        if redirect.notice:
            text = redirect.notice[:_LONGEST_NOTICE]
            undo = redirect.undo if len(redirect.undo) <= _LONGEST_UNDO else ""
            value = sealed(derived(self.key, "notice"), [text, redirect.is_warning, undo], seconds=_NOTICE_SECONDS)
            self.client.set_cookie(response, _NOTICE, value, seconds=_NOTICE_SECONDS)

    def notice(self, request: Request) -> Notice | None:
        """Return the notice for the page; None if there is no notice, or if the notice was forged."""
        value = opened(derived(self.key, "notice"), request.cookies.get(self.client.cookie(_NOTICE), ""))
        return None if value is None else Notice(text=value[0], is_warning=value[1], undo=value[2])

    def forget_notice(self, request: Request, response: Response) -> None:
        """Delete the notice from the browser after a page has shown it."""
        if self.client.cookie(_NOTICE) in request.cookies:
            self.client.delete_cookie(response, _NOTICE)


def check_form(request: Request, browser: Browser) -> None:
    """Raise an HTTPException unless this person sent the form from a dashboard page in this browser."""
    if not is_from_here(request, browser.client):
        raise Forbidden("This form was sent from another site.")
    if request.mimetype != "application/x-www-form-urlencoded":
        raise UnsupportedMediaType
    if sum(len(values) for _, values in request.form.lists()) > _MOST_FIELDS:
        raise RequestEntityTooLarge
    if any("\0" in value for _, value in request.form.items(multi=True)):
        raise BadRequest("A field of the form contains NUL.")
    if not browser.accepts(request.form):
        raise Forbidden("This form is too old, or belongs to another person. Reload the page and send the form again.")


def is_from_here(request: Request, client: Client) -> bool:
    """Return whether the request was sent from a page on this host, according to headers that every current browser
    sends.
    """
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc.lower() == client.host


def hidden_field(value: str) -> Markup:
    """Return the hidden field with this value."""
    return Markup('<input type="hidden" name="{}" value="{}">').format(FIELD, value)


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
"""Headers set by proxies, in addition to those that begin with X-Forwarded. If a request has one of these headers, the
sender is not the browser itself.
"""
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9_.-]{0,252}[a-z0-9_.])?)(:[0-9]{1,5})?", re.ASCII)


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Return the networks in these strings. Raises ConfigurationError if a string is neither a network, such as
    10.0.0.0/8, nor a single address.
    """
    try:
        return tuple(ip_network(text.strip(), strict=False) for text in texts)
    except ValueError as error:
        raise ConfigurationError(f"{error}; write a network like 10.0.0.0/8, or a single address") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """The sender of one request."""

    address: str
    """The sender's IP address; "" if the address is unknown, for example behind a Unix socket."""
    host: str
    """The requested host in lower case, with the port if one was given; "" if the request has no valid host.
    """
    is_secure: bool
    """True if the request was sent over HTTPS."""
    is_local: bool
    """True if a program on this machine sent the request to a loopback name, without a proxy."""
    is_by_trusted_proxy: bool
    """True if the request was passed on by a trusted proxy."""
    root: str
    """The path at which the dashboard is mounted; "" at the root."""

    @classmethod
    def of(cls, request: Request, trusted_proxies: Sequence[Network]) -> Self:
        """Return the sender of the request. The headers in which a proxy states the client's address and scheme are
        used only if they come from a trusted proxy.
        """
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
            # Browsers do not use HTTP/1.0. nginx uses it in its default configuration, which does not add any of these
            # headers.
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
        """The address for which attempts are counted. For IPv6, this is the network that a provider assigns to one
        customer.
        """
        if not self.address:
            return ""
        found = ip_address(self.address)
        return str(ip_network((found, 64), strict=False)) if isinstance(found, IPv6Address) else str(found)

    def cookie(self, name: str) -> str:
        """Return the full name of a cookie. Over HTTPS, a prefix prevents neighboring hosts from setting the cookie.

        Dashboards on other ports or paths of the same host have separate cookies.
        """
        if self.is_secure:
            return f"__Host-{name}{_mark(self.root)}" if self.root else f"__Host-{name}"
        return f"{name}{_mark(self.host + self.root)}"

    def set_cookie(self, response: Response, name: str, value: str, *, seconds: int | None = None) -> None:
        """Store a cookie that scripts cannot read and that is not sent with requests from other sites. If `seconds` is
        None, the cookie is kept until the browser is closed.
        """
        response.set_cookie(
            self.cookie(name), value, max_age=seconds, secure=self.is_secure, httponly=True, samesite="Strict", path="/"
        )

    def delete_cookie(self, response: Response, name: str) -> None:
        """Delete a cookie from the browser."""
        response.delete_cookie(self.cookie(name), secure=self.is_secure, httponly=True, samesite="Strict", path="/")


def host_name(host: str) -> str:
    """Return a host without its port or a trailing dot."""
    found = _HOST.fullmatch(host)
    return found[1].removesuffix(".") if found is not None else ""


def is_loopback_name(host: str) -> bool:
    """Return whether the host is this machine, regardless of what a name server says."""
    name = host_name(host)
    return name == "localhost" or name.endswith(".localhost") or _is_loopback(_address(name.strip("[]")))


def is_ip_address(host: str) -> bool:
    """Return whether the host is an IP address rather than a name. A name server can redirect a name, but not an
    address.
    """
    return _address(host_name(host).strip("[]")) != ""


def _mark(text: str) -> str:
    return f"-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _address(text: str) -> str:
    """Return the IP address, or "" for any other string. A mapped IPv4 address is returned as IPv4."""
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


_YEAR: Final = 365 * 24 * 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Comfort:
    """A choice that each person can make for a browser. The choice is taken from a URL parameter or from a cookie."""

    name: str
    """The name of the parameter, and the end of the cookie's name."""
    words: str
    """The words shown before the choices."""
    choices: Mapping[str, str]
    """The words shown for each value. The first value is the default."""


REFRESH: Final = Comfort(
    name="refresh", words="Refresh every", choices={"5": "5 s", "2": "2 s", "15": "15 s", "off": "off"}
)
_COMFORTS: Final = (
    REFRESH,
    Comfort(name="times", words="Times in", choices={"utc": "UTC", "local": "your time zone"}),
    Comfort(name="theme", words="Colors", choices={"system": "system", "light": "light", "dark": "dark"}),
    Comfort(name="keys", words="Keyboard shortcuts", choices={"on": "on", "off": "off"}),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comforts:
    """The choices that a person has made for a browser."""

    client: Client
    chosen: Mapping[str, str]
    """The value of each choice, by name."""
    new: AbstractSet[str]
    """The names of the choices that were made with this request."""

    @classmethod
    def of(cls, request: Request, client: Client) -> Self:
        """Return the choices that apply to the request."""
        chosen, new = {}, set()
        for one in _COMFORTS:
            now, kept = request.args.get(one.name, ""), request.cookies.get(client.cookie(_cookie(one)), "")
            chosen[one.name] = next((value for value in (now, kept) if value in one.choices), next(iter(one.choices)))
            if now in one.choices:
                new.add(one.name)
        return cls(client=client, chosen=chosen, new=new)

    @property
    def refresh(self) -> timedelta | None:
        """The time between two refreshes; None if the page is not refreshed."""
        choice = self.chosen[REFRESH.name]
        return None if choice == "off" else timedelta(seconds=int(choice))

    def remember(self, response: Response) -> None:
        """Store in the browser the choices that were made with this request."""
        for one in _COMFORTS:
            if one.name in self.new:
                self.client.set_cookie(response, _cookie(one), self.chosen[one.name], seconds=_YEAR)

    def links(self, request: Request) -> list[tuple[str, list[tuple[str, str, bool]]]]:
        """Return the words for each choice, with its values. Each value has the URL of the same page with that value,
        the words for the value, and a flag that is True for the current value.
        """
        found = []
        for one in _COMFORTS:
            now, choices = self.chosen[one.name], one.choices.items()
            links = [(_path(request, {one.name: value}), words, value == now) for value, words in choices]
            found.append((one.words, links))
        return found


def _cookie(one: Comfort) -> str:
    return f"outboxq-{one.name}"


def without_comforts(query: MultiDict[str, str]) -> MultiDict[str, str]:
    """Return the page's parameters without the choices that a person makes for the browser."""
    names = {one.name for one in _COMFORTS}
    return MultiDict([(name, value) for name, value in query.items(multi=True) if name not in names])


def own_path(request: Request) -> str:
    """Return the URL of the page, without its host and without the choices that a person makes for the browser."""
    return _path(request, {})


def _path(request: Request, more: Mapping[str, str]) -> str:
    query = [*without_comforts(request.args).items(multi=True), *more.items()]
    path = quoted(f"{request.root_path}{request.path}")
    return f"{path}?{urlencode(query)}" if query else path


def quoted(path: str) -> str:
    """Return the path quoted for a URL. The quoted path begins with exactly one slash, so that it never leads to
    another host.
    """
    return "/" + quote(path.lstrip("/\\"), safe="/:@!$&'()*+,;=~")


def derived(key: bytes, *parts: str) -> bytes:
    """Return a key for one purpose, which does not reveal anything about `key`. Different lists of parts give different
    keys.
    """
    return hmac.digest(key, "".join(f"{len(part)}:{part}" for part in parts).encode(), "sha256")


def matches(given: str, right: str) -> bool:
    """Return whether the strings are equal. The time taken does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), right.encode("utf-8", "surrogateescape"))


def sealed(key: bytes, value: object, *, seconds: int) -> str:
    """Return the value as a string for a cookie. `opened` accepts the string for this many `seconds`."""
    content = json.dumps([int(time.time()) + seconds, value]).encode()
    return f"{_encoded(content)}.{_encoded(hmac.digest(key, content, 'sha256'))}"


def opened(key: bytes, text: str) -> Any:
    """Return the value that was passed to `sealed`; None if the string was changed, has expired, or was sealed with
    another key.
    """
    first, _, second = text.partition(".")
    try:
        content, signature = _decoded(first), _decoded(second)
    except (binascii.Error, ValueError):
        return None
    if not hmac.compare_digest(hmac.digest(key, content, "sha256"), signature):
        return None
    expires_at, value = json.loads(content)
    return value if time.time() < expires_at else None


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
