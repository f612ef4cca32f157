"""The pages of the dashboard by name, path and function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .pages import overview
from .request import PageRequest, Redirect, View


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """A page or an action: its name, its path as Werkzeug's rules are written, and its function."""

    name: str
    path: str
    answer: Callable[[PageRequest], View | Redirect]
    is_action: bool = False
    """True: it changes something, takes POST only, and needs a viewer who may act."""
    section: str = ""
    """The entry of the navigation that is marked on the page: the name of another route; "": its own."""


ROUTES = (Route(name="overview", path="/", answer=overview.page),)
"""All pages and actions. The navigation lists some of them, see `rendering.NAVIGATION`."""
