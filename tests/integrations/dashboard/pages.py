"""The addresses of the dashboard's pages, for tests that open each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from html import unescape
from typing import Any
from urllib.parse import urldefrag, urljoin, urlsplit

from werkzeug.routing import Map, Rule
from werkzeug.test import Client

from outboxq.web.pages import ROUTES
from tests.integrations.dashboard.filling import Filling


def largest_group(filling: Filling) -> str:
    """The id of the largest group of dead letters."""
    return max(filling.outbox.store.dead_letters.groups().groups, key=lambda one: one.count).id


Values = Callable[[Filling], Mapping[str, Any]]

OF_PAGES: Mapping[str, Mapping[str, Values]] = {
    "overview": {"": lambda _: {}, "of a week": lambda _: {"range": "7d"}},
    "queues": {"": lambda _: {}},
    "queue": {
        "": lambda _: {"name": "ledger"},
        "limited": lambda _: {"name": "webhooks"},
        "paused": lambda _: {"name": "newsletter"},
    },
    "tasks": {
        "": lambda _: {},
        "failed": lambda _: {"state": "failed"},
        "none": lambda _: {"queue": "no such queue"},
        "slowest": lambda _: {"sort": "duration"},
    },
    "task": {
        story: lambda filling, story=story: {"task_id": filling.tasks[story]}  # type: ignore[misc]
        for story in ("retried", "dead_letter", "behind_held_key", "retry_later", "running", "unknown")
    },
    "enqueue": {"": lambda _: {}},
    "failures": {"": lambda _: {}, "by exception": lambda _: {"by": "exception"}},
    "failure_group": {"": lambda filling: {"group": largest_group(filling)}},
    "bulk": {
        "redrive": lambda filling: {"action": "redrive", "group": largest_group(filling)},
        "cancel": lambda _: {"action": "cancel", "queue": "newsletter"},
        "nothing": lambda _: {"action": "discard", "queue": "no such queue"},
    },
    "batches": {"": lambda _: {}, "open": lambda _: {"state": "open"}},
    "batch": {
        "wait": lambda filling: {"batch_id": filling.batches["wait"]},
        "continue": lambda filling: {"batch_id": filling.batches["continue"]},
    },
    "workers": {"": lambda _: {}},
    "worker": {"": lambda filling: {"worker_id": filling.workers["new"]}},
    "schedules": {"": lambda _: {}},
    "schedule": {"": lambda _: {"name": "shop.sweep"}, "paused": lambda _: {"name": "stock: recount"}},
    "relays": {"": lambda _: {}},
    "relay": {"": lambda _: {"name": "bills"}, "paused": lambda _: {"name": "search"}},
    "system": {"": lambda _: {}},
    "actions": {"": lambda _: {}},
}
"""The values in the address of each page, by the route's name. A route has several entries if its pages differ much."""

PAGES = [f"{route} {of}".strip() for route, several in OF_PAGES.items() for of in several]


def address(page: str, filling: Filling) -> str:
    """The path and query of one of `PAGES`."""
    route, _, of = page.partition(" ")
    urls = Map([Rule(one.path, endpoint=one.name) for one in ROUTES if not one.is_action])
    return urls.bind("").build(route, dict(OF_PAGES[route][of](filling)))


class Local(Client):
    """A client on this machine, without a socket."""

    def open(self, *args: Any, **options: Any) -> Any:
        return super().open(*args, **{"environ_overrides": {"REMOTE_ADDR": "127.0.0.1"}, **options})


_COMFORT = re.compile(r"[?&](refresh|times|theme|keys)=")
_LINK = re.compile(r"""(?:href|src)="([^"]*)\"""")


def links(path: str, text: str) -> Iterator[str]:
    """Yield the paths on this site to which a page links."""
    for found in _LINK.findall(text):
        target = urldefrag(urljoin(f"http://localhost{path}", unescape(found))).url
        if (parts := urlsplit(target)).netloc == "localhost":
            yield f"{parts.path}?{parts.query}" if parts.query else parts.path


def crawl(client: Client, *, most: int) -> Iterator[tuple[str, Any]]:
    """Follow links from the first page, and yield the path and the response of up to this many pages. Take no actions."""
    waiting, seen = ["/"], {"/"}
    while waiting and len(seen) - len(waiting) < most:
        path = waiting.pop(0)
        answer = client.get(path)
        yield path, answer
        if answer.mimetype == "text/html":
            found = dict.fromkeys(links(path, answer.text))
            # The links that choose a browser's settings are the same on each page.
            new = [one for one in found if one not in seen and (path == "/" or not _COMFORT.search(one))]
            seen.update(new)
            waiting.extend(new)
