"""The geometry of charts: all parts are inside the plot and in order, and contain nothing that SVG cannot draw."""

from __future__ import annotations

import math
import random
import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from outboxq.model import TaskStatus
from outboxq.model.schedules import TickRun
from outboxq.web.charts import (
    HEIGHT,
    WIDTH,
    Axis,
    Plot,
    PlotKind,
    Series,
    lines,
    sparkline,
    stacked,
    tick_bars,
    time_ticks,
)
from outboxq.web.rendering import environment

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def axis(steps: int, step: timedelta = MINUTE, tick: timedelta = 15 * MINUTE) -> Axis:
    return Axis(since=NOON - steps * step, step=step, steps=steps, tick=tick)


def series(*columns, names=("completed", "retried", "failed")):
    return [Series(name=name, values=column) for name, column in zip(names, columns, strict=False)]


def points(path: str) -> list[list[tuple[float, float]]]:
    """Return the points of each continuous part of a path."""
    parts = [part.removesuffix("h0.01") for part in path.split("M") if part]
    return [[tuple(map(float, place.split())) for place in part.split("L")] for part in parts]


def bars(path: str) -> list[tuple[float, float, float]]:
    """Return the left edge, the top and the height of each bar."""
    found = re.findall(r"M([0-9.]+) ([0-9.]+)h[0-9.]+v([0-9.]+)H\1z", path)
    assert len(found) == path.count("M")
    return [tuple(map(float, one)) for one in found]


def check(chart) -> None:
    """Check that everything is in the plot, from left to right, and that each number is finite."""
    ticks = [one.at for one in chart.values]
    assert ticks == sorted(ticks, reverse=True)
    assert len({one.words for one in chart.values}) == len(chart.values) >= 2, chart.values
    assert all(0 <= one <= HEIGHT for one in ticks)
    assert [one.at for one in chart.times] == sorted(one.at for one in chart.times)
    assert all(0 <= one.at <= 100 for one in chart.times)
    edges = [step.x for step in chart.steps]
    assert edges == sorted(edges)
    assert all(step.x >= 0 and step.x + step.width <= WIDTH + 1 for step in chart.steps)
    for shape in chart.bars:
        for _, y, height in bars(shape.path):
            assert height > 0
            assert y >= 0
            assert y + height <= HEIGHT
    for line in chart.lines:
        places = [place for part in points(line.path) for place in part]
        assert [x for x, _ in places] == sorted({x for x, _ in places})
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)
    assert not re.search(r"\b(nan|inf)\b", repr(chart))


def numbers(seed: int, steps: int) -> list[float | None]:
    """Return values of very different sizes, with gaps. Some columns have no values."""
    dice = random.Random(seed)
    biggest = 10.0 ** dice.randint(-4, 18)
    gap = dice.choice([0.0, 0.3, 0.9, 1.0])
    return [None if dice.random() < gap else dice.choice([0.0, dice.random() * biggest]) for _ in range(steps)]


@pytest.mark.parametrize("seed", range(40))
def test_any_values_are_drawn_inside_the_plot(seed):
    steps = random.Random(seed).choice([1, 2, 60, 96])
    columns = [numbers(seed * 7 + index, steps) for index in range(3)]
    check(lines("Wait", axis(steps), series(*columns), of_time=seed % 2 == 0))
    check(stacked("Throughput", axis(steps), series(*([round(value or 0) for value in one] for one in columns))))


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, -1.0])
def test_a_value_that_is_not_an_amount_is_not_drawn(odd):
    chart = lines("Depth", axis(3), series([1, odd, 3]))
    check(chart)
    assert [len(part) for part in points(chart.lines[0].path)] == [1, 1]
    check(stacked("Throughput", axis(3), series([1, odd, 3])))


def test_bars_are_stacked_without_gaps_up_to_their_sum():
    chart = stacked("Throughput", axis(2), series([30, 0], [10, 0], [0, 20]))
    assert [shape.kind for shape in chart.bars] == ["completed", "retried", "failed"]
    ((left, low, height),), ((above, high, smaller),), ((right, _, _),) = (bars(shape.path) for shape in chart.bars)
    assert left == above < right
    assert low == pytest.approx(high + smaller, abs=0.02)
    zero, highest = chart.values[0], chart.values[-1]
    assert (zero.words, highest.words) == ("0", "40")
    assert low + height == pytest.approx(zero.at, abs=0.02)
    assert high == pytest.approx(highest.at, abs=0.02)
    assert height == pytest.approx(3 * smaller, abs=0.1)


def test_bars_of_the_same_colour_are_one_path():
    chart = stacked("Throughput", axis(2), series([30, 10], [10, 0]))
    completed, retried = chart.bars
    (_, first, tall), (_, second, short) = bars(completed.path)
    assert completed.path == f"M50 {first:g}h400v{tall:g}H50zM550 {second:g}h400v{short:g}H550z"
    assert (retried.kind, len(bars(retried.path))) == ("retried", 1)


def test_a_chart_of_days_names_the_day_of_each_step():
    chart = lines("Depth", axis(84, 2 * HOUR), series([1] * 84, names=["due"]))
    assert chart.steps[0].title == "25 Dec 12:00 to 14:00: due 1"
    assert chart.rows[0][0] == "1 Jan 10:00"


def test_a_line_has_gaps_at_unknown_values_and_dots_at_single_values():
    chart = lines("Depth", axis(6), series([1, 2, None, 3, None, 4]))
    (line,), (dots,) = chart.lines, chart.points
    assert [len(part) for part in points(line.path)] == [2, 1, 1]
    assert line.path.count("h0.01") == 2
    assert (dots.kind, dots.path.count("M"), dots.path.count("h0.01")) == (line.kind, 2, 2)
    assert lines("Depth", axis(3), series([1, 2, 3])).points == []


@pytest.mark.parametrize(
    ("highest", "words"),
    [
        (0, ["0", "1"]),
        (1, ["0", "1"]),
        (3, ["0", "1", "2", "3"]),
        (7, ["0", "2", "4", "6", "8"]),
        (999, ["0", "500", "1k"]),
        (3_100_000, ["0", "1M", "2M", "3M", "4M"]),
    ],
)
def test_axes_of_counts_have_round_numbers(highest, words):
    assert [tick.words for tick in stacked("Throughput", axis(1), series([highest])).values] == words


@pytest.mark.parametrize(
    ("highest", "words"),
    [
        (0, ["0", "1 ms"]),
        (0.017, ["0", "5 ms", "10 ms", "15 ms", "20 ms"]),
        (3.2, ["0", "1 s", "2 s", "3 s", "4 s"]),
        (95, ["0", "30 s", "1 min", "1.5 min", "2 min"]),
        (3600, ["0", "15 min", "30 min", "45 min", "1 h"]),
        (400_000, ["0", "2 d", "4 d", "6 d"]),
    ],
)
def test_axes_of_durations_have_round_numbers(highest, words):
    assert [tick.words for tick in lines("Wait", axis(1), series([highest]), of_time=True).values] == words


def test_labels_are_at_round_times_and_midnight_shows_the_date():
    long = Axis(since=datetime(2029, 12, 31, 12, 15, tzinfo=UTC), step=15 * MINUTE, steps=96, tick=4 * HOUR)
    assert [tick.words for tick in time_ticks(long)] == ["16:00", "20:00", "1 Jan", "04:00", "08:00", "12:00"]
    assert [tick.anchor for tick in time_ticks(long)] == ["middle"] * 5 + ["end"]


def test_a_chart_of_zeros_is_empty_only_if_it_has_bars():
    assert stacked("Throughput", axis(3), series([0, 0, 0], [0, 0, 0])).is_empty
    assert lines("Depth", axis(3), series([None, None, None])).is_empty
    assert not lines("Depth", axis(3), series([None, 0, None])).is_empty


def test_the_label_and_the_table_contain_the_numbers():
    chart = stacked("Throughput", axis(3), series([1200, 0, 34], [0, 0, 1]))
    assert chart.label == "Throughput from 2030-01-01 11:57 to 2030-01-01 12:00 UTC: 1,234 completed, 1 retried."
    assert chart.rows == [("11:59", ["34", "1"]), ("11:57", ["1,200", "0"])]
    depth = lines("Depth", axis(3), series([5, None, 2], names=["due"]))
    assert depth.label == "Depth from 2030-01-01 11:57 to 2030-01-01 12:00 UTC: due last 2, at most 5."
    assert [values for _, values in depth.rows] == [["2"], ["5"]]
    assert depth.steps[1].title == "11:58 to 11:59: unknown"


def test_a_single_peak_is_cut_off_and_its_value_is_noted():
    column = [float(100 + index) for index in range(59)]
    chart = lines("Depth", axis(60), series([*column[:30], 150_000, *column[30:]], names=("due",)))
    assert [tick.words for tick in chart.values] == ["0", "50", "100", "150", "200"]
    assert chart.notes == [f"Above the axis: due 150,000 at {NOON - 30 * MINUTE:%d %b %H:%M}."]
    check(chart)
    many = lines("Depth", axis(60), series([1.0] * 30 + [150_000.0] * 30, names=("due",)))
    assert (many.values[-1].words, many.notes) == ("150k", [])
    zeros = lines("Depth", axis(60), series([0.0] * 59 + [150_000.0], names=("due",)))
    assert (zeros.values[-1].words, zeros.notes) == ("150k", [])


def test_only_missing_samples_are_marked_as_missing():
    column = [None, 1, None, None, 4, None]
    chart = lines("Depth", axis(6), series(column), is_sampled=True)
    assert [step.x for step in chart.missing] == [chart.steps[index].x for index in (0, 2, 3, 5)]
    assert chart.notes == ["Samples are missing for 2 min, because no worker took any."]
    chart = lines("Wait", axis(6), series(column), of_time=True)
    assert (chart.missing, chart.notes) == ([], [])


def test_a_sparkline_needs_two_values():
    assert sparkline([]) is None
    assert sparkline([None, 3, None]) is None
    line, area = sparkline([0, None, 10])
    assert points(line) == [[(0, 19), (100, 1)]]
    assert area.startswith(line)


def test_a_drawing_has_no_inline_styles_or_scripts():
    chart = stacked("<b>Through</b>", axis(3), series([1, 2, 3], names=["<i>done</i>"]))
    text = str(environment().get_template("charts.html").module.card(chart, "nothing"))
    assert "style=" not in text
    assert "<script" not in text
    assert "<b>Through" not in text
    assert "<i>done" not in text
    assert text.count("<title>") == 3


def test_the_height_of_a_tick_bar_shows_how_long_its_task_ran():
    ended = [(TaskStatus.COMPLETED, 4 * MINUTE), (TaskStatus.FAILED, MINUTE), (TaskStatus.RUNNING, None), (None, None)]
    runs = [
        TickRun(schedule="a", tick=NOON + place * HOUR, task_id=UUID(int=place), status=status, ran=ran)
        for place, (status, ran) in enumerate(ended)
    ]
    found = tick_bars(runs)
    assert found is not None
    assert [(one.kind, one.height) for one in found.bars] == [
        ("completed", 19.0),
        ("failed", 7.0),
        ("running", 3.0),
        ("pruned", 3.0),
    ]
    assert all(one.y + one.height == 20 for one in found.bars)
    assert (found.bars[-1].x, found.bars[0].x) == (90, 60)
    assert found.bars[1].title == "2030-01-01 13:00:00 UTC: failed after 1 min"
    assert found.label == (
        "The last 4 ticks: 1 completed, 1 failed, 1 running, 1 pruned; the longest ran for 4 min, the last one for 1 min."
    )
    many = tick_bars(runs * 5)
    assert many is not None
    assert (min(one.x for one in many.bars), len(many.bars)) == (0, 20)
    assert tick_bars([]) is None


def plot(*numbers, kind=PlotKind.SAMPLES, title="Depth", steps=3):
    return Plot(kind=kind, title=title, axis=axis(steps), series=(Series(name="due", values=numbers),))


def test_a_chart_is_drawn_again_only_if_it_differs():
    drawn = environment().filters["drawn"]
    first = drawn(plot(1, None, 7))
    assert drawn(plot(1, None, 7)) is first
    others = [
        plot(1, None, 8),
        plot(1, 0, 7),
        plot(1, None, 7, title="Other"),
        plot(1, None, 7, 1, steps=4),
        plot(1, None, 7, kind=PlotKind.SPANS),
        plot(1, None, 7, kind=PlotKind.COUNTS),
    ]
    assert len({drawn(one).card for one in (plot(1, None, 7), *others)}) == 7
    assert "due <b>8</b>" in drawn(others[0]).card


def test_an_empty_plot_is_drawn_as_an_empty_chart():
    drawn = environment().filters["drawn"]
    assert drawn(plot(None, None, None)).is_empty
    assert not drawn(plot(0, None, None)).is_empty
    assert drawn(plot(0, 0, 0, kind=PlotKind.COUNTS)).is_empty


def test_dashboards_do_not_share_their_charts_and_keep_a_bounded_number():
    drawn, other = environment().filters["drawn"], environment().filters["drawn"]
    first = drawn(plot(1, 2, 3))
    assert other(plot(1, 2, 3)) is not first
    for number in range(100):
        drawn(plot(number, 2, 3))
    assert drawn.cache_info().currsize <= 64
