"""Forms that only the dashboard's own pages can send, and the sentence that a page shows after one."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

from markupsafe import Markup
from werkzeug.exceptions import BadRequest, Forbidden, RequestEntityTooLarge, UnsupportedMediaType
from werkzeug.wrappers import Request, Response

from .addresses import Client
from .request import Redirect
from .signing import derived, matches, opened, sealed

FIELD: Final = "csrf"
"""The hidden field of each form."""
_COOKIE: Final = "outboxq-browser"
_NOTICE: Final = "outboxq-notice"
_NOTICE_SECONDS: Final = 60
_LONGEST_NOTICE: Final = 500
"""Maximum number of characters of a notice: a cookie has 4 kB."""
_SECRET_LENGTH: Final = 43
"""Number of characters of the secret that a browser keeps."""
_MOST_FIELDS: Final = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """A sentence about what a form has done."""

    text: str
    is_warning: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Browser:
    """A browser, by the secret that it keeps in a cookie, and the person who is logged in there."""

    client: Client
    secret: str
    key: bytes
    """The key of what is signed for this browser and this person."""

    @classmethod
    def of(cls, request: Request, client: Client, key: bytes, *, person: str, is_renewed: bool = False) -> Self:
        """Return the browser that sent the request. `is_renewed`: it gets another secret, as at a login."""
        kept = request.cookies.get(client.cookie(_COOKIE), "")
        secret = kept if len(kept) == _SECRET_LENGTH and not is_renewed else secrets.token_urlsafe(32)
        return cls(client=client, secret=secret, key=derived(key, "browser", secret, person))

    @property
    def form_token(self) -> str:
        """The value of the hidden field in each form of this browser and this person."""
        return derived(self.key, "form").hex()

    def remember(self, request: Request, response: Response) -> None:
        """Have the browser keep its secret, if it does not yet."""
        if request.cookies.get(self.client.cookie(_COOKIE)) != self.secret:
            self.client.set_cookie(response, _COOKIE, self.secret)

    def accepts(self, form: Mapping[str, str]) -> bool:
        """Return whether a page of this browser and this person holds the form."""
        return matches(form.get(FIELD, ""), self.form_token)

    def leave_notice(self, response: Response, redirect: Redirect) -> None:
        """Have the next page show the notice of the redirect."""
        if redirect.notice:
            text = redirect.notice[:_LONGEST_NOTICE]
            value = sealed(derived(self.key, "notice"), [text, redirect.is_warning], seconds=_NOTICE_SECONDS)
            self.client.set_cookie(response, _NOTICE, value, seconds=_NOTICE_SECONDS)

    def notice(self, request: Request) -> Notice | None:
        """Return the notice that the page has to show. None: there is none, or it was forged."""
        value = opened(derived(self.key, "notice"), request.cookies.get(self.client.cookie(_NOTICE), ""))
        return None if value is None else Notice(text=value[0], is_warning=value[1])

    def forget_notice(self, request: Request, response: Response) -> None:
        """Have the browser forget the notice, once a page has shown it."""
        if self.client.cookie(_NOTICE) in request.cookies:
            self.client.delete_cookie(response, _NOTICE)


def check_form(request: Request, browser: Browser) -> None:
    """Raise an HTTPException unless one of the dashboard's own pages has sent the form, from this browser and person."""
    if not is_from_here(request, browser.client):
        raise Forbidden("Another site has sent this form.")
    if request.mimetype != "application/x-www-form-urlencoded":
        raise UnsupportedMediaType
    if sum(len(values) for _, values in request.form.lists()) > _MOST_FIELDS:
        raise RequestEntityTooLarge
    if any("\0" in value for _, value in request.form.items(multi=True)):
        raise BadRequest("A field of the form holds a NUL.")
    if not browser.accepts(request.form):
        raise Forbidden(
            "This form is too old, or belongs to another person. Load its page again, and send it once more."
        )


def is_from_here(request: Request, client: Client) -> bool:
    """Return whether a page of this host sent the request, as far as the browser says it; each of today's does."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc.lower() == client.host


def hidden_field(value: str) -> Markup:
    """Return the hidden field with this value."""
    return Markup('<input type="hidden" name="{}" value="{}">').format(FIELD, value)
