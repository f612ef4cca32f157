"""The measured numbers, their medians and ratios, and the file that stores them for later comparisons."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RATE, MILLISECONDS, MICROSECONDS, BYTES, MEGABYTES, SHARE, PERCENT, COUNT = (
    "tasks/s",
    "ms",
    "us",
    "bytes",
    "MB",
    "of the ideal",
    "% of a core",
    "buffers",
)
MORE_IS_BETTER = {RATE, SHARE}


@dataclass(slots=True)
class Measure:
    """One measure, with a sample from each queue in each round."""

    title: str
    unit: str
    samples: dict[str, list[float]] = field(default_factory=dict)

    def median(self, who: str) -> float | None:
        found = self.samples.get(who)
        return statistics.median(found) if found else None

    def medians(self) -> list[tuple[str, float]]:
        """Return the median of each queue, in the order of their first samples."""
        return [(who, statistics.median(values)) for who, values in self.samples.items() if values]

    def ratio(self, one: str, other: str) -> float | None:
        """Return `one` divided by `other`: the median of the rounds' ratios or, if the rounds differ, the ratio of the
        medians.

        Returns None if one of them did not take part, or if the median of `other` is not positive because of noise.
        """
        mine, theirs = self.samples.get(one), self.samples.get(other)
        if not mine or not theirs:
            return None
        if len(mine) == len(theirs) and min(theirs) > 0:
            return statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
        below = statistics.median(theirs)
        return statistics.median(mine) / below if below > 0 else None


@dataclass(slots=True)
class Results:
    """The results of one run."""

    about: dict[str, Any] = field(default_factory=dict)
    """The machine, the versions, the settings and the sizes."""
    measures: dict[str, Measure] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Maps each missing measurement to the reason."""

    def add(self, key: str, title: str, unit: str, who: str, values: float | Sequence[float]) -> None:
        measure = self.measures.setdefault(key, Measure(title, unit))
        measure.samples.setdefault(who, []).extend([values] if isinstance(values, int | float) else values)

    def median(self, key: str, who: str) -> float | None:
        return self.measures[key].median(who) if key in self.measures else None

    def ratio(self, key: str, one: str, other: str) -> float | None:
        return self.measures[key].ratio(one, other) if key in self.measures else None

    def write(self, path: Path) -> None:
        measures = {
            key: {"title": one.title, "unit": one.unit, "samples": one.samples} for key, one in self.measures.items()
        }
        said = {"about": self.about, "missing": self.missing, "measures": measures}
        path.write_text(json.dumps(said, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Results:
        found = json.loads(path.read_text())
        measures = {key: Measure(one["title"], one["unit"], one["samples"]) for key, one in found["measures"].items()}
        return cls(about=found["about"], measures=measures, missing=found["missing"])


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
