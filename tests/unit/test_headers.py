"""The headers of a task: which are allowed, how they are stored, and how a handler reads headers that foreign SQL has written."""

from __future__ import annotations

import json
import logging
import threading
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from outboxq.context import TaskContext
from outboxq.errors import InvalidArgument
from outboxq.model import Claim
from outboxq.model.options import headers_as_json, headers_of_json

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def context(headers: str | None) -> TaskContext:
    number = uuid4()
    claim = Claim(
        id=number,
        pipeline_execution_id=number,
        task_name="mail.send",
        queue="mail",
        priority=0,
        args="{}",
        headers=headers,
        attempt=1,
        max_attempts=None,
        recovery_attempts=0,
        lease_token=1,
        worker_id=number,
        lease_seconds=60,
        lease_expires_at=NOW,
        timeout_seconds=None,
        created_at=NOW,
        first_started_at=NOW,
        started_at=NOW,
    )
    return TaskContext(claim, max_attempts=1, stopping=threading.Event())


@pytest.mark.parametrize("headers", [{"a": ""}, {"Request-Id": "r1", "request-id": "r2"}, {"ü" * 100: "\n'\"☃"}])
def test_headers_are_unchanged_after_writing_and_reading(headers):
    assert dict(headers_of_json(headers_as_json(headers, "it"))) == headers


def test_empty_headers_are_stored_as_null():
    assert headers_as_json({}, "it") is None


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ([("a", "b")], "must be a mapping of strings, such as {'request-id': 'r1'}, not list"),
        ("a=b", "must be a mapping of strings"),
        ({"": "x"}, "the name '' in headers of task 'mail.send' must be a string of 1 to 100 characters"),
        ({"n" * 101: "x"}, "must be a string of 1 to 100 characters"),
        ({7: "x"}, "the name 7 in headers of task 'mail.send' must be a string"),
        ({"a\0": "x"}, "without NUL"),
        ({"\ud800": "x"}, "without NUL or lone surrogates"),
        ({"OutboxQ-tick": "x"}, "the header name 'OutboxQ-tick' of task 'mail.send' is reserved"),
        ({"a": 7}, "the header 'a' of task 'mail.send' must be a string"),
        ({"a": None}, "must be a string"),
        ({"a": "\0"}, "must be a string without NUL"),
        ({"a": "x" * 8192}, "are 8200 bytes long as JSON, but the limit is 8192 bytes"),
        ({"a": "ü" * 4096}, "bytes long as JSON"),
    ],
)
def test_invalid_headers_are_refused_with_a_reason(headers, text):
    with pytest.raises(InvalidArgument) as refused:
        headers_as_json(headers, "task 'mail.send'")
    assert text in str(refused.value)


def test_headers_of_exactly_the_limit_are_stored():
    assert len(headers_as_json({"a": "x" * 8184}, "it") or "") == 8192


def test_a_handler_reads_headers_and_cannot_change_them():
    ctx = context('{"request-id":"r1"}')
    assert ctx.headers == {"request-id": "r1"}
    assert ctx.headers is ctx.headers
    with pytest.raises(TypeError):
        ctx.headers["request-id"] = "r2"  # type: ignore[index]


def test_a_task_without_headers_has_an_empty_mapping():
    assert context(None).headers == {}


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "{",
        "[]",
        "7",
        '{"a": 1}',
        '{"a": null}',
        '{"a": "\\u0000"}',
        '{"a": "\\ud800"}',
        pytest.param("[" * 100_000, id="nested"),
    ],
)
def test_unreadable_headers_are_empty_and_cause_one_warning(stored, caplog):
    caplog.set_level(logging.WARNING)
    ctx = context(stored)
    assert ctx.headers == {}
    assert ctx.headers == {}
    [record] = caplog.records
    assert "its headers cannot be read, so ctx.headers is empty" in record.getMessage()
    assert len(record.getMessage()) < 300


def test_headers_are_stored_as_compact_json():
    stored = headers_as_json({"a": "ü", "b": "x"}, "it")
    assert stored == '{"a":"ü","b":"x"}'
    assert json.loads(stored) == {"a": "ü", "b": "x"}
