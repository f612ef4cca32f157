"""Words that follow numbers. Front ends must not build their own plurals."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

from outboxq.model.wording import brief, plural, size, span
from outboxq.store.explain.reasons import span_of

PACKAGE = Path(__file__).parents[2] / "outboxq"
BY_HAND = re.compile(r"""["']s["'] if |["']["'] if [^}]* == 1 else ["']s["']|if [^}]*== 1 else ["'][a-z ]*s["']""")
NUMBER_AND_NOUN = re.compile(
    r"\{\w*(?:number|count|left|pending|deleted|moved|changed|omitted)\} (?:tasks|tables|ticks|workers|dead letters|lines)\b"
)


def test_only_the_number_one_is_singular():
    assert [f"{number} {plural(number, 'task')}" for number in (0, 1, 2)] == ["0 tasks", "1 task", "2 tasks"]
    assert [plural(number, "was", "were") for number in (0, 1, 2)] == ["were", "was", "were"]


def test_a_duration_in_a_column_is_short_and_has_one_unit():
    seconds = (0.012, 1.5, 9.96, 99, 100, 5940, 7020, 4 * 86_400)
    assert [brief(timedelta(seconds=one)) for one in seconds] == [
        *("12 ms", "1.5 s", "10 s", "99 s", "2 min", "99 min", "2 h", "96 h")
    ]
    assert brief(timedelta(days=5)) == span(timedelta(days=5)) == "5 d"
    assert {len(brief(timedelta(seconds=1.3**n))) <= 6 for n in range(-20, 65)} == {True}


def test_a_number_that_is_rounded_up_to_the_next_unit_is_written_in_that_unit():
    assert [span(one) for one in (0.9994, 0.9996, 9.94, 9.96, 59.6, 3599.9, 86_399.7)] == [
        *("999 ms", "1.0 s", "9.9 s", "10 s", "1 min", "1 h", "1 d")
    ]
    assert [brief(timedelta(seconds=one)) for one in (0.9996, 9.96, 99.4, 99.6, 5969, 5971, 359_900)] == [
        *("1.0 s", "10 s", "99 s", "2 min", "99 min", "2 h", "4 d")
    ]
    assert [span_of(timedelta(seconds=one)) for one in (9.94, 9.96)] == ["9.9 s", "10 s"]
    sizes = (999, 1000, 99_949, 99_960, 999_499, 999_501, 999_499_999, 999_600_000, 999_600_000_000)
    assert [size(one) for one in sizes] == [
        *("999 B", "1.0 kB", "99.9 kB", "100 kB", "999 kB", "1.0 MB", "999 MB", "1.0 GB", "1.0 TB")
    ]


def test_a_negative_duration_between_two_clocks_is_written_as_zero():
    """A database's clock may be milliseconds behind the clock of the machine that wrote the other time."""
    for one in (timedelta(milliseconds=-29), timedelta(microseconds=-1), timedelta(0), timedelta(hours=-2)):
        assert {span(one), span(one.total_seconds()), brief(one)} == {"0 s"}
        assert span_of(one) == "0.0 s"
    assert (span(0.0006), brief(timedelta(milliseconds=1))) == ("1 ms", "1 ms")


def test_modules_do_not_build_plurals_themselves():
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.html")])
        for line in path.read_text(encoding="utf-8").splitlines()
        if BY_HAND.search(line) or NUMBER_AND_NOUN.search(line)
    ]
    assert found == []
