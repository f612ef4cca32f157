"""docs/monitoring.md, the alert rules and the dashboard use metrics that exist.

To update the page's tables: python -m tests.docs.test_monitoring_page. `nox -s monitoring` runs Prometheus's own promtool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from outboxq.worker.options import WorkerSettings
from outboxq.worker.prometheus import METRICS, Kind
from tests import forked
from tests.docs.tables import between, put_between

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "monitoring.md"
RULES, RULE_TESTS, DASHBOARD = (
    DOCS / "monitoring" / name for name in ("alerts.yaml", "alerts_test.yaml", "grafana.json")
)
KNOWN = {one.name: one for one in METRICS}
SERIES = {
    f"{one.name}{end}": one
    for one in METRICS
    for end in (("_bucket", "_sum", "_count") if one.kind is Kind.HISTOGRAM else ("",))
}
"""The metrics, by the names that a query uses."""
OF_PROMETHEUS = {"instance", "job", "le"}
"""Labels that Prometheus adds."""


def table_of_metrics() -> str:
    lines = ["| metric | kind | labels | of the | |", "|---|---|---|---|---|"]
    for one in METRICS:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.source} | {one.help} |")
    return "\n".join(lines) + "\n"


def alerts() -> Iterator[tuple[str, str, str, str, str]]:
    """Yield each rule's name, expression, duration, severity and summary."""
    for part in RULES.read_text().split("      - alert: ")[1:]:
        name = part.partition("\n")[0]
        expression = re.search(r" expr: (?:>-\n)?(.*?)\n        \w+:", part, re.DOTALL)[1]
        [lasting] = re.findall(r"\n        for: (\w+)\n", part) or ["immediately"]
        [severity], [summary] = re.findall(r"severity: (\w+)", part), re.findall(r'summary: "(.*)"', part)
        yield name, " ".join(expression.split()), lasting, severity, summary


def table_of_alerts() -> str:
    lines = ["| alert | severity | says | fires when | for |", "|---|---|---|---|---|"]
    for name, expression, lasting, severity, summary in alerts():
        said = re.sub(
            r"\{\{ \$(?:labels\.)?(\w+)[^}]*\}\}",
            lambda found: "…" if found[1] == "value" else found[1].upper(),
            summary,
        )
        condition = expression.replace("|", "\\|")
        minutes = re.sub(r"(\d)m$", r"\1 min", lasting).replace("1d", "1 day")
        lines.append(f"| `{name}` | {severity} | {said} | `{condition}` | {minutes} |")
    return "\n".join(lines) + "\n"


TABLES = {"metrics": table_of_metrics, "alerts": table_of_alerts}


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_match_the_code_and_the_alert_rules(name):
    assert between(PAGE, name) == TABLES[name](), "run: python -m tests.docs.test_monitoring_page"


def queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


@pytest.mark.parametrize("file", [RULES, RULE_TESTS, DASHBOARD], ids=lambda file: file.name)
def test_each_queried_series_is_exported_with_those_labels(file):
    text = file.read_text().replace('\\"', '"')
    queried = set(re.findall(r"\boutboxq_\w+", text))
    assert queried
    assert queried - SERIES.keys() == set()
    for name, selected in re.findall(r"\b(outboxq_\w+)\{([^}]*)\}", text):
        labels = set(re.findall(r"(\w+) ?=~?\"", selected))
        assert labels
        assert labels - {*SERIES[name].labels, *OF_PROMETHEUS} == set(), f"{name}{{{selected}}}"


def test_rules_and_panels_group_only_by_labels_of_their_series():
    for query in (*queries(), *(expression for _, expression, *_ in alerts())):
        grouped = {label.strip() for one in re.findall(r"by \(([^)]*)\)", query) for label in one.split(",")}
        known = {label for name in re.findall(r"\boutboxq_\w+", query) for label in SERIES[name].labels}
        assert grouped - known - OF_PROMETHEUS == set(), query


def test_the_dashboard_shows_every_metric():
    shown = {SERIES[name].name for query in queries() for name in re.findall(r"\boutboxq_\w+", query)}
    assert shown == KNOWN.keys()


def test_the_page_names_no_nonexistent_metric():
    assert set(re.findall(r"\boutboxq_[a-z_]+", PAGE.read_text())) <= KNOWN.keys()


def test_each_rule_has_a_firing_and_a_silent_test():
    text = RULE_TESTS.read_text()
    silent = set(re.findall(r"alertname: (\w+), exp_alerts: \[\]", text))
    fires = set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n", text))
    assert silent == fires == {name for name, *_ in alerts()}


def test_panels_do_not_overlap():
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def block(beginning: str) -> str:
    [found] = re.findall(rf"^```python\n({re.escape(beginning)}\n.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return found


def test_the_programs_of_the_page_run(tmp_path):
    """The test does not use port 9464, which may be in use."""
    for name in ("shop.py", "registry.py", "worker.py"):
        (tmp_path / name).write_text(block(f"# {name}").replace("metrics_port=9464", "metrics_port=0"))
    for name in ("registry.py", "worker.py"):
        done = forked.run([*forked.PYTHON, name], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_addresses_on_the_page_are_the_defaults():
    assert f"opens the port on {WorkerSettings().metrics_host}." in PAGE.read_text()
    assert "--processes 4`, each process has its own port: 9464, 9465, 9466 and 9467." in PAGE.read_text()


if __name__ == "__main__":
    for each, table in TABLES.items():
        put_between(PAGE, each, table())
