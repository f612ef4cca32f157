"""The pace of a prune: the number of tasks in a batch and the pauses depend on the time that batches take."""

from __future__ import annotations

from datetime import timedelta

import pytest

from outboxq.errors import InvalidArgument
from outboxq.store.retention import Pace


def pace(**options):
    return Pace(**{"batch": None, "pause": None, "one_writer": False, **options})


def test_on_postgresql_batches_grow_to_a_limit_without_pauses():
    own = pace()
    sizes = []
    for _ in range(8):
        sizes.append(own.batch)
        assert own.after(own.batch * 10e-6) == 0
    assert sizes == [50, 100, 200, 400, 800, 1600, 2000, 2000]


def test_a_batch_that_takes_too_long_halves_the_next_one():
    own = pace()
    for _ in range(5):
        own.after(own.batch * 20e-6)
    assert own.batch == 1600
    own.after(0.2)
    assert own.batch == 800
    for _ in range(9):
        own.after(0.2)
    assert own.batch == 50


def test_a_batch_that_is_slower_per_task_than_the_first_causes_a_pause():
    own = pace()
    assert own.after(0.001) == 0  # 20 µs per task
    assert own.batch == 100
    assert own.after(0.003) == 0  # 30 µs: no pause yet
    assert own.after(200 * 50e-6) == pytest.approx(0.01)  # 50 µs: a pause as long as the batch
    assert own.after(400 * 1e-3) == pytest.approx(0.6)  # never more than 1.5 times the batch


@pytest.mark.parametrize("one_writer", [True, False])
def test_a_batch_that_takes_no_measurable_time_causes_no_pause(one_writer):
    own = pace(one_writer=one_writer)
    assert own.after(0.0) == 0
    assert own.after(0.002) == (pytest.approx(0.003) if one_writer else 0)
    assert own.after(0.0) == 0


def test_on_sqlite_pauses_are_longer_than_batches():
    own = pace(one_writer=True)
    assert [own.after(0.002) for _ in range(3)] == [pytest.approx(0.003)] * 3
    assert own.batch == 50


@pytest.mark.parametrize("one_writer", [True, False])
def test_a_given_batch_size_and_pause_are_kept(one_writer):
    own = pace(batch=7, pause=timedelta(seconds=2), one_writer=one_writer)
    assert [own.after(seconds) for seconds in (1e-6, 1.0)] == [2, 2]
    assert own.batch == 7
    assert pace(pause=0, one_writer=one_writer).after(1.0) == 0


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"batch": 2.5}, {"pause": -1}, {"pause": "5s"}])
def test_an_invalid_pace_is_refused(wrong):
    with pytest.raises(InvalidArgument):
        pace(**wrong)
