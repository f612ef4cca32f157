"""Print the results of a run as tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from benchmarks.goals import Goal, goals
from benchmarks.queues import NOT_RUN, OUTBOXQ, RAW
from benchmarks.results import MORE_IS_BETTER, Measure, Results

WIDTH = 110
LEGEND = (
    "Each table: the median, the least and the most of the rounds. 'of raw': this figure divided by that of the hand-written SQL, "
    "the median of the rounds' ratios. 'outboxq is': outboxq's figure divided by this one, in the same way. NORMAL and FULL are "
    "SQLite's settings of synchronous, each compared with its like where there is one."
)


def report(results: Results) -> str:
    said = [*_about(results), "", *textwrap.wrap(LEGEND, WIDTH), *_measures(results), "", *goals_table(results)]
    return "\n".join([*said, *_missing(results)])


def _about(results: Results) -> Iterator[str]:
    for name, said in results.about.items():
        if isinstance(said, dict):
            yield f"{name}:"
            for key, value in said.items():
                yield from _wrapped(f"  {key}: {value}")
        else:
            yield from _wrapped(f"{name}: {said}")


def _wrapped(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _measures(results: Results) -> Iterator[str]:
    for measure in results.measures.values():
        yield from ("", *table(measure))


def table(measure: Measure) -> Iterator[str]:
    """Return the lines of a measure's table: medians, spreads, the ratio to raw, and outboxq's ratio to each."""
    names = [who for who in measure.samples if measure.samples[who]]
    raws, ours = ({who: _like(who, name) for who in names} for name in (RAW, OUTBOXQ))
    compared = any(raws[who] in names and raws[who] != who for who in names)
    peers = any(ours[who] in names and ours[who] != who for who in names)
    better = "more" if measure.unit in MORE_IS_BETTER else "less"
    times_asked = max(len(measure.samples[who]) for who in names)
    yield f"{measure.title} ({measure.unit}, {better} is better; {times_asked} x)"
    head = f"  {'':26}{'median':>12}{'least':>12}{'most':>12}"
    yield head + (f"{'of raw':>10}" if compared else "") + (f"{'outboxq is':>12}" if peers else "")
    for who in names:
        values = measure.samples[who]
        line = f"  {who:26}" + "".join(number(one, 12) for one in (measure.median(who), min(values), max(values)))
        if compared:
            line += times(measure.ratio(who, raws[who]), 10)
        if peers:
            line += times(measure.ratio(ours[who], who), 12)
        yield line.rstrip()


def _like(who: str, name: str) -> str:
    """Return the name of another queue in the same situation: `raw FULL` for `Huey FULL`, or `raw, few` for `outboxq, few`."""
    first, space, rest = who.partition(" ")
    return name + ("," if first.endswith(",") else "") + space + rest


def goals_table(results: Results) -> Iterator[str]:
    """Return the lines of a table with each goal, the value that was reached, and whether the goal was met."""
    found = goals(results)
    width = max(len(goal.of) for goal in found) + 2
    yield f"{'goal':{width}}{'bar':>8}{'stretch':>9}{'reached':>11}"
    for goal in found:
        bars = f"{_bar(goal, goal.bar):>8}{_bar(goal, goal.stretch):>9}"
        yield f"{goal.of:{width}}{bars}{_reached(goal):>11}  {_verdict(goal)}"
    counted = [goal.met(goal.bar) for goal in found if goal.bar is not None]
    yield f"met {counted.count(True)}, missed {counted.count(False)}, not measured {counted.count(None)}"


def _bar(goal: Goal, bar: float | None) -> str:
    return "" if bar is None else f"{'<=' if goal.most else '>='} {bar:g}"


def _reached(goal: Goal) -> str:
    return "" if goal.value is None else f"{goal.value:.2f} {goal.unit.split()[0]}"


def _verdict(goal: Goal) -> str:
    if goal.value is None:
        return "not measured"
    if goal.bar is None:
        return "stretch met" if goal.met(goal.stretch) else "stretch missed"
    return "met + stretch" if goal.met(goal.stretch) else "met" if goal.met(goal.bar) else "MISSED"


def _missing(results: Results) -> Iterator[str]:
    yield from ("", "not run")
    for what, why in {**NOT_RUN, **results.missing}.items():
        yield from _wrapped(f"  {what}: {why}")


def compare(one: Results, other: Results) -> str:
    """Return a comparison of the second run with the first."""
    lines = [f"first: {one.about['begun']}, second: {other.about['begun']}"]
    for key, measure in one.measures.items():
        later = other.measures.get(key)
        if later is None:
            continue
        lines += ["", f"{measure.title} ({measure.unit})"]
        if later.title != measure.title:
            lines.append(f"  not the same sizes; the second: {later.title}")
        lines.append(f"  {'':26}{'first':>12}{'second':>12}{'second / first':>16}{'of raw: first':>16}{'second':>10}")
        for who in measure.samples:
            before, after = measure.median(who), later.median(who)
            if before is None or after is None:
                continue
            line = f"  {who:26}{number(before, 12)}{number(after, 12)}{times(after / before if before else None, 16)}"
            lines.append(
                line + times(measure.ratio(who, _like(who, RAW)), 16) + times(later.ratio(who, _like(who, RAW)), 10)
            )
    return "\n".join(lines)


def number(value: float | None, width: int) -> str:
    if value is None:
        return " " * width
    return f"{value:>{width},.0f}" if abs(value) >= 100 else f"{value:>{width}.2f}"


def times(value: float | None, width: int) -> str:
    return f"{value:>{width}.2f}" if value is not None else " " * width
