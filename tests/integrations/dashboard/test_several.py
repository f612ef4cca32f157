"""Several dashboards in one application: each has its own path and links to the others."""

from __future__ import annotations

import pytest
from werkzeug.test import Client

from outboxq import Outbox
from outboxq.errors import ConfigurationError
from outboxq.web import Dashboards, application
from tests.integrations.dashboard.pages import Local, links

TOKEN = "correct horse battery staple"


@pytest.fixture
def client(sqlite) -> Client:
    sqlite.add(sqlite.store, queue="mail")
    outbox = Outbox(sqlite.engine)
    return Local(Dashboards({"shop": application(outbox), "billing": application(outbox, token=TOKEN)}))


def test_each_dashboard_has_a_path_and_links_to_the_others(client):
    first = client.get("/")
    assert (first.status_code, first.headers["Location"]) == (303, "/shop/")
    page = client.get("/shop/queues")
    assert page.status_code == 200
    assert "mail" in page.text
    found = set(links("/shop/queues", page.text))
    assert {"/shop/", "/billing/", "/shop/tasks"} <= found
    assert all(one.startswith(("/shop/", "/billing/")) for one in found)
    assert 'aria-current="true">shop</a>' in page.text
    assert client.get("/shop/api/queues.json").status_code == 200
    style = next(one for one in found if one.endswith(".css"))
    assert client.get(style).status_code == 200


def test_each_dashboard_decides_who_may_see_it(client):
    refused = client.get("/billing/queues", headers={"Accept": "text/html"})
    assert (refused.status_code, refused.headers["Location"]) == (303, "/billing/login?next=/queues")
    assert client.get("/billing/api/queues.json", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_an_unknown_dashboard_or_page_is_not_found(client):
    answer = client.get("/other/queues")
    assert (answer.status_code, answer.headers["X-Frame-Options"]) == (404, "DENY")
    assert client.get("/shop/nothing").status_code == 404


def test_a_mounted_application_keeps_its_prefix(client):
    environ = {"SCRIPT_NAME": "/outboxq admin"}
    assert (
        client.get("/", environ_overrides={**environ, "REMOTE_ADDR": "127.0.0.1"}).headers["Location"]
        == "/outboxq%20admin/shop/"
    )


def test_a_single_dashboard_does_not_list_others(sqlite):
    forged = {"outboxq.siblings": "x", "Outboxq-Siblings": "x"}
    page = Local(application(Outbox(sqlite.engine))).get("/", headers=forged)
    assert 'aria-label="Dashboards"' not in page.text


@pytest.mark.parametrize("name", ["", "a/b", "../x", "ä", "x" * 51])
def test_a_name_must_be_valid_as_part_of_a_path(sqlite, name):
    with pytest.raises(ConfigurationError, match="cannot be part of a path"):
        Dashboards({name: application(Outbox(sqlite.engine))})
    with pytest.raises(ConfigurationError, match="give at least one dashboard"):
        Dashboards({})


def test_the_title_option_is_shown_in_the_header_and_the_page_titles(sqlite):
    outbox = Outbox(sqlite.engine)
    named = Local(application(outbox, title="shop <production>", token=TOKEN))
    page = named.get("/queues", headers={"Authorization": f"Bearer {TOKEN}"}).text
    assert '<span class="dashboard-title">shop &lt;production&gt;</span>' in page
    assert "<title>Queues – shop &lt;production&gt; – outboxq</title>" in page
    login = named.get("/login").text
    assert "<title>Log in – shop &lt;production&gt; – outboxq</title>" in login
    assert "shop &lt;production&gt;</span>" in login
    nameless = Local(application(outbox)).get("/queues").text
    assert "<title>Queues – outboxq</title>" in nameless
    assert "dashboard-title" not in nameless


def test_a_renamed_dashboard_is_sent_again_despite_the_etag(sqlite, monkeypatch):
    monkeypatch.setattr("outboxq.web.freshness.AGES", 10**9)  # in seconds; by default, pages are made again every 60 s
    outbox = Outbox(sqlite.engine)
    client = Local(application(outbox, title="staging"))
    tag = client.get("/queues").headers["ETag"]
    assert client.get("/queues", headers={"If-None-Match": tag}).status_code == 304
    client.application = application(outbox, title="production")
    assert client.get("/queues", headers={"If-None-Match": tag}).status_code == 200


def test_without_a_title_option_one_of_several_dashboards_uses_its_path_as_title(client):
    assert "<title>Queues – shop – outboxq</title>" in client.get("/shop/queues").text
    assert "<title>Log in – billing – outboxq</title>" in client.get("/billing/login").text


def test_a_title_that_is_too_long_is_refused(sqlite):
    with pytest.raises(ConfigurationError, match="^title= has 61 characters; shorten it to 60$"):
        application(Outbox(sqlite.engine), title="x" * 61)
