"""The page about retries matches the code. To update its table: python -m tests.docs.test_retries_page"""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

from outboxq import RetryPolicy
from outboxq.model import MAX_RECOVERIES
from tests.docs.tables import between, put_between

PAGE = Path(__file__).parents[2] / "docs" / "retries.md"
POLICY = RetryPolicy()


def longest(attempt: int) -> timedelta:
    """Return the longest wait after an attempt that the policy may draw."""
    with patch("random.uniform", lambda _low, high: high):
        delay = POLICY.next_delay(attempt=attempt, error=OSError(), max_attempts=100, elapsed=timedelta(0))
    assert delay is not None
    return delay


def waits() -> str:
    assert POLICY.max_attempts
    lines = ["| before attempt | wait at most | on average | all waits so far, at most |", "|---:|---:|---:|---:|"]
    total = timedelta(0)
    for attempt in range(1, POLICY.max_attempts):
        wait = longest(attempt)
        total += wait
        lines.append(f"| {attempt + 1} | {_words(wait)} | {_words(wait / 2)} | {_words(total)} |")
    return "\n".join(lines) + "\n"


def _words(span: timedelta) -> str:
    minutes, seconds = divmod(int(span.total_seconds()), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def test_the_table_of_waits_matches_the_default_policy():
    assert between(PAGE, "waits") == waits(), "run: python -m tests.docs.test_retries_page"


def test_waits_are_between_zero_and_the_bound():
    for wanted, drawn in ((timedelta(0), lambda low, _high: low), (longest(3), lambda _low, high: high)):
        with patch("random.uniform", drawn):
            assert POLICY.next_delay(attempt=3, error=OSError(), max_attempts=None, elapsed=timedelta(0)) == wanted
    assert longest(50) == timedelta(hours=1)


def test_the_total_time_on_the_page_is_the_sum_of_the_waits():
    assert POLICY.max_attempts
    total = sum((longest(attempt) for attempt in range(1, POLICY.max_attempts)), timedelta(0))
    said = re.search(
        r"gives up after at most (\d+) minutes, and after about (\d+) minutes on average", PAGE.read_text()
    )
    assert said
    assert [int(one) for one in said.groups()] == [total // timedelta(minutes=1), total / 2 // timedelta(minutes=1)]


def test_the_parameters_match_those_of_a_retry_policy():
    fields = [one for one in dataclasses.fields(RetryPolicy) if one.init]
    listed = re.findall(r"^\| `(\w+)` \| (.+?) \|", PAGE.read_text(), re.MULTILINE)
    assert [name for name, _ in listed] == [one.name for one in fields]
    assert listed[0][1] == str(POLICY.max_attempts)


def test_the_number_of_recoveries_matches_the_code():
    assert MAX_RECOVERIES == 3
    assert "… for the fourth time in a row | the task is Failed" in PAGE.read_text()


if __name__ == "__main__":
    put_between(PAGE, "waits", waits())
