"""Pages that have not changed are not sent again, and no viewer receives another viewer's page."""

from __future__ import annotations

import itertools
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import event
from werkzeug.test import Client

from outboxq import Outbox
from outboxq.web import Viewer, answers, application, dashboard, freshness
from outboxq.web.freshness import Freshness, TooSlow
from outboxq.web.pages import ROUTES, Route
from outboxq.web.request import Redirect, View
from tests.waiting import until

LOCAL = {"REMOTE_ADDR": "127.0.0.1"}


class Table:
    """The text of the test's page, with counts of how often the page was made and the mark was read."""

    def __init__(self):
        self.text, self.made, self.looks = "old", 0, 0

    def mark(self):
        self.looks += 1
        return self.text


@pytest.fixture
def now(monkeypatch):
    """The clock of the cache and of the displayed ages."""
    clock = [1_000_020.0]
    monkeypatch.setattr(freshness.time, "time", lambda: clock[0])
    return clock


@pytest.fixture
def table(monkeypatch):
    found = Table()

    def page(request):
        found.made += 1
        values = {"action": found.text, "next": request.viewer.name, "is_wrong": request.viewer.may_act}
        return View(template="login.html", title="Page", values=values, data=[found.text])

    def act(request):
        found.text = "new"
        return Redirect(url=request.url("page"), notice="done")

    routes = (
        *ROUTES,
        Route(name="page", path="/page", answer=page),
        Route(name="act", path="/act", answer=act, is_action=True),
    )
    for module in (answers, dashboard):
        monkeypatch.setattr(module, "ROUTES", routes)
    return found


@pytest.fixture
def site(table, now, tmp_path, monkeypatch):
    """Make a dashboard whose cache uses the clock `now`."""
    monkeypatch.setattr(dashboard, "Freshness", lambda _read: Freshness(table.mark, clock=lambda: now[0]))
    (tmp_path / "empty.db").touch()
    return lambda **options: application(Outbox(f"sqlite:///{tmp_path}/empty.db"), **{"allow_actions": True, **options})


def get(client, path="/page", **headers):
    return client.get(path, environ_base=LOCAL, headers=headers)


def test_an_unchanged_page_is_not_sent_again(site, table, now):
    client = Client(site())
    first = get(client)
    for _ in range(3):
        now[0] += 3
        again = get(client, If_None_Match=first.headers["ETag"])
        assert (again.status_code, again.data) == (304, b"")
    assert table.made == 1
    assert table.looks == 4


def test_a_page_is_sent_when_the_tables_have_changed(site, table, now):
    client = Client(site())
    first = get(client)
    table.text = "new"
    now[0] += 3
    again = get(client, If_None_Match=first.headers["ETag"])
    assert again.status_code == 200
    assert 'action="new"' in again.text


def test_a_page_is_sent_when_its_ages_have_changed(site, now):
    client = Client(site())
    first = get(client)
    now[0] += 60
    assert get(client, If_None_Match=first.headers["ETag"]).status_code == 200


def test_an_etag_does_not_apply_to_other_query_parameters(site):
    client = Client(site())
    first = get(client)
    assert get(client, "/page?a=b", If_None_Match=first.headers["ETag"]).status_code == 200
    assert get(client, "/page?refresh=off", If_None_Match=first.headers["ETag"]).status_code == 200


def test_ten_tabs_share_one_check_and_one_rendered_page(site, table, now):
    wsgi = site()
    for _ in range(3):
        now[0] += 3
        table.text += "!"
        assert {get(Client(wsgi)).status_code for _ in range(10)} == {200}
    assert (table.looks, table.made) == (3, 3)


def test_browsers_share_a_page_but_have_separate_form_tokens(site, table):
    wsgi = site()
    clients = [Client(wsgi), Client(wsgi)]
    tokens = [get(client).text.split('name="csrf" value="')[1].split('"')[0] for client in clients]
    assert table.made == 1
    assert tokens[0] != tokens[1]
    for client, token in zip(clients, tokens, strict=True):
        assert client.post("/act", data={"csrf": token}, environ_base=LOCAL).status_code == 303


VIEWERS = (
    Viewer(name="ann", may_act=True, may_see_arguments=True),
    Viewer(name="ann", may_act=True),
    Viewer(name="ann", may_see_arguments=True),
    Viewer(name="ben", may_act=True, may_see_arguments=True),
    Viewer(),
)


@pytest.mark.parametrize("path", ["/page", "/api/page.json"])
def test_no_viewer_receives_the_page_of_another_viewer(site, path):
    who = []
    client = Client(site(authorize=lambda environ: who[-1], show_arguments=True))
    for one, other in itertools.permutations(VIEWERS, 2):
        who.append(one)
        tag = get(client, path).headers["ETag"]
        assert get(client, path, If_None_Match=tag).status_code == 304
        who.append(other)
        answer = get(client, path, If_None_Match=tag)
        assert answer.status_code == 200
        assert path != "/page" or f'name="next" value="{other.name}"' in answer.text
        assert path != "/page" or ("The token is wrong." in answer.text) == other.may_act


def test_an_etag_from_another_browser_gets_no_304(site):
    wsgi = site()
    tag = get(Client(wsgi)).headers["ETag"]
    assert get(Client(wsgi), If_None_Match=tag).status_code == 200, (
        "the forms of another browser's page would be refused"
    )


def test_a_logged_out_browser_gets_no_304(site):
    wsgi = site(token="correct horse battery staple")
    client = Client(wsgi)
    page = client.get("/login", environ_base=LOCAL).text
    token = page.split('name="csrf" value="')[1].split('"')[0]
    client.post("/login", data={"csrf": token, "token": "correct horse battery staple"}, environ_base=LOCAL)
    tag = get(client).headers["ETag"]
    assert get(client, If_None_Match=tag).status_code == 304
    for name in [cookie.key for cookie in client._cookies.values()]:
        client.delete_cookie(name)
    assert get(client, If_None_Match=tag).status_code == 401


def test_an_action_is_visible_immediately(site, table):
    wsgi = site()
    client, other = Client(wsgi), Client(wsgi)
    token = get(client).text.split('name="csrf" value="')[1].split('"')[0]
    get(other)
    client.post("/act", data={"csrf": token}, environ_base=LOCAL)
    assert 'action="new"' in get(client).text
    assert 'action="new"' in get(other).text


def test_an_action_in_another_process_is_visible_immediately(site, table):
    one, other = Client(site()), Client(site())
    token = get(one).text.split('name="csrf" value="')[1].split('"')[0]
    other._cookies = one._cookies
    get(other)
    one.post("/act", data={"csrf": token}, environ_base=LOCAL)
    assert 'action="new"' in get(other).text


def test_a_page_read_before_a_change_is_not_cached():
    clock = itertools.count()
    found, started, changed = ["old"], threading.Event(), threading.Event()
    kept = Freshness(str, clock=lambda: next(clock) / 1000)

    def slow():
        read = found[0]
        started.set()
        assert changed.wait(60)
        return read

    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(kept.shared, "page", slow)
        assert started.wait(60)
        found[0] = "new"
        kept.forget()
        changed.set()
        assert reading.result() == "old"
    assert kept.shared("page", lambda: found[0]) == "new"


def test_simultaneous_requests_share_one_page():
    made, gate = [], threading.Barrier(8)
    kept = Freshness(str, clock=lambda: 0.0)

    def make():
        made.append(1)
        return "page"

    def ask():
        gate.wait(60)
        return kept.shared("page", make)

    with ThreadPoolExecutor(8) as threads:
        assert {one.result() for one in [threads.submit(ask) for _ in range(8)]} == {"page"}
    assert len(made) == 1


def test_a_failure_is_not_cached():
    kept = Freshness(str, clock=lambda: 0.0)
    with pytest.raises(ZeroDivisionError):
        kept.shared("page", lambda: str(1 // 0))
    assert kept.shared("page", lambda: "page") == "page"


def test_the_cache_is_bounded():
    kept = Freshness(str, clock=lambda: 0.0)
    for number in range(1000):
        kept.shared(number, str)
    for number in range(1000):
        with pytest.raises(ZeroDivisionError):
            kept.shared(-number - 1, lambda: str(1 // 0))
    assert len(kept._kept) <= 64
    assert not kept._making


def test_an_unchanged_page_needs_one_statement(database, now):
    seen = []
    outbox = Outbox(database.url)
    client = Client(application(outbox))
    tag = get(client, "/").headers["ETag"]
    engine = outbox.store.bound_engine
    event.listen(engine, "before_cursor_execute", lambda *args: seen.append(args[2]))
    client.application._freshness.forget()
    assert get(client, "/", If_None_Match=tag).status_code == 304
    engine.dispose()
    assert len([one for one in seen if not one.startswith("BEGIN")]) == 1, seen


def test_requests_that_wait_for_a_failed_page_fail_with_it():
    """Otherwise, each of them would wait for the database in turn."""
    fresh, begun, proceed, tries = Freshness(str), threading.Event(), threading.Event(), []

    def make():
        tries.append(1)
        begun.set()
        assert proceed.wait(60)
        raise ConnectionError("away")

    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(fresh.shared, "page", make)]
        assert begun.wait(60)
        making = fresh._making["page"]
        asked += [pool.submit(fresh.shared, "page", make) for _ in range(2)]
        until(lambda: making.waiting == 2)
        proceed.set()
        assert [str(one.exception(60)) for one in asked] == ["away"] * 3
    assert len(tries) == 1
    assert fresh.shared("page", lambda: "back") == "back"


def test_waiting_for_a_page_that_another_request_makes_has_a_limit():
    fresh = Freshness(str, longest_wait=0.0)

    def make():
        with pytest.raises(TooSlow), ThreadPoolExecutor(1) as pool:
            pool.submit(fresh.shared, "page", str).result(60)
        return "made"

    assert fresh.shared("page", make) == "made"
    assert fresh.shared("page", str) == "made"


def test_a_stuck_database_causes_one_line_in_the_log(tmp_path, caplog, monkeypatch):
    """The server's threads answer, although one of them hangs."""
    outbox = Outbox(f"sqlite:///{tmp_path}/tasks.db")
    outbox.upgrade()
    wsgi = application(outbox)
    wsgi._freshness._longest_wait = 0.0
    begun, proceed = threading.Event(), threading.Event()

    def stuck():
        begun.set()
        assert proceed.wait(60)
        return "mark"

    monkeypatch.setattr(wsgi._freshness, "_read_mark", stuck)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(Client(wsgi).get, "/", environ_overrides=LOCAL)
        assert begun.wait(60)
        assert [Client(wsgi).get("/tasks", environ_overrides=LOCAL).status_code for _ in range(3)] == [503] * 3
        assert Client(wsgi).get("/healthz", environ_overrides=LOCAL).status_code == 200
        proceed.set()
        assert first.result(60).status_code == 200
    assert "Traceback" not in caplog.text
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 1
    outbox.store.bound_engine.dispose()
