"""Write charts as SVG without a library: one horizontal bar for each queue, with a line that shows the spread."""

from __future__ import annotations

from collections.abc import Collection
from html import escape
from pathlib import Path

from benchmarks.queues import OUTBOXQ, RAW
from benchmarks.results import MORE_IS_BETTER, Measure, Results

WIDTH, LEFT, RIGHT, ROW, TOP = 760, 190, 110, 26, 58
OURS, HAND, OTHERS = "#1a7f5a", "#8a8f98", "#5b7fb5"
STYLE = "text{font:13px sans-serif;fill:#222}.t{font-weight:bold;font-size:15px}.s{fill:#666}"


def write(results: Results, folder: Path, keys: Collection[str] | None = None) -> list[Path]:
    """Write one file for each measure in which at least two queues took part, or only for the measures in `keys`."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for key, measure in results.measures.items():
        if (keys is None or key in keys) and len(measure.medians()) >= 2:
            path = folder / f"{key}.svg"
            path.write_text(chart(measure, _source(results)))
            made.append(path)
    return made


def _source(results: Results) -> str:
    """Return the command, the date and the machine of these figures."""
    about = results.about
    return f"{about.get('command', 'nox -s bench')}, {about['begun'][:10]}, {about['machine'].rpartition(',')[0]}"


def chart(measure: Measure, source: str) -> str:
    more = measure.unit in MORE_IS_BETTER
    known = dict(measure.medians())
    order = sorted(known, key=lambda who: known[who], reverse=more)
    longest = max(max(measure.samples[who]) for who in order) or 1.0
    room = WIDTH - LEFT - RIGHT
    height = TOP + ROW * len(order) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(measure.title)}</title><style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text class="t" x="12" y="24">{escape(measure.title)}</text>',
        f'<text class="s" x="12" y="44">{escape(measure.unit)}; {"more" if more else "less"} is better; line: least and most of the rounds</text>',
    ]
    for place, who in enumerate(order):
        top, middle = TOP + ROW * place, TOP + ROW * place + ROW / 2
        colour = OURS if who.startswith(OUTBOXQ) else HAND if who.startswith(RAW) else OTHERS
        values = measure.samples[who]
        least, most = (max(0.0, one) / longest * room for one in (min(values), max(values)))
        parts += [
            f'<text x="{LEFT - 8}" y="{middle + 4:.0f}" text-anchor="end">{escape(who)}</text>',
            f'<rect x="{LEFT}" y="{top + 4}" width="{max(1.0, known[who] / longest * room):.1f}" height="{ROW - 8}" fill="{colour}"/>',
            f'<line x1="{LEFT + least:.1f}" x2="{LEFT + most:.1f}" y1="{middle:.0f}" y2="{middle:.0f}" stroke="#222"/>',
            f'<text x="{LEFT + most + 6:.1f}" y="{middle + 4:.0f}">{_said(known[who])}</text>',
        ]
    parts.append(f'<text class="s" x="12" y="{height - 10}">{escape(source)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _said(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
