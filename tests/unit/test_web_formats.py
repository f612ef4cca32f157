"""Names, times and ages as pages show them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from outboxq.web.rendering import age, breakable, lately

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def test_a_word_of_a_name_stays_in_one_line_unless_it_is_very_long():
    assert breakable("webhooks") == "webhooks"
    assert breakable("shop.send_receipt") == "shop.<wbr>send_<wbr>receipt"
    assert breakable("a" * 50) == f"{'a' * 24}<wbr>{'a' * 24}<wbr>aa"


def test_a_name_is_escaped_whole_wherever_it_breaks():
    text = "x" * 23 + "<b>&amp;" * 20
    assert "<b>" not in breakable(text)
    assert breakable(text).replace("<wbr>", "").unescape() == text


def test_a_name_that_is_not_seen_is_named():
    assert breakable("") == "(empty name)"
    assert breakable("  ") == "(blank name)"


def test_a_moment_has_its_age_beside_it():
    shown = re.sub(r"<[^>]*>", "", str(lately(NOON - timedelta(minutes=3), NOON)))
    assert shown == "11:57:00 3 min ago"
    assert "15 min ago" in lately(NOON - timedelta(minutes=15, seconds=59), NOON)
    assert "in 1 h 59 min" in lately(NOON + timedelta(hours=2, seconds=-1), NOON)
    assert lately(None, NOON) == ""


def test_a_time_just_ahead_of_the_clock_is_now():
    """A machine whose clock is milliseconds fast wrote it."""
    assert age(NOON + timedelta(milliseconds=29), NOON) == "now"
    assert age(NOON + timedelta(seconds=1), NOON) == "in 1.0 s"
    assert age(NOON, NOON) == "0 s ago"
