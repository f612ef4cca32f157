"""Every page: its links work, and it runs few statements."""

from __future__ import annotations

from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from sqlalchemy import event
from werkzeug.routing import Map, Rule

from outboxq.web import application
from outboxq.web.pages import ROUTES
from outboxq.web.rendering import PREFIX
from tests.integrations.dashboard import hostile
from tests.integrations.dashboard.filling import fill
from tests.integrations.dashboard.pages import OF_PAGES, PAGES, Local, address, crawl

MOST = 9
"""The number of statements that a page may run."""
MORE = {"bulk": 5, "overview": 4, "queue": 4, "worker": 1}
"""The number of additional statements for some pages. A bulk change is confirmed once, before it is made. The queues in
these tables are late, so their causes are read. Pages that blame a version for dead letters read all versions.
"""


@contextmanager
def statements(engine):
    """The statements that an engine runs in the block, except those that only begin or end a transaction."""
    found: list[str] = []

    def see(_connection, _cursor, statement, *_):
        if not statement.startswith(("BEGIN", "SET", "COMMIT", "ROLLBACK")):
            found.append(" ".join(statement.split())[:200])

    event.listen(engine, "before_cursor_execute", see)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", see)


def test_these_tests_cover_every_route_of_a_page():
    assert {route.name for route in ROUTES if not route.is_action} == set(OF_PAGES)


@pytest.mark.in_turn
def test_a_page_runs_few_statements_and_only_one_while_nothing_changes(database, monkeypatch):
    """While nothing changes, a page runs only the statement that asks whether anything has changed."""
    monkeypatch.setattr("outboxq.web.freshness.AGES", 10**9)  # in seconds; by default, pages are made again every 60 s
    filling = fill(database.engine)
    client = Local(application(filling.outbox, allow_actions=True, show_arguments=True))
    many, idle = [], {}
    for page in PAGES:
        path = address(page, filling)
        for worker in filling.workers.values():  # none becomes silent in the meantime on a slow machine
            filling.outbox.store.workers.seen(worker)
        for _ in range(2):  # the first request also looks up which tables exist
            client.application._freshness.forget()  # as after two seconds
            with statements(database.engine) as found:
                answer = client.get(path)
            assert answer.status_code == 200, page
        client.application._freshness.forget()
        with statements(database.engine) as mark:
            unchanged = client.get(path, headers={"If-None-Match": answer.headers["ETag"]})
        idle[page] = unchanged.status_code, len(mark)
        own = [one for one in found if one not in mark]
        if len(own) > MOST + next((more for route, more in MORE.items() if page.startswith(route)), 0):
            many.append(f"{page}: {len(own)}: {own}")
    assert not many, "\n".join(many)
    assert set(idle.values()) == {(304, 1)}, idle


@pytest.mark.in_turn
@pytest.mark.parametrize("attacked", [False, True], ids=["ordinary", "hostile"])
def test_every_link_leads_to_a_page(database, attacked):
    filling = hostile.fill(database, 500) if attacked else fill(database.engine)
    client = Local(application(filling.outbox, allow_actions=True, show_arguments=True))
    urls = Map([Rule(route.path, endpoint=route.name) for route in ROUTES if not route.is_action]).bind("")
    reached = set()
    for path, answer in crawl(client, most=200):
        assert answer.status_code == 200, path
        if not path.startswith(PREFIX):
            reached.add(urls.match(urlsplit(path).path)[0])
    assert attacked or reached == set(OF_PAGES)
