"""A worker's metrics for Prometheus. This module is imported only if `prometheus_client` is installed and metrics are
requested.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ..database.engine import close
from ..errors import ConfigurationError
from ..model.histograms import BOUNDS, BUCKETS
from ..model.relays import Relay
from ..model.rules import next_tick
from ..model.workers import SourceState, sources_of
from ..store import Statistics, Store, TableSize
from ..store.failure_log import FailureLog
from ..store.numbers.dead_rows import HeldSnapshot
from ..store.numbers.overview import Stuck
from .meter import TASK_BOUNDS, AttemptEnd

if TYPE_CHECKING:
    from .worker import Worker

log = logging.getLogger("outboxq.worker")

FRESH_FOR: Final = 5.0
"""Seconds for which all scrapes use the gauges that were last read from the database."""
PATIENCE: Final = 2.0
"""Seconds for which a scrape waits for the database."""

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Kind(StrEnum):
    """A metric's kind, as Prometheus calls it."""

    COUNTER = "counter"
    """A number that starts at 0 when the process starts, and never decreases."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Source(StrEnum):
    """The origin of a metric's numbers."""

    PROCESS = "process"
    """The memory of this process. Add up the numbers from all processes."""
    DATABASE = "database"
    """The database, so the numbers are the same in every process. Take the maximum over all processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One metric, as `/metrics` describes it."""

    name: str
    """The name to use in queries. The name of a counter ends in `_total`."""
    kind: Kind
    labels: tuple[str, ...] = ()
    source: Source = Source.PROCESS
    help: str


METRICS: Final[list[Metric]] = []
"""All metrics, in the order in which the documentation lists them."""


def _metric(kind: Kind, source: Source, name: str, *labels: str, help: str) -> Metric:
    METRICS.append(Metric(name=name, kind=kind, labels=labels, source=source, help=help))
    return METRICS[-1]


_database_gauge = partial(_metric, Kind.GAUGE, Source.DATABASE)
_gauge, _counter, _histogram = (
    partial(_metric, kind, Source.PROCESS) for kind in (Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM)
)

TASKS: Final = _database_gauge(
    "outboxq_tasks", "queue", "state", help="Tasks that are due, delayed, running or failed."
)
OLDEST_DUE_AGE: Final = _database_gauge(
    "outboxq_oldest_due_age_seconds",
    "queue",
    help="Seconds for which the longest-waiting due task has been due; 0 if no task is due.",
)
LIVE_WORKERS: Final = _database_gauge(
    "outboxq_live_workers", "queue", help="Workers that serve the queue and were seen in the last 90 s."
)
QUEUE_PAUSED: Final = _database_gauge("outboxq_queue_paused", "queue", help="1: the queue is paused. 0: it is open.")
HELD_KEYS: Final = _database_gauge(
    "outboxq_held_keys",
    "queue",
    help="Partition keys that dead letters hold while tasks with these keys wait. At most 100 are counted across all queues.",
)
STUCK_BATCHES: Final = _database_gauge(
    "outboxq_stuck_batches",
    help="Batches and chains that wait only for dead letters, or that were left unclosed.",
)
ATTEMPTS: Final = _counter(
    "outboxq_task_attempts_total", "queue", "task", "outcome", help="Finished attempts, by outcome."
)
RUN_SECONDS: Final = _histogram(
    "outboxq_task_run_seconds", "queue", "task", help="Seconds from the start of a handler to its end."
)
WAIT_SECONDS: Final = _histogram(
    "outboxq_task_wait_seconds",
    "queue",
    help="Seconds from a task's due time to the start of its handler.",
)
CLAIMS: Final = _counter(
    "outboxq_claims_total", "result", help="Claim attempts, by result: some tasks, no tasks, or an error."
)
CLAIM_SECONDS: Final = _histogram("outboxq_claim_seconds", "result", help="Duration of a claim attempt, in seconds.")
CLAIMED_TASKS: Final = _histogram("outboxq_claimed_tasks", "result", help="Tasks found by a claim attempt.")
THREADS: Final = _gauge("outboxq_worker_threads", "state", help="Handler threads that are busy or idle.")
LISTENING: Final = _gauge(
    "outboxq_worker_listening", help="1: the worker notices new tasks immediately. 0: it finds them only by polling."
)
LAST_BEAT: Final = _gauge(
    "outboxq_worker_last_beat_timestamp_seconds",
    help="Unix time at which the database last answered a heartbeat or the worker's registration.",
)
RECOVERED: Final = _counter(
    "outboxq_recovered_tasks_total", "queue", help="Tasks that this worker recovered from dead workers."
)
LEASES_LOST: Final = _counter(
    "outboxq_leases_lost_total", "queue", help="Leases that this worker lost while it still held the task."
)
SCHEDULE_NEXT: Final = _database_gauge(
    "outboxq_schedule_next_timestamp_seconds",
    "schedule",
    help="Unix time of the next tick, except for paused schedules. It is in the past if no worker has planted the tick in time.",
)
SCHEDULE_LATENESS: Final = _histogram(
    "outboxq_schedule_lateness_seconds",
    "schedule",
    help="Seconds from a tick to the start of its task, including jitter and catch-up.",
)
RELAY_EVENTS: Final = _database_gauge(
    "outboxq_relay_events",
    "relay",
    help="Events that the relay's broker has not confirmed. At most 100,000 are counted.",
)
RELAY_OLDEST_AGE: Final = _database_gauge(
    "outboxq_relay_oldest_event_age_seconds",
    "relay",
    help="Seconds for which the oldest unconfirmed event has waited; 0 if there is none.",
)
RELAY_FAILING: Final = _database_gauge(
    "outboxq_relay_failing",
    "relay",
    help="1: the broker has not confirmed any event since the last failure. 0: it works.",
)
RECEIVER_FAILING: Final = _database_gauge(
    "outboxq_receiver_failing",
    "source",
    help="1: a live worker cannot receive messages from the source. 0: all live workers can.",
)
TABLE_BYTES: Final = _database_gauge(
    "outboxq_table_bytes", "table", help="Bytes of the table with its indexes and partitions (PostgreSQL)."
)
TABLE_DEAD_ROWS: Final = _database_gauge(
    "outboxq_table_dead_rows",
    "table",
    help="Dead rows in the table that have not been vacuumed yet, as estimated by PostgreSQL.",
)

OLDEST_SNAPSHOT_AGE: Final = _database_gauge(
    "outboxq_oldest_snapshot_age_seconds",
    help="Seconds for which the oldest transaction has kept dead rows from being vacuumed; 0 if there is none (PostgreSQL).",
)
OLDEST_SNAPSHOT_TRANSACTIONS: Final = _database_gauge(
    "outboxq_oldest_snapshot_transactions",
    help="Transactions that have begun since the oldest snapshot was taken; snapshots of slots and standbys count too. 0 if there is no snapshot (PostgreSQL).",
)
DELETES_OLD_TASKS: Final = _database_gauge(
    "outboxq_deletes_old_tasks", help="1: a schedule or a program deletes old tasks. 0: the history only grows."
)


class DatabaseCollector(Collector):
    """Collects only the gauges from a database, in a process without a worker, under the names that workers use."""

    def __init__(self, store: Store) -> None:
        """`store` reads the gauges from the database. Pass ``outbox.store``."""
        self._cache = GaugeCache(lambda: Gauges.read(store))

    def describe(self) -> Iterable[Family]:
        """Return the metrics without numbers, so that registering the collector does not query the database."""
        return [_family(one) for one in METRICS if one.source is Source.DATABASE]

    def collect(self) -> Iterator[Family]:
        """Yield the metrics with their numbers, or nothing if the database does not respond in time."""
        yield from _of_database(self._cache.read())


class WorkerCollector(DatabaseCollector):
    """Collects one worker's metrics: its own counts, and the gauges from its database.

    The database is read at most once every 5 s, and a scrape waits at most 2 s for the database. If the database is not
    responding, its gauges are left out. Use the collector with your own HTTP server or registry:
    ``registry.register(WorkerCollector(worker, outbox.store))``.
    """

    def __init__(self, worker: Worker, store: Store) -> None:
        super().__init__(store)
        self._worker = worker

    def describe(self) -> Iterable[Family]:
        return [_family(one) for one in METRICS]

    def collect(self) -> Iterator[Family]:
        yield from super().collect()
        yield from _of_worker(self._worker)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gauges:
    """The numbers that come from the database."""

    queues: Sequence[Statistics]
    tables: Sequence[TableSize]
    schedules: Mapping[str, float]
    """The Unix time of each schedule's next tick."""
    snapshots: Sequence[HeldSnapshot] | None
    """The snapshots that keep dead rows from being vacuumed; None on SQLite."""
    deletes_old_tasks: bool
    stuck: Stuck
    relays: Sequence[Relay] = ()
    sources: Sequence[SourceState] = ()
    """The receivers' states."""
    now: datetime | None = None
    """The time at which the relays were read."""

    @classmethod
    def read(cls, store: Store) -> Self:
        """Read the numbers. The window is short, because statistics for a short window are the cheapest."""
        return cls(
            queues=store.stats(window=timedelta(minutes=1)),
            tables=store.table_sizes(),
            schedules=next_ticks(store),
            snapshots=store.held_snapshots(),
            deletes_old_tasks=store.deletes_old_tasks(),
            stuck=store.stuck(),
            relays=(relays := store.relays.list()),
            sources=sources_of(state for worker in store.workers.list() for state in worker.receivers),
            now=store.now() if relays else None,
        )


def next_ticks(store: Store) -> dict[str, float]:
    """Return the Unix time of each schedule's next tick, leaving out schedules that are paused or have no next tick.

    If the workers are late in planting a schedule's ticks, the next tick is the first one that has not been planted.
    """
    now = store.now()
    found = {one.name: next_tick(one, min(one.planted_until, now)) for one in store.schedules.list()}
    return {name: tick.timestamp() for name, tick in found.items() if tick is not None}


class GaugeCache:
    """The latest gauges from the database. The gauges are read by a separate thread, so that a scrape does not wait
    forever.
    """

    def __init__(self, read: Callable[[], Gauges], clock: Callable[[], float] = time.monotonic) -> None:
        self._read, self._clock = read, clock
        self._lock = threading.Lock()
        self._failing = FailureLog(log)
        self._found: Gauges | None = None
        self._at = self._began = -math.inf
        self._reading: threading.Event | None = None

    def read(self) -> Gauges | None:
        """Return the gauges if they are fresh or can be read in time; None if the database is not responding."""
        with self._lock:
            if self._clock() - self._at < FRESH_FOR:
                return self._found
            done = self._reading
            if done is None:
                done, self._began = threading.Event(), self._clock()
                threading.Thread(target=self._refresh, args=(done,), name="outboxq-gauges", daemon=True).start()
                self._reading = done  # not before the thread has started, because nothing else would undo it
            left = self._began + PATIENCE - self._clock()
        if not done.wait(max(0.0, left)):  # during an outage, only the first of several simultaneous scrapes waits
            return None
        with self._lock:
            return self._found

    def _refresh(self, done: threading.Event) -> None:
        found = None
        try:
            found = self._read()
            self._failing.worked("the database's gauges can be read again")
        except Exception as error:  # noqa: BLE001
            self._failing.failed("the database's gauges could not be read, so /metrics leaves them out", error)
        finally:
            with self._lock:
                self._found, self._at, self._reading = found, self._clock(), None
            done.set()


class MetricsServer:
    """Serves `/metrics` over HTTP, in separate threads, until the server is closed."""

    def __init__(self, worker: Worker, store: Store, *, host: str, port: int) -> None:
        """Bind the port; 0 means a free port. `store` has separate connections, which `close` closes.

        Raises ConfigurationError if the port cannot be bound.
        """
        self._store, self._host = store, host
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(WorkerCollector(worker, store))
        self._server: WSGIServer
        try:
            self._server, _ = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise ConfigurationError(
                f"metrics cannot be served on {host} port {port}: {error.strerror or error}; free that port or choose another "
                "one (metrics_port; in commands, --metrics-port)"
            ) from error
        self.port = int(self._server.server_port)
        log.info("metrics are served on http://%s:%d/metrics", f"[{host}]" if ":" in host else host, self.port)

    def close(self) -> None:
        """Free the port, and close the connections."""
        ending = threading.Thread(target=self._server.shutdown, name="outboxq-metrics-end", daemon=True)
        ending.start()
        with suppress(OSError):  # the server checks for the shutdown twice a second, and at each connection
            socket.create_connection((self._host, self.port), timeout=1).close()
        ending.join()
        self._server.server_close()
        close(self._store.bound_engine)


def _of_worker(worker: Worker) -> Iterator[Family]:
    """Yield this process's metrics."""
    meter = worker.meter
    counts = meter.read()
    yield _family(ATTEMPTS, [((*key, end), getattr(one, end)) for key, one in counts.items() for end in AttemptEnd])
    yield _family(RUN_SECONDS, [(key, _buckets(BOUNDS, one.run), one.run_seconds) for key, one in counts.items()])
    waits = _family(WAIT_SECONDS)
    by_queue = defaultdict(list)
    for (queue, _), one in counts.items():
        by_queue[queue].append(one)
    for queue, each in by_queue.items():
        buckets = [sum(one.wait[bucket] for one in each) for bucket in range(BUCKETS)]
        waits.add_metric([queue], _buckets(BOUNDS, buckets), sum(one.wait_seconds for one in each))
    yield waits
    tries, lateness = meter.read_claims().items(), meter.read_lateness().items()
    yield _family(CLAIMS, [([result], one.claims) for result, one in tries])
    yield _family(CLAIM_SECONDS, [([result], _buckets(BOUNDS, one.by_seconds), one.seconds) for result, one in tries])
    yield _family(CLAIMED_TASKS, [([result], _buckets(TASK_BOUNDS, one.by_tasks), one.tasks) for result, one in tries])
    yield _family(
        SCHEDULE_LATENESS, [([name], _buckets(BOUNDS, one.by_seconds), one.seconds) for name, one in lateness]
    )
    busy = min(worker.running, worker.settings.concurrency)
    yield _filled(THREADS, {("busy",): busy, ("idle",): worker.settings.concurrency - busy})
    yield _filled(LISTENING, {(): worker.health.listening})
    beat = meter.last_answer
    yield _filled(LAST_BEAT, {} if beat is None else {(): beat})
    # Prometheus sees no increase in a counter that begins above 0.
    none = {queue: 0 for queue, _ in counts}
    for metric, numbers in ((RECOVERED, meter.read_recovered()), (LEASES_LOST, meter.read_leases_lost())):
        yield _filled(metric, {(queue,): number for queue, number in {**none, **numbers}.items()})


def _of_database(gauges: Gauges | None) -> Iterator[Family]:
    """Yield the database's gauges, or nothing if the database did not respond."""
    if gauges is None:
        return
    queues = gauges.queues
    yield _filled(TASKS, {(one.queue, state): number for one in queues for state, number in _depths(one).items()})
    yield _filled(OLDEST_DUE_AGE, {(one.queue,): _seconds(one.oldest_due_age) for one in queues})
    yield _filled(LIVE_WORKERS, {(one.queue,): one.live_workers for one in queues})
    yield _filled(QUEUE_PAUSED, {(one.queue,): one.paused for one in queues})
    held = {**{one.queue: 0 for one in queues}, **gauges.stuck.held_keys}
    yield _filled(HELD_KEYS, {(queue,): number for queue, number in held.items()})
    yield _filled(STUCK_BATCHES, {(): gauges.stuck.batches})
    yield _filled(SCHEDULE_NEXT, {(name,): moment for name, moment in gauges.schedules.items()})
    yield _filled(RELAY_EVENTS, {(one.name,): one.messages for one in gauges.relays})
    ages = {one.name: gauges.now - one.oldest_at for one in gauges.relays if gauges.now and one.oldest_at}
    yield _filled(RELAY_OLDEST_AGE, {(one.name,): _seconds(ages.get(one.name)) for one in gauges.relays})
    yield _filled(RELAY_FAILING, {(one.name,): one.failing_since is not None for one in gauges.relays})
    yield _filled(RECEIVER_FAILING, {(one.source,): one.failing > 0 for one in gauges.sources})
    yield _filled(TABLE_BYTES, {(one.name,): one.size for one in gauges.tables})
    yield _filled(TABLE_DEAD_ROWS, {(one.name,): one.dead_rows for one in gauges.tables})
    none: dict[tuple[str, ...], float] = {} if gauges.snapshots is None else {(): 0.0}
    for metric, each in (
        (OLDEST_SNAPSHOT_AGE, [one.age.total_seconds() for one in gauges.snapshots or () if one.age is not None]),
        (OLDEST_SNAPSHOT_TRANSACTIONS, [one.transactions for one in gauges.snapshots or ()]),
    ):
        yield _filled(metric, {(): max(each)} if each else none)
    yield _filled(DELETES_OLD_TASKS, {(): gauges.deletes_old_tasks})


def _seconds(age: timedelta | None) -> float:
    """Return an age in seconds; 0 if there is none, or if a clock was changed."""
    return 0.0 if age is None else max(0.0, age.total_seconds())


def _depths(one: Statistics) -> dict[str, int]:
    """Return the number of tasks in a queue, by state. If counting stopped at a limit and the last full count is higher
    than that limit, the full count is returned instead.
    """
    counted = {"due": one.due, "delayed": one.delayed + one.retrying, "running": one.running, "failed": one.failed}
    # With only `retrying_at_least`, the sum of both is exact.
    capped = {"due": one.due_at_least, "delayed": one.delayed_at_least, "failed": one.failed_at_least}
    return {
        state: max(number, getattr(one.sample, state)) if one.sample is not None and capped.get(state) else number
        for state, number in counted.items()
    }


def _family(metric: Metric, samples: Iterable[Sequence[Any]] = ()) -> Any:
    """Return the metric with its samples, each of which contains the labels and the arguments that follow them in the
    family's `add_metric`.
    """
    kinds = {
        Kind.COUNTER: CounterMetricFamily,
        Kind.GAUGE: GaugeMetricFamily,
        Kind.HISTOGRAM: HistogramMetricFamily,
    }
    family = kinds[metric.kind](metric.name, metric.help, labels=metric.labels)
    for sample in samples:
        family.add_metric(*sample)
    return family


def _filled(metric: Metric, values: Mapping[tuple[str, ...], float]) -> Any:
    return _family(metric, values.items())


def _buckets(bounds: Sequence[float], numbers: Sequence[int]) -> list[tuple[str, float]]:
    """Return the buckets as Prometheus expects them: each includes all lower ones, and the last has no upper bound."""
    named = [*map(floatToGoString, bounds), "+Inf"]
    return [(name, sum(numbers[: at + 1])) for at, name in enumerate(named)]
