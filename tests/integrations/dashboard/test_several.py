"""Several dashboards in one application: each at its path, with links to the others."""

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


def test_what_is_not_there_is_not_found(client):
    answer = client.get("/other/queues")
    assert (answer.status_code, answer.headers["X-Frame-Options"]) == (404, "DENY")
    assert client.get("/shop/nothing").status_code == 404


def test_a_mounted_application_keeps_its_prefix(client):
    environ = {"SCRIPT_NAME": "/outboxq admin"}
    assert (
        client.get("/", environ_overrides={**environ, "REMOTE_ADDR": "127.0.0.1"}).headers["Location"]
        == "/outboxq%20admin/shop/"
    )


def test_a_page_of_one_dashboard_names_no_others(sqlite):
    forged = {"outboxq.siblings": "x", "Outboxq-Siblings": "x"}
    page = Local(application(Outbox(sqlite.engine))).get("/", headers=forged)
    assert 'aria-label="Dashboards"' not in page.text


@pytest.mark.parametrize("name", ["", "a/b", "../x", "ä", "x" * 51])
def test_a_name_must_fit_into_a_path(sqlite, name):
    with pytest.raises(ConfigurationError, match="cannot be part of a path"):
        Dashboards({name: application(Outbox(sqlite.engine))})
    with pytest.raises(ConfigurationError, match="give at least one dashboard"):
        Dashboards({})
