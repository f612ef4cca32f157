"""The time after which a page asks for itself again, as the person has chosen it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self
from urllib.parse import quote, urlencode

from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Request, Response

from .addresses import Client

_PARAMETER: Final = "refresh"
_COOKIE: Final = "outboxq-refresh"
_CHOICES: Final[Mapping[str, tuple[str, timedelta | None]]] = {
    "2": ("2 s", timedelta(seconds=2)),
    "5": ("5 s", timedelta(seconds=5)),
    "15": ("15 s", timedelta(seconds=15)),
    "off": ("off", None),
}
_DEFAULT: Final = "5"
_YEAR: Final = 365 * 24 * 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Refresh:
    """The choice of one browser. The URL's parameter decides, and is kept in a cookie."""

    client: Client
    choice: str
    is_chosen_now: bool

    @classmethod
    def of(cls, request: Request, client: Client) -> Self:
        """Return the choice of the request."""
        now = request.args.get(_PARAMETER, "")
        kept = request.cookies.get(client.cookie(_COOKIE), "")
        choice = next((one for one in (now, kept) if one in _CHOICES), _DEFAULT)
        return cls(client=client, choice=choice, is_chosen_now=now in _CHOICES)

    @property
    def period(self) -> timedelta | None:
        """The time between two refreshes; None: never."""
        return _CHOICES[self.choice][1]

    def remember(self, response: Response) -> None:
        """Have the browser keep the choice, if it was made just now."""
        if self.is_chosen_now:
            self.client.set_cookie(response, _COOKIE, self.choice, seconds=_YEAR)

    def links(self, request: Request) -> list[tuple[str, str, bool]]:
        """Return the choices: the URL of the same page with it, its words, and whether it holds now."""
        return [(_path(request, name), words, name == self.choice) for name, (words, _) in _CHOICES.items()]


def without_refresh(query: MultiDict[str, str]) -> MultiDict[str, str]:
    """Return the parameters of the page itself."""
    return MultiDict([(name, value) for name, value in query.items(multi=True) if name != _PARAMETER])


def own_path(request: Request) -> str:
    """Return the URL of the page, without its host and without a choice of refreshes."""
    return _path(request, None)


def _path(request: Request, choice: str | None) -> str:
    query = list(without_refresh(request.args).items(multi=True))
    if choice is not None:
        query.append((_PARAMETER, choice))
    path = quoted(f"{request.root_path}{request.path}")
    return f"{path}?{urlencode(query)}" if query else path


def quoted(path: str) -> str:
    """Return a path as it is written in a URL. Never the address of another host: it begins with one slash."""
    return "/" + quote(path.lstrip("/\\"), safe="/:@!$&'()*+,;=~")
