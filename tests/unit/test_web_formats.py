"""Names, times and ages, as pages show them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from outboxq.web.rendering import age, breakable, elapsed, lately, unbroken

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def kept(words: str) -> str:
    return words.replace(" ", "\N{NO-BREAK SPACE}")


def test_a_name_is_broken_between_words_unless_a_word_is_very_long():
    assert breakable("webhooks") == "webhooks"
    assert breakable("shop.send_receipt") == "shop.<wbr>send_<wbr>receipt"
    assert breakable("a" * 50) == f"{'a' * 24}<wbr>{'a' * 24}<wbr>aa"


def test_a_name_is_escaped_correctly_wherever_it_breaks():
    text = "x" * 23 + "<b>&amp;" * 20
    assert "<b>" not in breakable(text)
    assert breakable(text).replace("<wbr>", "").unescape() == text


def test_an_invisible_name_has_a_placeholder():
    assert breakable("") == "(empty name)"
    assert breakable("  ") == "(blank name)"


def test_a_time_is_shown_with_its_age():
    shown = re.sub(r"<[^>]*>", "", str(lately(NOON - timedelta(minutes=3), NOON)))
    assert shown == f"11:57:00 {kept('3 min ago')}"
    assert kept("15 min ago") in lately(NOON - timedelta(minutes=15, seconds=59), NOON)
    assert f"in {kept('1 h 59 min')}" in lately(NOON + timedelta(hours=2, seconds=-1), NOON)
    assert lately(None, NOON) == ""


def test_a_time_just_ahead_of_the_clock_is_now():
    """The machine that wrote the time has a clock that is milliseconds fast."""
    assert age(NOON + timedelta(milliseconds=29), NOON).striptags() == "now"
    assert age(NOON + timedelta(seconds=1), NOON).striptags() == "in 1.0 s"
    assert age(NOON, NOON) == f'<span data-age="0">{kept("0 s ago")}</span>'


def test_a_duration_inside_a_sentence_is_not_broken():
    words = "it has been due for 23 h 20 min: 'mail' (7 tasks, 45 min 4 s), the last 1.5 s ago, in 12 months"
    shown = str(unbroken(words).unescape())
    assert shown.startswith(f"it has been due for {kept('23 h 20 min')}: ")
    assert [one for one in shown.split(" ") if kept(" ") in one] == [
        f"{kept('23 h 20 min')}:",
        f"{kept('45 min 4 s')}),",
        f"{kept('1.5 s ago')},",
    ]
    assert unbroken("<b>5 min") == f"&lt;b&gt;{kept('5 min')}"


def test_an_age_has_a_unit_and_the_next_smaller_one():
    assert elapsed(timedelta(minutes=9, seconds=59)) == kept("9 min 59 s")
    assert elapsed(timedelta(minutes=59, seconds=5)) == kept("59 min")
    assert elapsed(timedelta(hours=2, seconds=52)) == kept("2 h")
    assert elapsed(timedelta(hours=2, minutes=1, seconds=52)) == kept("2 h 1 min")
    assert elapsed(timedelta(days=2, minutes=39)) == kept("2 d")
    assert age(NOON - timedelta(hours=2, seconds=52), NOON).striptags() == "2 h ago"
    assert age(NOON + timedelta(days=1, hours=3, minutes=5), NOON).striptags() == "in 1 d 3 h"
