"""A worker's metrics for Prometheus: names, labels, counts of the process, gauges of the database, and the port."""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.request import urlopen
from uuid import uuid4

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from outboxq import Cancel, ConfigurationError, InvalidArgument, Outbox, RetryPolicy
from outboxq.cli import main
from outboxq.cli.serving.worker import port_of
from outboxq.contrib.prometheus import WorkerCollector
from outboxq.database.engine import make_engine
from outboxq.database.privileges import Role
from outboxq.model import NewTask, OnDeadLetter
from outboxq.model.batches import OnFailed
from outboxq.model.histograms import BOUNDS
from outboxq.model.relays import NewRelay
from outboxq.model.schedules import NewSchedule
from outboxq.model.uuid7 import uuid7
from outboxq.model.workers import ReceiverState
from outboxq.store import QueueSample, Statistics
from outboxq.worker import prometheus
from outboxq.worker.prometheus import METRICS, Kind, Source
from tests import forked
from tests.contract import helpers
from tests.proxy import Proxy
from tests.scraping import free_ports, labels, scrape, taken
from tests.waiting import until

LATER = timedelta(hours=1)
APPLICATION = """
from outboxq import Outbox

outbox = Outbox()


@outbox.task(name="tests.work", queue="mail")
def work() -> None: ...
"""


@pytest.fixture
def outbox(database) -> Outbox:
    outbox = Outbox(database.engine)

    @outbox.task(name="tests.end", queue="mail", retry=RetryPolicy(wait=LATER))
    def end(how: str) -> None:
        if how == "cancel":
            raise Cancel
        if how == "fail":
            raise ValueError(how)

    return outbox


@contextmanager
def serving(outbox: Outbox, **options: object) -> Iterator[tuple]:
    """A running worker and the port of its metrics."""
    worker = outbox.worker(metrics_port=0, poll=0.05, **options)
    worker.start()
    try:
        yield worker, worker._metrics.port
    finally:
        worker.stop()


@pytest.mark.in_turn
def test_every_metric_has_its_declared_name_kind_and_labels(outbox):
    task = outbox.tasks.get("tests.end")
    task.using(outbox).enqueue("well")
    task.using(outbox, delay=3600).enqueue("well")
    outbox.store.relays.declare([NewRelay(name="orders", topics=["*"])])
    receives = uuid4()
    outbox.store.workers.register(receives, label="other", concurrency=1, task_names=[])
    outbox.store.workers.describe(receives, receivers=[ReceiverState(source="shop", tasks=("tests.end",))])
    with serving(outbox) as (worker, port):
        until(lambda: worker.handled)
        until(lambda: scrape(port).get("outboxq_task_run_seconds_count"))
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    ours = {one.name: one for one in families if one.name.startswith("outboxq_")}
    on_postgresql = outbox.store.dialect.measures_tables
    for metric in METRICS:
        family = ours.pop(metric.name.removesuffix("_total"))
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        told = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        if metric.labels == ("schedule",) or ("PostgreSQL" in metric.help and not on_postgresql):
            assert told == set()
        else:
            assert told == {frozenset(metric.labels)}, metric.name
    assert ours == {}, "no other metric has outboxq's prefix"


def test_counters_end_in_total_and_labels_are_not_ids():
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        known = {"queue", "task", "outcome", "state", "result", "table", "schedule", "relay", "source"}
        assert set(metric.labels) <= known, "labels are not ids, keys, arguments, errors or workers"
        assert metric.source is Source.PROCESS or metric.kind is Kind.GAUGE, (
            "a count of rows in the database would decrease when rows are deleted"
        )


@pytest.mark.in_turn
def test_attempts_are_counted_by_queue_task_and_outcome(outbox):
    task = outbox.tasks.get("tests.end")
    for how in ("well", "well", "cancel", "fail"):
        task.using(outbox).enqueue(how)
    with serving(outbox) as (_, port):
        attempts = until(lambda: ended(port, 4))
        found = scrape(port)
    expected = {"completed": 2, "cancelled": 1, "retried": 1}
    outcomes = ("completed", "retried", "failed", "cancelled", "snoozed", "released", "lost", "timed_out")
    assert attempts == {
        labels(queue="mail", task="tests.end", outcome=outcome): expected.get(outcome, 0) for outcome in outcomes
    }
    here = labels(queue="mail", task="tests.end")
    assert found["outboxq_task_run_seconds_count"] == {here: 4}
    assert found["outboxq_task_wait_seconds_count"] == {labels(queue="mail"): 4}
    buckets = found["outboxq_task_run_seconds_bucket"]
    assert len(buckets) == len(BOUNDS) + 1
    assert buckets[here | labels(le="+Inf")] == 4
    in_order = [value for _, value in sorted((float(dict(one)["le"]), value) for one, value in buckets.items())]
    assert in_order == sorted(in_order)
    assert found["outboxq_claims_total"][labels(result="some")] >= 1
    assert sum(found["outboxq_claimed_tasks_sum"].values()) == 4
    assert found["outboxq_leases_lost_total"] == {labels(queue="mail"): 0}, (
        "it begins at 0, so that the first increase is visible"
    )


def ended(port: int, number: int) -> dict[frozenset, float]:
    found = scrape(port).get("outboxq_task_attempts_total", {})
    return found if sum(found.values()) == number else {}


def test_the_gauges_from_the_database_cover_all_queues(outbox):
    task = outbox.tasks.get("tests.end")
    task.using(outbox).enqueue("well")
    task.using(outbox, delay=LATER).enqueue("well")
    task.using(outbox, queue="other", delay=LATER).enqueue("well")
    with serving(outbox, queues=["idle"]) as (_, port):
        found = scrape(port)
    expected = {("mail", "due"): 1, ("mail", "delayed"): 1, ("other", "delayed"): 1}
    assert found["outboxq_tasks"] == {
        labels(queue=queue, state=state): expected.get((queue, state), 0)
        for queue in ("mail", "other")
        for state in ("due", "delayed", "running", "failed")
    }
    assert found["outboxq_oldest_due_age_seconds"][labels(queue="other")] == 0
    assert found["outboxq_oldest_due_age_seconds"][labels(queue="mail")] > 0
    assert found["outboxq_live_workers"][labels(queue="mail")] == 0, "the only worker serves another queue"
    assert sum(found["outboxq_worker_threads"].values()) == 8


def gauge(found, metric):
    """The only value of a gauge without labels; None if it has none."""
    [family] = [one for one in prometheus._of_database(found) if one.name == metric.name]
    assert len(family.samples) <= 1
    return family.samples[0].value if family.samples else None


def test_the_age_of_the_oldest_snapshot_is_a_gauge(postgresql, sqlite):
    metrics = prometheus.OLDEST_SNAPSHOT_AGE, prometheus.OLDEST_SNAPSHOT_TRANSACTIONS
    assert [gauge(prometheus.Gauges.read(sqlite.store), one) for one in metrics] == [None, None]
    assert [gauge(prometheus.Gauges.read(postgresql.store), one) for one in metrics] == [0, 0]
    with postgresql.host.connect() as old:
        old.execution_options(isolation_level="REPEATABLE READ").exec_driver_sql("SELECT 1")
        postgresql.add()
        found = prometheus.Gauges.read(postgresql.store)
        assert all(gauge(found, one) > 0 for one in metrics)


def test_whether_old_tasks_are_deleted_is_a_gauge(database):
    assert gauge(prometheus.Gauges.read(database.store), prometheus.DELETES_OLD_TASKS) == 0
    database.store.prune(timedelta(days=90))
    assert gauge(prometheus.Gauges.read(database.store), prometheus.DELETES_OLD_TASKS) == 1


def test_scrapes_read_the_database_at_most_once_in_five_seconds():
    reads, now = [], [100.0]
    cache = prometheus.GaugeCache(lambda: reads.append(1) or "found", clock=lambda: now[0])
    assert cache.read() == cache.read() == "found"
    assert len(reads) == 1
    now[0] += 5
    cache.read()
    assert len(reads) == 2


def test_the_database_is_read_again_after_a_thread_failed_to_start(monkeypatch):
    cache = prometheus.GaugeCache(lambda: "found")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot_start)
        with pytest.raises(RuntimeError):
            cache.read()
    assert cache.read() == "found"


def cannot_start(_thread):
    raise RuntimeError("can't start new thread")


def test_all_scrapes_share_one_short_wait_for_a_slow_database(monkeypatch):
    answers, reads, waits = threading.Event(), [], []

    def find():
        reads.append(1)
        answers.wait()
        return "found"

    class Noted(threading.Event):
        def wait(self, timeout=None):
            if timeout is None:  # a thread is starting
                return super().wait()
            waits.append(timeout)
            return super().wait(0)

    now = [100.0]
    cache = prometheus.GaugeCache(find, clock=lambda: now[0])
    monkeypatch.setattr(prometheus.threading, "Event", Noted)
    for _ in range(3):
        assert cache.read() is None
        now[0] += 1.5
    monkeypatch.undo()
    assert waits == [2.0, 0.5, 0.0]
    assert len(reads) == 1, "all reads wait for the same answer"
    answers.set()
    assert until(cache.read) == "found"


def test_only_the_gauges_from_the_database_are_omitted_if_it_is_unreachable(outbox, monkeypatch, caplog):
    def fail(*_, **__):
        raise OperationalError("SELECT", {}, Exception("the server is gone"))

    task = outbox.tasks.get("tests.end")
    task.using(outbox).enqueue("well")
    monkeypatch.setattr(type(outbox.store), "stats", fail)
    with serving(outbox) as (_, port):
        until(lambda: ended(port, 1))
        found = scrape(port)
    names = {name for name in found if name.startswith("outboxq_")}
    assert not names & {one.name for one in METRICS if one.source is Source.DATABASE}
    assert names >= {"outboxq_task_attempts_total", "outboxq_worker_threads", "outboxq_worker_listening"}
    said = [record.message for record in caplog.records if "/metrics leaves them out" in record.message]
    assert len(said) == 1, "it is logged once, not at each scrape"


def test_database_gauges_are_omitted_while_the_network_is_down_and_then_return(postgresql, monkeypatch):
    monkeypatch.setattr(prometheus, "FRESH_FOR", 0.0)
    monkeypatch.setattr(prometheus, "PATIENCE", 0.2)
    with Proxy(postgresql.url) as proxy:
        engine = postgresql.own(make_engine(proxy.url))
        with serving(Outbox(engine), queues=["idle"]) as (_, port):
            postgresql.add(postgresql.store, queue="mail")
            until(lambda: "outboxq_tasks" in scrape(port))
            proxy.pause()
            until(lambda: "outboxq_tasks" not in scrape(port))
            assert scrape(port)["outboxq_worker_threads"]
            proxy.resume()
            until(lambda: "outboxq_tasks" in scrape(port))
        engine.dispose()


@pytest.mark.in_turn
def test_the_collector_can_be_registered_in_another_registry(outbox):
    worker = outbox.worker()
    registry = CollectorRegistry()
    registry.register(WorkerCollector(worker, outbox.store))
    assert registry.get_sample_value("outboxq_worker_threads", {"state": "idle"}) == 8
    assert registry.get_sample_value("outboxq_worker_last_beat_timestamp_seconds") is None, "the worker has not started"


@pytest.mark.in_turn
def test_two_workers_in_a_process_count_separately(outbox):
    task = outbox.tasks.get("tests.end")
    task.using(outbox).enqueue("well")
    other = Outbox(outbox.store.engine)
    with serving(outbox) as (_, port), serving(other, queues=["idle"]) as (_, second):
        until(lambda: ended(port, 1))
        assert scrape(second).get("outboxq_task_attempts_total", {}) == {}


# -- The port ---------------------------------------------------------------------------------------------------------


@pytest.mark.in_turn
def test_a_worker_whose_port_is_taken_does_not_start_or_claim_tasks(outbox):
    task = outbox.tasks.get("tests.end")
    handle = task.using(outbox).enqueue("well")
    with taken() as listener:
        port = listener.getsockname()[1]
        with pytest.raises(
            ConfigurationError, match=rf"on 127\.0\.0\.1 port {port}: .*; free that port or choose another"
        ):
            outbox.worker(metrics_port=port).run(burst=True)
    assert outbox.store.get(handle.id).status == "Ready"
    assert outbox.store.workers.list() == []


@pytest.mark.in_turn
def test_the_port_is_free_again_after_the_worker_stops(outbox):
    with serving(outbox) as (_, port):
        pass
    with serving(outbox) as (_, _):
        socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.in_turn
def test_a_start_that_fails_frees_the_port(database):
    database.corrupted = True
    outbox = Outbox(database.engine)
    worker = outbox.worker(metrics_port=0)
    worker._start = lambda **_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        worker.start()
    assert worker._metrics is None


@pytest.mark.in_turn
@pytest.mark.parametrize("port", [-1, 65_536, "9464", True, 9464.0])
def test_an_invalid_port_is_refused(outbox, port):
    with pytest.raises(InvalidArgument, match="metrics_port must be a port from 0 to 65535, not"):
        outbox.worker(metrics_port=port)


@pytest.mark.in_turn
@pytest.mark.parametrize("host", ["", None, 7])
def test_an_invalid_host_is_refused(outbox, host):
    """An empty host would mean every address of the machine."""
    with pytest.raises(InvalidArgument, match="metrics_host must be a host name or an address"):
        outbox.worker(metrics_port=0, metrics_host=host)


@pytest.mark.in_turn
def test_a_worker_with_an_unknown_host_does_not_start(outbox):
    with pytest.raises(ConfigurationError, match=r"metrics cannot be served on nowhere\.invalid port 0: "):
        outbox.worker(metrics_port=0, metrics_host="nowhere.invalid").start()


WITHOUT = """
import sys
sys.modules["prometheus_client"] = None
from outboxq import ConfigurationError, Outbox
outbox = Outbox(sys.argv[1])
try:
    outbox.worker(metrics_port=0).start()
except ConfigurationError as error:
    print(error)
"""
UNUSED = """
import sys
from outboxq import Outbox
worker = Outbox(sys.argv[1]).worker()
worker.start()
worker.stop()
print([name for name in sys.modules if name.startswith(("prometheus_client", "outboxq.worker.prometheus", "http.server"))])
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (
            WITHOUT,
            "metrics_port (in commands, --metrics-port) needs prometheus-client; run: pip install 'outboxq[prometheus]'",
        ),
        (UNUSED, "[]"),
    ],
    ids=["it is not installed", "it is not asked for"],
)
def test_prometheus_client_is_optional(sqlite, program, said):
    command = [sys.executable, "-c", program, sqlite.url]
    done = forked.run(command, warm=forked.PACKAGES, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.strip(), done.returncode) == (said, 0), done.stderr


# -- The command ------------------------------------------------------------------------------------------------------


def test_each_process_has_the_next_higher_port():
    assert [port_of(number, 9464) for number in (1, 2, 3)] == [9464, 9465, 9466]
    assert port_of(2, None) is None
    assert port_of(2, 0) == 0


@pytest.mark.in_turn
def test_the_command_refuses_a_port_that_is_taken(database, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("shop.py").write_text(APPLICATION)
    environment = {"OUTBOXQ_DATABASE_URL": database.url}
    arguments = ["worker", "shop:outbox", "--burst", "--metrics-port"]
    first = free_ports(2)
    port = first + 1
    with socket.create_server(("127.0.0.1", port)):
        one = CliRunner().invoke(main, [*arguments, str(port)], env=environment)
        two = CliRunner().invoke(main, [*arguments, str(first), "--processes", "2"], env=environment)
    sys.modules.pop("shop", None)
    for result in (one, two):
        assert result.exit_code == 2
        assert re.search(rf"metrics can(not)? be served on 127\.0\.0\.1 port {port}: .*; free that port", result.output)


def test_ports_beyond_the_last_one_are_refused(sqlite):
    arguments = ["worker", "shop:outbox", "--processes", "3", "--metrics-port", "65534"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "--metrics-port 65534 with 3 processes would need port 65536; choose a port up to 65533" in result.output


@pytest.mark.in_turn
def test_each_of_two_processes_answers_on_its_own_port(database, tmp_path):
    (tmp_path / "shop.py").write_text(APPLICATION)
    first = free_ports(2)
    command = [
        sys.executable,
        "-m",
        "outboxq",
        "worker",
        "shop:outbox",
        "--processes",
        "2",
        "--metrics-port",
        str(first),
    ]
    environment = {**os.environ, "OUTBOXQ_DATABASE_URL": database.url, "PYTHONPATH": str(Path(__file__).parents[2])}
    with (tmp_path / "log").open("w") as log:
        process = forked.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log, starts_others=True)
    try:
        for port in (first, first + 1):
            until(lambda port=port: answers(port))
        database.add(database.store, task_name="tests.work", queue="mail")
        until(lambda: any(ended(port, 1) for port in (first, first + 1)))
    finally:
        process.terminate()
        assert process.wait(60) == 0, (tmp_path / "log").read_text()


def answers(port: int) -> dict:
    try:
        return scrape(port)
    except OSError:
        return {}


# -- Schedules --------------------------------------------------------------------------------------------------------


def schedule(**fields: object) -> NewSchedule:
    return NewSchedule(**{"name": "nightly", "task_name": "tests.end", "queue": "mail", "rule": "0 3 * * *", **fields})


def test_the_next_tick_is_the_first_one_in_the_future(database):
    store = database.frozen
    database.clock.now = datetime(2031, 5, 6, 2, 59, 30, tzinfo=UTC)
    store.schedules.put(schedule())
    store.schedules.put(schedule(name="paused"))
    store.schedules.pause("paused")
    store.schedules.put(schedule(name="over", ends_at=datetime(2031, 5, 6, 3, tzinfo=UTC)))
    assert prometheus.next_ticks(store) == {"nightly": datetime(2031, 5, 6, 3, tzinfo=UTC).timestamp()}
    database.clock.advance(60)
    assert prometheus.next_ticks(store) == {"nightly": datetime(2031, 5, 7, 3, tzinfo=UTC).timestamp()}


def test_a_missed_tick_stays_the_next_one_until_it_is_planted(database):
    store = database.frozen
    database.clock.now = datetime(2031, 5, 6, 2, tzinfo=UTC)
    store.schedules.put(schedule())
    database.clock.advance(timedelta(hours=30))
    assert prometheus.next_ticks(store) == {"nightly": datetime(2031, 5, 6, 3, tzinfo=UTC).timestamp()}
    store.schedules.plant()
    assert prometheus.next_ticks(store) == {"nightly": datetime(2031, 5, 8, 3, tzinfo=UTC).timestamp()}


def test_the_lateness_of_a_tick_is_counted_once_at_its_first_start(outbox):
    store = outbox.store
    store.schedules.put(
        schedule(rule="every 3600", args='{"how": "fail"}', starts_at=store.now() - timedelta(hours=2.5))
    )
    store.schedules.backfill("nightly", store.now() - timedelta(hours=2.75), store.now() - timedelta(hours=1.75))
    with serving(outbox) as (_, port):
        until(lambda: ended(port, 1))
        found = scrape(port)
    here = labels(schedule="nightly")
    assert found["outboxq_schedule_lateness_seconds_count"] == {here: 1}
    assert 9000 <= found["outboxq_schedule_lateness_seconds_sum"][here] < 9060
    [handle] = store.tasks()
    store.run_now(handle.id)
    with serving(outbox) as (_, port):
        until(lambda: ended(port, 1))
        assert scrape(port).get("outboxq_schedule_lateness_seconds_count", {}) == {}, (
            "a further attempt does not count as a tick"
        )


def test_a_queue_too_long_to_count_has_the_numbers_of_its_last_sample(database):
    sample = QueueSample(
        at=database.clock(),
        queue="mail",
        due=12_000,
        delayed=3,
        running=1,
        failed=9,
        oldest_due_at=None,
        exact=True,
    )
    found = Statistics(queue="mail", due=10_000, due_at_least=True, delayed=2, retrying=2, failed=1, sample=sample)
    assert prometheus._depths(found) == {"due": 12_000, "delayed": 4, "running": 0, "failed": 1}
    found = Statistics(queue="mail", due=10_000, due_at_least=True)
    assert prometheus._depths(found)["due"] == 10_000
    found = Statistics(queue="mail", delayed=1, retrying=1, retrying_at_least=True, sample=sample)
    assert prometheus._depths(found)["delayed"] == 2, "they were all counted, and only partly looked up"


def test_the_privileges_of_the_worker_role_are_enough_to_read_the_gauges(postgresql):
    role = f"worker_{uuid4().hex}"
    postgresql.run(f"CREATE ROLE {role} LOGIN")
    try:
        postgresql.store.rights.grant(Role.WORKER, role)
        engine = postgresql.own(create_engine(make_url(postgresql.url).set(username=role)))
        with serving(Outbox(engine)) as (_, port):
            postgresql.add(
                postgresql.store, queue="mail", task_name="tests.other", available_at=postgresql.store.now() + LATER
            )
            found = scrape(port)
        assert found["outboxq_tasks"][labels(queue="mail", state="delayed")] == 1
        assert found["outboxq_table_bytes"][labels(table="task_executions")] > 0
        assert found["outboxq_deletes_old_tasks"] == {labels(): 0}
    finally:
        for one in postgresql.engines:
            one.dispose()
        postgresql.run(f"DROP OWNED BY {role}")
        postgresql.run(f"DROP ROLE {role}")


def test_a_gauge_distinguishes_paused_queues_from_others(database):
    for queue in ("mail", "open"):
        database.add(database.store, queue=queue)
    database.store.queues.pause("mail")
    families = prometheus._of_database(prometheus.Gauges.read(database.store))
    [family] = [one for one in families if one.name == "outboxq_queue_paused"]
    assert {one.labels["queue"]: one.value for one in family.samples} == {"mail": 1, "open": 0}


def test_held_keys_and_stuck_batches_are_gauges(database):
    for queue in ("mail", "free"):
        database.add(queue=queue, partition_key="k", on_dead_letter=OnDeadLetter.HOLD)
        (claim,) = database.claim(queues=[queue])
        database.frozen.fail(claim, "no")
    database.add(queue="mail", partition_key="k")  # no task waits for the key of the other dead letter
    then = NewTask(id=uuid7(), task_name="tests.then", args="{}")
    for ends in (database.frozen.fail, None):
        batch = helpers.batch_with(then if ends else replace(then, id=uuid7()), on_failed=OnFailed.WAIT)
        database.frozen.batches.create(batch)
        database.add(queue="work", pipeline_execution_id=batch.id)
        database.frozen.batches.close(batch.id)
        if ends is not None:
            (claim,) = database.claim(queues=["work"])
            ends(claim, "no")
    families = {one.name: one for one in prometheus._of_database(prometheus.Gauges.read(database.frozen))}
    held = {one.labels["queue"]: one.value for one in families["outboxq_held_keys"].samples}
    assert (held["mail"], held["free"]) == (1, 0)
    assert [one.value for one in families["outboxq_stuck_batches"].samples] == [1]
