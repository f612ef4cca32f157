"""A smoke test of `benchmarks/growth.py` at its smallest size: it runs, counts exactly, and prints its results."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from benchmarks import curves, growth
from benchmarks.results import BYTES, COUNT, Results


def results(values) -> Results:
    """Return the results of one call, with a value for each size."""
    found = Results()
    for size, value in values.items():
        found.add(f"postgresql.finished.claim 100.{COUNT}", "", COUNT, f"outboxq {size}", value)
    return found


@pytest.mark.campaign
def test_the_smallest_size_is_measured_in_seconds(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(growth, "POSTGRESQL", [queue for queue in growth.POSTGRESQL if queue.name == growth.OUTBOXQ])
    kept, charts = tmp_path / "run.json", tmp_path / "charts"
    words = f"growth --rows 1000 --rounds 2 --only finished --json {kept} --charts {charts}"
    monkeypatch.setattr("sys.argv", words.split())
    assert growth.main() == 0
    found = Results.read(kept)
    assert found.missing == {}
    whole = "postgresql.finished"
    [claimed] = found.measures[f"{whole}.claim 1.{COUNT}"].samples["outboxq 1000"][:1]
    assert 10 < claimed < 100
    [entered, *_] = found.measures[f"{whole}.enqueue 1.{BYTES}"].samples["outboxq 1000"]
    assert 500 < entered < 20_000
    assert f"{whole}.log of a task's claim and completion.{BYTES}" in found.measures
    assert f"sqlite.finished.verify.{growth.MILLISECONDS}" in found.measures
    assert "postgresql, finished: pages touched" in capsys.readouterr().out
    for chart in charts.iterdir():
        assert ET.parse(chart).getroot().tag.endswith("svg")


def test_a_saved_run_is_printed_again(tmp_path, capsys, monkeypatch):
    kept = tmp_path / "run.json"
    results({10_000: 1972.0, 100_000: 2000.0}).write(kept)
    monkeypatch.setattr("sys.argv", f"growth --read {kept}".split())
    assert growth.main() == 0
    assert json.loads(kept.read_text())["measures"]
    line = next(line for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("claim 100"))
    assert line.split() == ["claim", "100", "1,972", "2,000", "1.01x"]


def test_sizes_are_powers_of_ten_up_to_the_given_one():
    assert growth.sizes(1_000) == [1_000]
    assert growth.sizes(1_000_000) == [10_000, 100_000, 1_000_000]
    assert growth.sizes(25_000) == [10_000, 25_000]


def test_sizes_without_enough_time_are_reported_and_not_begun(monkeypatch, tmp_path):
    took = iter([10.0, 20.0])
    run = growth.Growth(
        results=Results(), cluster=None, folder=tmp_path, rows=10_000_000, until=100.0, only=["waiting"]
    )
    now = [0.0]
    monkeypatch.setattr(growth.time, "monotonic", lambda: now[0])

    def measure(self, *_):
        now[0] += next(took)

    monkeypatch.setattr(growth.Growth, "_measure", measure)
    run.run(["postgresql"], lambda: None)
    assert list(run.results.missing) == ["postgresql, waiting, 1,000,000", "postgresql, waiting, 10,000,000"]


def test_curves_have_a_scale_of_powers_of_ten_and_labels_that_do_not_overlap():
    drawn = curves.chart("Of a call", {name: {10_000: value, 10_000_000: value * 2} for name, value in A_LOT.items()})
    root = ET.fromstring(drawn)
    labels = [element for element in root.iter() if element.tag.endswith("text") and element.get("style")]
    heights = sorted(float(label.get("y")) for label in labels)
    assert len(heights) == len(A_LOT)
    assert all(later - earlier >= 15 for earlier, later in pairwise(heights))
    assert {"1", "10", "100"} <= {element.text for element in root.iter() if element.tag.endswith("text")}


A_LOT = {"one": 5.0, "another": 5.1, "a third": 50.0}
