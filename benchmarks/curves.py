"""Print tables with a column for each size, and draw curves as SVG without a library. Both axes are logarithmic."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from benchmarks.charts import HAND, OTHERS, OURS, STYLE
from benchmarks.queues import OUTBOXQ, RAW
from benchmarks.results import BYTES, COUNT, MICROSECONDS, MILLISECONDS, Results

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 70, 210, 62, 44
COLOURS = (OURS, OTHERS, "#b5651d", "#7a4fa3", "#b03a5b", "#4a4a4a", HAND)
UNITS = (COUNT, BYTES, MICROSECONDS, MILLISECONDS)
"""The units, with the exact ones first."""
HEADS = {
    COUNT: "pages touched",
    BYTES: "bytes, of log where nothing else is said",
    MICROSECONDS: "us of CPU",
    MILLISECONDS: "ms",
}

Curves = Mapping[str, Mapping[int, float]]
"""Maps each name to its values by size."""

CHARTS: Mapping[str, tuple[str, str, str, Sequence[str]]] = {
    f"{kind}-{series.partition(',')[0]}{'-partitioned' if ',' in series else ''}-{label}": (kind, series, unit, whats)
    for kind, all_series in {
        "postgresql": ("finished", "finished, partitions of a day", "waiting"),
        "sqlite": ("finished", "waiting"),
    }.items()
    for series in all_series
    for label, unit in (("buffers", COUNT), ("wal", BYTES), ("ms", MILLISECONDS))
    if kind == "postgresql" or unit == MILLISECONDS
    for whats in [("enqueue 1", "claim 1", "complete 1", "claim 100", "complete 100", "get", "history", "stats")]
}


def tables(results: Results) -> Iterator[str]:
    """Return the lines of all tables, with the exact units first. Each call has a line, and each size a column."""
    for name, said in results.about.items():
        yield f"{name}: {said}"
    for group in dict.fromkeys(tuple(key.split(".")[:2]) for key in results.measures):
        for unit in UNITS:
            lines = [(what, found) for what, found in _of(results, *group, unit)]
            if not lines:
                continue
            rows = sorted({size for _, found in lines for curve in found.values() for size in curve})
            yield ""
            yield f"{', '.join(group)}: {HEADS[unit]}"
            yield f"  {'tasks':52}" + "".join(f"{size:>14,}" for size in rows) + f"{'growth':>9}"
            for what, found in lines:
                for who, curve in found.items():
                    yield f"  {what if who == OUTBOXQ else f'{what}, {who}':52}" + _line(curve, rows)
    for what, why in results.missing.items():
        yield f"not measured: {what}: {why}"


def _line(curve: Mapping[int, float], rows: Sequence[int]) -> str:
    cells = "".join(f"{said(curve[size]):>14}" if size in curve else f"{'-':>14}" for size in rows)
    low, high = curve[min(curve)], curve[max(curve)]
    return cells + (f"{high / low:>8.2f}x" if low > 0 and len(curve) > 1 else "")


def _of(results: Results, kind: str, series: str, unit: str) -> Iterator[tuple[str, dict[str, dict[int, float]]]]:
    for key, measure in results.measures.items():
        if key.startswith(f"{kind}.{series}.") and measure.unit == unit:
            found: dict[str, dict[int, float]] = {}
            for who in measure.samples:
                name, _, size = who.rpartition(" ")
                value = measure.median(who)
                if value is not None:
                    found.setdefault(name, {})[int(size)] = value
            yield key.removeprefix(f"{kind}.{series}.").removesuffix(f".{unit}"), found


def write(results: Results, folder: Path) -> list[Path]:
    """Write a file for each of `CHARTS` for which there are figures."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, (kind, series, unit, whats) in CHARTS.items():
        known = dict(_of(results, kind, series, unit))
        drawn = {what: known[what][OUTBOXQ] for what in whats if what in known}
        for what in ("claim 100", "complete 100"):
            if what in known and RAW in known[what]:
                drawn[f"{what}, {RAW}"] = known[what][RAW]
        if drawn:
            path = folder / f"growth-{name}.svg"
            title = (
                f"{'PostgreSQL' if kind == 'postgresql' else 'SQLite'}, {series} tasks: {HEADS[unit].partition(',')[0]}"
            )
            path.write_text(chart(title, drawn))
            made.append(path)
    return made


def chart(title: str, found: Curves) -> str:
    values = [value for curve in found.values() for value in curve.values() if value > 0]
    sizes = sorted({size for curve in found.values() for size in curve})
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    first, last = math.log10(sizes[0]), max(math.log10(sizes[-1]), math.log10(sizes[0]) + 1)

    def across(size: float) -> float:
        return LEFT + (math.log10(size) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text class="t" x="12" y="24">{escape(title)}</text>',
        '<text class="s" x="12" y="44">of one call, against the tasks in the tables; both by powers of ten</text>',
    ]
    for power in range(low, high + 1):
        height = up(10.0**power)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}" stroke="#ddd"/>')
        parts.append(f'<text class="s" x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{10.0**power:,g}</text>')
    for size in sizes:
        parts.append(f'<text class="s" x="{across(size):.1f}" y="{HEIGHT - 18}" text-anchor="middle">{size:,}</text>')
    taken: list[float] = []
    for colour, (name, curve) in zip(COLOURS * 3, _from_the_top(found), strict=False):
        points = [(across(size), up(value)) for size, value in sorted(curve.items()) if value > 0]
        if not points:
            continue
        dashes = ' stroke-dasharray="5 4"' if name.endswith(RAW) else ""
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        height = max(points[-1][1] + 4, taken[-1] + 16 if taken else 0.0)  # below the previous label
        taken.append(height)
        label = f"{name}: {said(curve[max(curve)])}"
        parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{height:.1f}" style="fill:{colour}">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _from_the_top(found: Curves) -> list[tuple[str, Mapping[int, float]]]:
    return sorted(found.items(), key=lambda one: -one[1][max(one[1])])


def said(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.2f}"
