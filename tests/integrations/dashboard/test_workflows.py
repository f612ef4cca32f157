"""The diagram of a workflow on the page of a batch or a chain."""

from __future__ import annotations

import re
from html import unescape

import pytest

from outboxq import Outbox
from outboxq.model import NewTask
from outboxq.model.batches import BatchLink, NewBatch, OnFailed, first_id, new_batch_id
from outboxq.web import application
from tests.integrations.dashboard.test_watch_pages import Reader, onlooker, reader

__all__ = ["onlooker", "reader"]


def followed(batch_id, *names):
    return tuple(
        NewTask(id=BatchLink(batch_id=batch_id, number=number).task_id, task_name=name, args="{}")
        for number, name in enumerate(names, 1)
    )


def a_batch(database, number, *then, **options):
    batch_id = new_batch_id()
    database.store.batches.create(NewBatch(id=batch_id, then=followed(batch_id, *then), **options))
    for _ in range(number):
        database.add(database.store, pipeline_execution_id=batch_id)
    database.store.batches.close(batch_id)
    return batch_id


def a_chain(database, *names):
    chain = Outbox(database.engine)
    tasks = [chain.task(name=name)(lambda: None) for name in names]
    return chain.chain(*(one.call() for one in tasks)).using(chain).enqueue().id


def drawing(reader, batch_id) -> str:
    reader.words(f"/batches/{batch_id}")
    found = re.search(r'<svg class="workflow".*?</svg>', reader.page.text, re.DOTALL)
    return "" if found is None else found[0]


def label(reader, batch_id) -> str:
    return unescape(re.search(r'aria-label="([^"]*)"', drawing(reader, batch_id))[1].replace("<wbr>", ""))


def test_a_batch_is_drawn_with_its_counts_and_then_tasks(database, reader):
    batch_id = a_batch(database, 3, "tests.report", "tests.mail")
    done, failed = database.claim(2, store=database.store)
    database.store.complete(done)
    database.store.fail(failed, "line 7 has no price")
    assert label(reader, batch_id) == (
        "Batch: 3 tasks (1 completed, 1 failed, 1 not ended), then tests.report (not enqueued), then tests.mail (not enqueued)."
    )
    svg = drawing(reader, batch_id)
    assert re.findall(r'class="share ([a-z]+)-fill" x="([\d.]+)" y="52" width="([\d.]+)"', svg) == [
        ("completed", "10.0", "52.0"),
        ("failed", "62.0", "52.0"),
    ]
    assert svg.count('class="arrow"') == 2
    assert not re.search(r"\sstyle=|<style|<script", reader.page.text.partition("<main")[2])
    for one in followed(batch_id, "tests.report", "tests.mail"):
        assert f'<a href="/tasks/{one.id}">' in svg


def test_a_batch_without_then_tasks_is_not_drawn(database, reader):
    assert drawing(reader, a_batch(database, 2)) == ""


def test_a_batch_that_waits_for_a_dead_letter_is_drawn_as_failed(database, reader):
    batch_id = a_batch(database, 1, "tests.report", on_failed=OnFailed.WAIT)
    assert 'class="box running"' in drawing(reader, batch_id)
    database.store.fail(database.claim(store=database.store)[0], "E")
    assert 'class="box failed"' in drawing(reader, batch_id)


def test_a_then_task_of_a_cancelled_batch_is_shown_as_will_not_run(database, reader):
    batch_id = a_batch(database, 1, "tests.report")
    database.store.batches.cancel(batch_id)
    assert label(reader, batch_id) == "Batch: 1 task (1 cancelled), then tests.report (will not run)."


def test_a_chain_is_drawn_with_the_status_of_each_task(database, reader):
    chain_id = a_chain(database, "tests.fetch", "tests.add", "tests.keep")
    words = reader.words(f"/batches/{chain_id}")
    assert "Cancel the chain …" in words
    assert "Cancel the batch" not in words
    assert f">{chain_id}<" not in reader.page.text  # the chain's id is the heading
    assert label(reader, chain_id) == (
        "Chain: tests.fetch (waiting), then tests.add (not enqueued), then tests.keep (not enqueued)."
    )
    database.store.complete(database.claim(store=database.store)[0])
    database.claim(store=database.store)
    assert label(reader, chain_id) == (
        "Chain: tests.fetch (completed), then tests.add (running), then tests.keep (not enqueued)."
    )
    assert f'<a href="/tasks/{first_id(chain_id)}">' in drawing(reader, chain_id)


def test_a_long_chain_is_drawn_around_its_current_task(database, reader):
    names = [f"tests.step_{number}" for number in range(40)]
    chain_id = a_chain(database, *names)
    for _ in range(20):
        database.store.complete(database.claim(store=database.store)[0])
    words = label(reader, chain_id)
    assert words.startswith("Chain: 16 more tasks, then tests.step_16 (completed), then")
    assert "tests.step_20 (waiting), then tests.step_21 (not enqueued)" in words
    assert words.endswith("then tests.step_25 (not enqueued), then 14 more tasks.")
    assert drawing(reader, chain_id).count("<g ") == 12


@pytest.mark.parametrize("name", ['<b>"x"</b>', "tests.\u202eeman", "n" * 200])
def test_a_hostile_name_is_escaped_and_fits_its_box(database, reader, name):
    svg = drawing(reader, a_batch(database, 1, name))
    assert "<b>" not in svg
    assert "\u202e" not in svg
    assert max(len(unescape(one)) for one in re.findall(r"<text[^>]*>([^<]*)<", svg)) <= 23


def test_a_chain_whose_first_task_was_deleted_is_drawn(database):
    chain_id = a_chain(database, "tests.fetch", "tests.add")
    database.corrupted = True
    database.run("DELETE FROM task_outbox")
    database.run("DELETE FROM task_executions")
    found = label(Reader(application(Outbox(database.engine))), chain_id)
    assert found == "Chain: its first task (deleted), then tests.add (not enqueued)."
