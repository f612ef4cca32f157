"""Failures grouped by exception alone: one broken server is one row, no matter how many tasks call it."""

from __future__ import annotations

import re
from html import unescape

import pytest

from outboxq.model import EventType, Outcome
from outboxq.web.pages import failures
from tests.integrations.dashboard.test_watch_pages import onlooker, reader

__all__ = ["onlooker", "reader"]

SMTP = "smtplib.SMTPServerDisconnected"


def fail(database, exception: str | None, **fields) -> None:
    database.add(database.store, **fields)
    (claim,) = database.claim(store=database.store, queues=[fields["queue"]])
    data = {} if exception is None else {"exception": exception}
    error = f"{exception}: {fields['task_name']} has no answer"
    database.store.finish([Outcome(claim=claim, event_type=EventType.FAILED, error=error, data=data)])


@pytest.fixture
def failed(database) -> None:
    for number, name in enumerate(("mail.welcome", "mail.bill", "mail.bill", "mail.news", "mail.remind")):
        fail(database, SMTP, queue=f"mail-{number % 2}", task_name=name)
    fail(database, "builtins.KeyError", queue="shop", task_name="shop.book")
    fail(database, None, queue="shop", task_name="shop.ship")


def rows(reader) -> list[str]:
    body = reader.page.text.partition("<tbody>")[2].partition("</tbody>")[0].replace("<wbr>", "")
    return [
        " ".join(unescape(re.sub(r"<[^>]*>", " ", one)).split())
        for one in re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    ]


def test_an_exception_is_one_row_for_all_tasks_that_raised_it(reader, failed):
    assert "7 dead letters in 6 groups by task, exception and message" in reader.words("/failures")
    words = reader.words("/failures", by="exception", sort="number")
    assert "7 dead letters in 3 groups by exception." in words
    first, *others = rows(reader)
    assert first.startswith(f"{SMTP} mail.bill, mail.news, mail.remind and 1 more 5 mail-0 , mail-1")
    assert {one.split(" shop.")[0] for one in others} == {"builtins.KeyError", "no exception"}
    found = reader.get("/api/failures.json?by=exception").get_json()
    assert [(one["exception"], one["count"]) for one in found["groups"]] == [
        (SMTP, 5),
        (None, 1),
        ("builtins.KeyError", 1),
    ]
    assert found["groups"][0]["task_names"] == ["mail.bill", "mail.news", "mail.remind", "mail.welcome"]


def test_a_group_by_exception_links_to_its_tasks_and_to_a_bulk_redrive(reader, onlooker, failed):
    reader.words("/failures", by="exception", queue="mail-0")
    assert [one.split()[0] for one in rows(reader)] == [SMTP]
    links = [unescape(one) for one in re.findall(r'href="([^"]*)"', reader.page.text)]
    assert f"/failures?queue=mail-0&exception={SMTP}" in links
    assert f"/bulk?action=redrive&queue=mail-0&exception={SMTP}" in links
    assert "/failures?queue=mail-0&by=exception&sort=first" in links
    assert "/failures?queue=mail-0&sort=last" in links  # back to the other groups
    assert "3 dead letters" in reader.words("/bulk", action="redrive", queue="mail-0", exception=SMTP)
    onlooker.words("/failures", by="exception")
    assert "/bulk?" not in onlooker.page.text


def test_tasks_without_an_exception_are_a_group_without_a_link(reader, failed):
    reader.words("/failures", by="exception", task="shop.ship")
    assert rows(reader)[0].startswith("no exception shop.ship 1 shop")
    assert "/bulk?action=redrive" not in reader.page.text


def test_groups_are_combined_before_the_list_is_cut(reader, failed, monkeypatch):
    monkeypatch.setattr(failures, "_GROUPS", 2)
    assert "6+ dead letters in 2 groups by exception." in reader.words("/failures", by="exception")
    assert len(rows(reader)) == 2
    monkeypatch.setattr(failures, "_FEW", 3)
    words = reader.words("/failures", by="exception")
    assert "These groups contain the newest 3 dead letters; there are more." in words
    assert 'href="/failures?by=exception&amp;sort=last&amp;look=far"' in reader.page.text


def test_grouping_by_another_field_is_refused(reader, failed):
    assert "Cannot group by 'queue': use exception, or leave `by` out." in reader.words("/failures", by="queue")
