"""Draw the pictures of the pages: python -m website.pictures"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from html import escape
from pathlib import Path

from outboxq.database.tables import metadata

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
INK, LINE, FILL, ACCENT = "#1f2933", "#52606d", "#f5f7fa", "#4051b5"
REFERENCES = {
    "task_execution_id": "task_executions",
    "batch_id": "task_batches",
    "worker_id": "workers",
    "schedule": "task_schedules",
}
"""The columns that contain the key of another table. There are no foreign keys from which to derive them."""
CENTRE = ("workers", "task_executions", "task_batches", "task_schedules")
"""The tables that other tables refer to, from top to bottom."""


def svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """Return a picture with its own background, so that it can be read on a dark page too."""
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
                f'role="img" font-family="system-ui, sans-serif" font-size="14" fill="{INK}">'
            ),
            f"<title>{escape(title)}</title>",
            (
                '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">'
                f'<path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker></defs>'
            ),
            f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def box(x: int, y: int, width: int, lines: Iterable[str], *, accent: bool = False) -> str:
    """Return a box with a heading and lines of text below it."""
    heading, *rest = lines
    edge, stroke = (ACCENT, 2) if accent else (LINE, 1)
    texts = [f'<text x="{x + 12}" y="{y + 24}" font-weight="600">{escape(heading)}</text>']
    texts += [f'<text x="{x + 12}" y="{y + 24 + 20 * n}">{escape(text)}</text>' for n, text in enumerate(rest, 1)]
    frame = f'<rect x="{x}" y="{y}" width="{width}" height="{height_of(rest)}" rx="6" fill="{FILL}" stroke="{edge}" stroke-width="{stroke}"/>'
    return frame + "".join(texts)


def height_of(rest: Iterable[str]) -> int:
    return 38 + 20 * len(list(rest))


def arrow(x1: int, y1: int, x2: int, y2: int, text: str = "") -> str:
    line = f'<path d="M{x1} {y1}C{(x1 + x2) // 2} {y1} {(x1 + x2) // 2} {y2} {x2} {y2}" fill="none" stroke="{LINE}" marker-end="url(#tip)"/>'
    return line + (
        f'<text x="{(x1 + x2) // 2}" y="{(y1 + y2) // 2 - 8}" text-anchor="middle">{escape(text)}</text>'
        if text
        else ""
    )


def commit() -> str:
    """Draw one commit that writes an order and its task, and the worker that runs the task afterwards."""
    return svg(
        840,
        260,
        "One commit writes the order and its task. A worker claims the task, runs it and records its completion.",
        [
            box(20, 90, 170, ["Your application", "INSERT order", "enqueue receipt", "COMMIT"], accent=True),
            arrow(190, 139, 268, 139),
            f'<rect x="270" y="30" width="260" height="200" rx="10" fill="none" stroke="{ACCENT}" stroke-dasharray="6 4"/>',
            '<text x="400" y="20" text-anchor="middle">Your database: both rows or neither</text>',
            box(290, 50, 220, ["orders", "1 · tea"]),
            box(290, 140, 220, ["outboxq's tables", "send_receipt(1) · Ready"]),
            arrow(510, 160, 648, 130, "claim"),
            box(650, 90, 170, ["Worker", "send_receipt(1)", "Completed"], accent=True),
            arrow(648, 165, 512, 190, "complete"),
        ],
    )


def tables() -> str:
    """Draw the tables and the references between them."""
    named = {table.name: table for table in metadata.sorted_tables}
    references = {
        name: [REFERENCES[column.name] for column in table.columns if column.name in REFERENCES]
        for name, table in sorted(named.items())
    }
    keys = {name: [column.name for column in table.primary_key.columns] for name, table in named.items()}
    left = [name for name, targets in references.items() if targets and name not in CENTRE]
    right = [name for name in references if name not in left and name not in CENTRE]
    places, parts = {}, []
    for x, column, gap in ((20, left, 14), (350, CENTRE, 150), (680, right, 14)):
        y = 20
        for name in column:
            lines = [name, ", ".join(keys[name])]
            parts.append(box(x, y, 240, lines, accent=name == "task_executions"))
            places[name] = (x, y + height_of(lines[1:]) // 2)
            y += height_of(lines[1:]) + gap
    height = 20 + max(y for _, y in places.values()) + 40
    arrows = [arrow(260, places[name][1], 348, places[target][1]) for name in left for target in references[name]]
    return svg(940, height, "outboxq's tables with their keys, and the references between them", [*arrows, *parts])


PICTURES: Mapping[str, Callable[[], str]] = {"commit.svg": commit, "tables.svg": tables}


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw())


if __name__ == "__main__":
    write()
