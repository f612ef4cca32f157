"""The benchmark's evaluation of its measurements: ratios, goals, tables and charts, and the part that the documentation shows."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks import charts, published
from benchmarks.goals import goals
from benchmarks.report import WIDTH, compare, goals_table, report, table
from benchmarks.results import MILLISECONDS, RATE, Measure, Results

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / published.FOLDER


@pytest.fixture
def results() -> Results:
    """Results of a machine that doubled its speed between the two rounds."""
    found = Results(about={"begun": "2030-01-01T12:00:00+00:00", "machine": "2 x quick, 8 GiB, Linux"})
    for name, times in (("raw", 1.0), ("outboxq", 0.7), ("PgQueuer", 0.35)):
        found.add("postgresql.drain", "postgresql: drain by 1 process", RATE, name, [1000 * times, 2000 * times])
        found.add("postgresql.pickup.p50", "postgresql: pickup, p50", MILLISECONDS, name, [2 / times, 1 / times])
    return found


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds():
    measure = Measure("drain", RATE, {"raw": [100, 200, 400], "outboxq": [50, 100, 500]})
    assert measure.ratio("outboxq", "raw") == 0.5
    assert measure.ratio("outboxq", "nobody") is None


def test_contenders_with_fewer_rounds_are_compared_by_medians():
    measure = Measure("drain", RATE, {"raw": [100, 200, 300], "Huey": [20]})
    assert measure.ratio("Huey", "raw") == 0.1


def test_results_are_unchanged_after_writing_and_reading(results, tmp_path):
    results.write(tmp_path / "run.json")
    again = Results.read(tmp_path / "run.json")
    assert (again.about, again.missing, again.measures) == (results.about, results.missing, results.measures)


def test_a_goal_is_met_or_missed_or_not_measured(results):
    found = {goal.of: goal for goal in goals(results)}
    drain = found["PostgreSQL drain, 1 process, of raw"]
    assert (drain.value, drain.met(drain.bar), drain.met(drain.stretch)) == (pytest.approx(0.7), True, False)
    pickup = found["pickup on PostgreSQL, p50"]
    assert (pickup.value, pickup.met(pickup.bar)) == (pytest.approx(1.5 / 0.7), True)  # lower is better
    unmeasured = found["SQLite drain, of raw, FULL"]
    assert (unmeasured.value, unmeasured.met(unmeasured.bar)) == (None, None)
    lines = list(goals_table(results))
    assert lines[1].endswith("0.70 x  met")
    assert any(line.endswith("not measured") for line in lines)


def test_a_table_shows_medians_ranges_and_both_ratios(results):
    title, head, raw, outboxq, peer = table(results.measures["postgresql.drain"])
    assert title == "postgresql: drain by 1 process (tasks/s, more is better; 2 x)"
    assert head.split() == ["median", "least", "most", "of", "raw", "outboxq", "is"]
    assert raw.split() == ["raw", "1,500", "1,000", "2,000", "1.00", "0.70"]
    assert outboxq.split() == ["outboxq", "1,050", "700", "1,400", "0.70", "1.00"]
    assert peer.split() == ["PgQueuer", "525", "350", "700", "0.35", "2.00"]


def test_sqlite_results_are_compared_with_results_of_the_same_setting():
    samples = {"raw NORMAL": [100.0], "outboxq NORMAL": [50.0], "raw FULL": [40.0], "outboxq FULL": [30.0]}
    lines = [line.split() for line in table(Measure("sqlite: drain", RATE, samples))]
    assert [line[-2] for line in lines[2:]] == ["1.00", "0.50", "1.00", "0.75"]


def test_two_runs_are_compared_by_values_and_by_ratios(results):
    said = compare(results, results)
    assert "postgresql: drain by 1 process" in said
    (line,) = [line for line in said.splitlines() if line.split()[:3] == ["outboxq", "1,050", "1,050"]]
    assert line.split()[3:] == ["1.00", "0.70", "0.70"]


def test_the_report_fits_a_terminal_and_lists_missing_benchmarks(results):
    results.missing["postgresql: Huey"] = "could not be installed: " + "no network " * 30
    said = report(results)
    assert max(len(line) for line in said.splitlines()) <= WIDTH
    assert "postgresql: Huey: could not be installed" in said
    assert "Celery" in said


def test_a_chart_is_xml_with_a_label_for_each_bar_and_the_command(results, tmp_path):
    results.about["command"] = "nox -s bench -- --quick"
    made = charts.write(results, tmp_path)
    assert [path.name for path in made] == ["postgresql.drain.svg", "postgresql.pickup.p50.svg"]
    tree = ET.parse(made[0])
    words = [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert {"raw", "outboxq", "PgQueuer"} <= set(words)
    assert words[-1] == "nox -s bench -- --quick, 2030-01-01, 2 x quick, 8 GiB"


def test_the_readme_table_shows_ratios(results):
    _, _, *rows = published.table(results).splitlines()
    cells = {row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[2:4]] for row in rows}
    assert cells["begin a task when it arrives (p50)"] == ["0.70", "2.0"]  # the other run took longer
    assert cells["PostgreSQL: enqueue, one transaction each"] == ["", ""]


def test_the_published_files_are_generated_from_the_published_run(tmp_path):
    """The published files are the output of `python -m benchmarks --publish run.json`, without edits."""
    shutil.copy(ROOT / "README.md", tmp_path)
    published.publish(FOLDER / published.RUN, tmp_path)
    assert (tmp_path / "README.md").read_text() == (ROOT / "README.md").read_text()
    made = tmp_path / published.FOLDER
    assert {path.name: path.read_text() for path in made.iterdir()} == {
        path.name: path.read_text() for path in FOLDER.iterdir()
    }
    page = (ROOT / "docs/explanation/benchmarks.md").read_text()
    shown = [path.name for path in FOLDER.glob("*.svg") if f"(benchmark/{path.name})" not in page]
    assert shown == [], "no page shows these charts"


@pytest.mark.parametrize("text", ["# outboxq\n", f"{published.HEAD} A |\n\n" * 2], ids=["none", "two"])
def test_a_readme_without_exactly_one_table_is_refused_and_nothing_is_written(tmp_path, text):
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(ValueError, match="must have one table"):
        published.publish(FOLDER / published.RUN, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
