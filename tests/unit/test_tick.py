"""The tick of a task, as its handler reads it from the headers."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from tests.unit.test_headers import NOW, context


def headers(**named):
    return json.dumps({f"outboxq-{name}": value for name, value in named.items()})


def test_a_tick_is_in_the_zone_of_its_schedule():
    ctx = context(headers(schedule="nightly", tick="2026-10-25T00:30:00.000000+00:00", tz="Europe/Berlin"))
    assert ctx.schedule == "nightly"
    assert ctx.tick.astimezone(UTC) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert ctx.tick.tzinfo == ZoneInfo("Europe/Berlin")
    assert ctx.tick.isoformat() == "2026-10-25T02:30:00+02:00"
    assert context(headers(schedule="nightly", tick="2026-10-25T00:30:00+00:00")).tick.tzinfo is UTC


def test_the_tick_of_a_triggered_task_is_its_creation_time():
    assert (
        context(headers(schedule="nightly", trigger="ada", tz="Europe/Berlin")).tick.isoformat()
        == "2026-01-01T01:00:00+01:00"
    )


@pytest.mark.parametrize("stored", [None, "{}", '{"outboxq-tick":"2026-10-25T00:30:00+00:00"}', "no json"])
def test_a_task_without_a_schedule_has_no_tick(stored):
    ctx = context(stored)
    assert (ctx.schedule, ctx.tick) == (None, None)


@pytest.mark.parametrize("spoiled", [{"tick": "tomorrow"}, {"tick": "2026-10-25T00:30:00"}, {"tz": "Mars/Olympus"}])
def test_a_corrupt_header_does_not_fail_the_handler(spoiled, caplog):
    with caplog.at_level(logging.WARNING):
        tick = context(headers(schedule="nightly", **spoiled)).tick
    assert tick == NOW
    assert tick.tzinfo is UTC
    assert "its tick cannot be read exactly, so" in caplog.text
