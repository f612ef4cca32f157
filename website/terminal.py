"""Draw a run of the demo as an animated terminal: python -m website.terminal"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from .pictures import FOLDER

PICTURE = FOLDER / "demo.svg"
COMMAND = "outboxq demo"
FRAMES = 12
"""The maximum number of status lines to show: the first, the last, and evenly spaced lines between them."""
FRAME_SECONDS, CHECK_SECONDS = 0.5, 0.35
ROW, LEFT, WIDTH = 24, 16, 1010
STYLE = """
  text { font: 14px ui-monospace, "DejaVu Sans Mono", monospace; fill: #d8dee9; white-space: pre; }
  .ok { fill: #a3be8c; }
  .passing, .staying { opacity: 0; }
  .passing { animation: shown 1s; }
  .staying { animation: shown 1s forwards; }
  @keyframes shown { from { opacity: 1 } to { opacity: 1 } }
  @media (prefers-reduced-motion: reduce) { .passing, .staying { animation: none } .staying { opacity: 1 } }
"""


def record() -> list[str]:
    """Run the demo, and return the lines that it prints without a terminal."""
    command = [sys.executable, "-m", "outboxq", "demo"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, check=True)
    return done.stdout.splitlines()


def draw(lines: Sequence[str]) -> str:
    """Return the animation, in which status lines replace each other, and the results of the checks remain."""
    statuses = list(dict.fromkeys(line for line in lines if line.startswith("orders ")))
    last = len(statuses) - 1
    chosen = [statuses[round(n * last / (FRAMES - 1))] for n in range(FRAMES)] if last >= FRAMES else statuses
    results = [line for line in lines if line.startswith("ok ")]
    results.append(re.sub(r"; [\d.]+ s\.$", ".", lines[-1]))  # the time depends on the machine
    parts = [_text(1, f"$ {COMMAND}", "", 0)]
    for number, status in enumerate(chosen):
        kind = "staying" if status == chosen[-1] else "passing"
        parts.append(_text(2, status, kind, number * FRAME_SECONDS, FRAME_SECONDS))
    begun = len(chosen) * FRAME_SECONDS
    for number, line in enumerate(results):
        kind = "staying ok" if line.startswith("ok ") else "staying"
        parts.append(_text(4 + number, line, kind, begun + number * CHECK_SECONDS))
    height = ROW * (5 + len(results))
    title = f"{COMMAND}: orders are placed, a worker is killed, and every check ends with ok"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#2e3440"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _text(row: int, text: str, kind: str, delay: float, duration: float = 1) -> str:
    style = f' class="{kind}" style="animation-delay:{delay:g}s;animation-duration:{duration:g}s"' if kind else ""
    return f'<text x="{LEFT}" y="{ROW * (row + 0.5):g}"{style}>{escape(text)}</text>'


if __name__ == "__main__":
    given = Path(sys.argv[1]).read_text().splitlines() if len(sys.argv) > 1 else record()
    PICTURE.write_text(draw(given))
