"""The files on the pages about deploying: they can be parsed, they use valid outboxq commands, and they allow enough time for a stop."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from outboxq import Outbox, TaskContext
from outboxq.cli import main
from outboxq.worker.options import WorkerSettings
from outboxq.worker.worker import Worker
from tests.waiting import until

FOLDER = Path(__file__).parents[2] / "docs" / "operate"
PAGES = ("stop-and-deploy", "systemd", "containers", "kubernetes", "threads-and-processes")
TEXT = "\n".join((FOLDER / f"{page}.md").read_text() for page in PAGES)
MARGIN = timedelta(seconds=5)
"""The time that the pages require in addition to the drain timeout."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def unit(source: str) -> configparser.ConfigParser:
    read = configparser.ConfigParser(strict=True, interpolation=None)
    read.optionxform = str  # type: ignore[assignment,method-assign]  # systemd tells upper from lower case
    read.read_string(source)
    return read


def yaml(source: str) -> Any:
    """Parse the small part of YAML that the page uses: mappings and lists by indentation, lists of strings in brackets, and plain scalars."""
    lines = [(len(line) - len(line.lstrip()), line.strip()) for line in source.splitlines() if not line.startswith("#")]

    def value(written: str, indent: int) -> Any:
        if written:
            return json.loads(written) if written.startswith("[") else written
        return block(lines[0][0]) if lines and lines[0][0] > indent else None

    def block(indent: int) -> Any:
        items: list[Any] = []
        mapping: dict[str, Any] = {}
        while lines and lines[0][0] == indent:
            _, line = lines.pop(0)
            if line.startswith("- "):
                lines.insert(0, (indent + 2, line[2:]))
                items.append(block(indent + 2))
                continue
            key, colon, rest = line.partition(":")
            assert colon, line
            assert rest[:1] in {"", " "}, line
            assert key not in mapping, f"the key {key} is repeated"
            mapping[key] = value(rest.strip(), indent)
        assert not (items and mapping), "a block is both a list and a mapping"
        return items or mapping

    read = block(0)
    assert not lines, f"not parsed: {lines[0]}"
    return read


def ask_the_command_line(words: list[str]) -> dict[str, Any]:
    """Return the options of a command as outboxq parses them. It refuses unknown options."""
    program, name, *rest = words
    assert program.rpartition("/")[2] == "outboxq"
    command = main.commands[name]
    with command.make_context(name, rest) as context:
        return context.params


def seconds(written: str) -> timedelta:
    found = re.fullmatch(r"(\d+)s?", written)
    assert found, written
    return timedelta(seconds=int(found[1]))


def drains(words: list[str]) -> timedelta:
    drain = ask_the_command_line(words)["drain_timeout"]
    return drain if isinstance(drain, timedelta) else timedelta(seconds=drain)


UNITS = [unit(source) for source in blocks("ini")]
YAMLS = {source.splitlines()[0].removeprefix("# "): yaml(source) for source in blocks("yaml")}


def test_the_units_are_valid_services_and_a_timer():
    worker, prune, timer = UNITS
    assert prune["Service"]["Type"] == "oneshot"
    ask_the_command_line(shlex.split(prune["Service"]["ExecStart"]))
    assert timer.sections() == ["Timer", "Install"]
    assert worker["Service"]["KillMode"] == "mixed"
    assert worker["Service"]["Restart"] == "on-failure"


def test_systemd_waits_longer_than_the_worker_drains():
    service = UNITS[0]["Service"]
    assert seconds(service["TimeoutStopSec"]) >= drains(shlex.split(service["ExecStart"])) + MARGIN


def test_compose_waits_longer_than_the_worker_drains():
    services = YAMLS["compose.yaml"]["services"]
    worker = services["worker"]
    assert seconds(worker["stop_grace_period"]) >= drains(worker["command"]) + MARGIN
    ask_the_command_line(services["migrate"]["command"])
    assert set(worker["depends_on"]) <= set(services)


def test_the_commands_of_a_container_are_the_same_in_each_framework():
    rows = re.findall(r"^\| ([\w, ]+) \| `(\[.*\])` \| `(\[.*\])` \|$", TEXT, re.MULTILINE)
    found = {framework: (json.loads(worker), json.loads(migrate)) for framework, worker, migrate in rows}
    services = YAMLS["compose.yaml"]["services"]
    worker, migrate = found["FastAPI, SQLAlchemy"]
    assert (worker, migrate) == (services["worker"]["command"], services["migrate"]["command"])
    options = [word for word in worker if word != "shop:outbox"][2:]
    assert found["Flask"] == (["flask", "outboxq", "worker", *options], ["flask", "outboxq", "upgrade"])
    assert found["Django"][0] == ["python", "manage.py", "outboxq", "worker", *options]


def test_kubernetes_waits_longer_than_the_worker_drains():
    pod = YAMLS["worker.yaml"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert seconds(pod["terminationGracePeriodSeconds"]) >= drains(container["command"]) + MARGIN
    assert YAMLS["worker.yaml"]["spec"]["selector"]["matchLabels"] == {"app": "shop-worker"}
    assert YAMLS["worker.yaml"]["spec"]["template"]["metadata"]["labels"] == {"app": "shop-worker"}
    [migrate] = YAMLS["migrate.yaml"]["spec"]["template"]["spec"]["containers"]
    ask_the_command_line(migrate["command"])


def test_kubernetes_scrapes_the_port_that_the_worker_opens():
    container = YAMLS["the container of worker.yaml"]
    [port] = container["ports"]
    options = ask_the_command_line(container["command"])
    assert (options["metrics_port"], options["metrics_host"]) == (int(port["containerPort"]), "0.0.0.0")
    [original] = YAMLS["worker.yaml"]["spec"]["template"]["spec"]["containers"]
    assert container["command"][: len(original["command"])] == original["command"]
    monitor = YAMLS["pod-monitor.yaml"]["spec"]
    assert monitor["selector"] == YAMLS["worker.yaml"]["spec"]["selector"]
    assert [endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]] == [port["name"]]
    annotations = YAMLS["the metadata of the pod template in worker.yaml"]["annotations"]
    assert annotations["prometheus.io/port"] == f'"{port["containerPort"]}"'


def test_the_image_starts_the_worker_without_a_shell():
    [written] = blocks("dockerfile")
    [command] = re.findall(r"^CMD (.+)$", written, re.MULTILINE)
    assert "shop:outbox" in ask_the_command_line(json.loads(command)).values()


def test_the_numbers_match_the_code():
    drain = WorkerSettings().drain_timeout.total_seconds()
    assert f"for {drain:g} s by default" in TEXT
    options = {option.name: option for option in main.commands["worker"].params}
    assert f"(`--concurrency`, {options['concurrency'].default} by default)" in TEXT
    for wait in re.findall(r"(?:-t |stop_grace_period: |terminationGracePeriodSeconds: )(\d+)", TEXT):
        assert timedelta(seconds=int(wait)) >= WorkerSettings().drain_timeout + MARGIN


def test_the_command_line_accepts_the_drain_timeouts():
    written = re.findall(r"--drain-timeout ([\w.]+)", TEXT)
    assert len(written) >= 3
    for span in written:
        assert drains(["outboxq", "worker", "shop:outbox", "--drain-timeout", span]) >= WorkerSettings().drain_timeout
    [number] = re.findall(r"`outbox\.worker\(drain_timeout=(\d+)\)`", TEXT)
    assert WorkerSettings.of(drain_timeout=int(number)).drain_timeout == timedelta(seconds=int(number))


def test_these_tests_detect_short_timeouts_and_unknown_options():
    source = blocks("yaml")[0].replace("stop_grace_period: 35s", "stop_grace_period: 29s")
    worker = yaml(source)["services"]["worker"]
    assert seconds(worker["stop_grace_period"]) < drains(worker["command"]) + MARGIN
    with pytest.raises(Exception, match="No such option"):
        ask_the_command_line(["outboxq", "worker", "shop:outbox", "--drain", "25s"])


@pytest.mark.parametrize("threads", [4])
def test_a_worker_uses_four_connections_and_one_for_each_transactional_task(cluster, threads):
    """The test uses PostgreSQL, where connections are scarce."""
    url = cluster.create_database()
    outbox, go = Outbox(url), threading.Event()
    begun: list[str] = []

    @outbox.task(name="plain")
    def plain() -> None:
        begun.append("plain")
        go.wait(60)

    @outbox.task(name="transactional", transactional=True)
    def transactional(ctx: TaskContext) -> None:
        begun.append("transactional")
        go.wait(60)

    def connections() -> int:
        with outbox.store.bound_engine.connect() as connection:
            count = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return connection.execute(text(count)).scalar_one()

    def most_with(task: Any, worker: Worker) -> int:
        task.using(outbox).enqueue_many([()] * threads)
        until(lambda: begun.count(task.name) == threads)  # each task has its transaction's connection
        return connections()

    outbox.upgrade()
    worker = outbox.worker(concurrency=threads)
    worker.start()
    try:
        assert most_with(plain, worker) <= 4
        go.set()
        until(lambda: worker.running == 0)
        go.clear()
        assert 4 < most_with(transactional, worker) <= 4 + threads
    finally:
        go.set()
        worker.stop()
        outbox.store.bound_engine.dispose()
        cluster.drop_database(url)
