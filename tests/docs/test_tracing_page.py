"""The page about tracing, executed: docs/tracing.md, block after block, on both databases."""

from __future__ import annotations

import re

import pytest
import sentry_sdk
from sentry_sdk.integrations.sqlalchemy import SqlalchemyIntegration
from sqlalchemy.engine import make_url

from outboxq.contrib.opentelemetry import SAME_TRACE_FOR
from outboxq.contrib.tracing import LONGEST
from outboxq.model.records import LOST, OUTCOMES
from tests.docs.test_guides import ROOT, blocks

PAGE = ROOT / "docs" / "tracing.md"
TEXT = PAGE.read_text()


@pytest.fixture
def no_client_is_left(monkeypatch):
    """Remove Sentry's client after the test. Its SQLAlchemy integration would listen to the engines of all later tests."""
    monkeypatch.setattr(SqlalchemyIntegration, "setup_once", staticmethod(lambda: None))
    before = sentry_sdk.get_global_scope().client
    yield
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.get_global_scope().set_client(before)


@pytest.mark.in_turn
@pytest.mark.usefixtures("no_client_is_left")
def test_the_blocks_of_the_page_run_from_top_to_bottom(database, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    url = make_url(database.url).render_as_string(hide_password=False)
    names: dict[str, object] = {}
    try:
        for _, before, source in blocks(PAGE):
            code = "\n" * before + source.replace('"sqlite:///shop.db"', repr(url))
            exec(compile(code, str(PAGE), "exec"), names)
    finally:
        for name in ("outbox", "shop"):
            if name in names:
                names[name].store.bound_engine.dispose()


def test_the_attributes_and_metrics_match_the_code():
    source = (ROOT / "outboxq" / "contrib" / "opentelemetry.py").read_text()
    in_code = set(re.findall(r'"(messaging\.[\w.]+)"', source))
    assert set(re.findall(r"`(messaging\.[\w.]+)`", TEXT.partition("## Sentry")[0])) == in_code


def test_the_sentry_fields_exist_in_the_code():
    source = (ROOT / "outboxq" / "contrib" / "sentry.py").read_text()
    named = set(re.findall(r"`(messaging\.[\w.]+)`", TEXT.partition("## Sentry")[2]))
    assert named < set(re.findall(r'"(messaging\.[\w.]+)"', source))


def test_the_outcomes_and_limits_match_the_code():
    assert f"up to {LONGEST:,} bytes" in TEXT
    assert SAME_TRACE_FOR.total_seconds() == 5 * 60
    [line] = [line for line in TEXT.splitlines() if line.startswith("| `messaging.outboxq.outcome`")]
    assert set(re.findall(r"`(\w+)`", line)[1:]) == {*OUTCOMES.values()} - {LOST}
