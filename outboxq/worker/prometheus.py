"""Expose the metrics of a worker to Prometheus. Imported only where `prometheus_client` is installed and asked for."""

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
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Self
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ..database.engine import close
from ..errors import ConfigurationError, InvalidArgument
from ..model.histograms import BOUNDS, BUCKETS, AttemptCounts
from ..model.rules import parse_rule
from ..store import Statistics, Store, TableSize
from ..store.failure_log import FailureLog
from . import metrics
from .meter import TASK_BOUNDS, AttemptEnd
from .metrics import Kind, Metric, Source

if TYPE_CHECKING:
    from .worker import Worker

log = logging.getLogger("outboxq.worker")

FRESH_FOR: Final = 5.0
"""Seconds for which what was read from the database answers all scrapes."""
PATIENCE: Final = 2.0
"""Seconds that a scrape waits for the database."""

_WINDOW = timedelta(minutes=1)

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class WorkerCollector(Collector):
    """Collects the metrics of one worker: its own counts, and gauges of its database.

    A scrape reads the database at most every 5 s and waits at most 2 s for it. If there is no answer, the gauges of the database
    are left out. For an HTTP server or a registry of your own: ``registry.register(WorkerCollector(worker))``.
    """

    def __init__(self, worker: Worker, store: Store) -> None:
        """`store`: reads the gauges of the database, such as ``outbox.store``."""
        self._worker = worker
        self._cache = GaugeCache(lambda: Gauges.read(store))

    def describe(self) -> Iterable[Family]:
        """Return the metrics without numbers, so that registering the collector reads nothing."""
        return [_family(one) for one in metrics.METRICS]

    def collect(self) -> Iterator[Family]:
        """Yield the metrics with their numbers."""
        yield from _of_database(self._cache.read())
        yield from _of_worker(self._worker)


class DatabaseCollector(Collector):
    """Collects the gauges of a database alone, where no worker runs: under the same names as the workers' collectors."""

    def __init__(self, store: Store) -> None:
        self._cache = GaugeCache(lambda: Gauges.read(store))

    def describe(self) -> Iterable[Family]:
        """Return the metrics without numbers."""
        return [_family(one) for one in metrics.METRICS if one.source is Source.DATABASE]

    def collect(self) -> Iterator[Family]:
        """Yield the metrics with their numbers; none if the database does not answer in time."""
        yield from _of_database(self._cache.read())


@dataclass(frozen=True, kw_only=True, slots=True)
class Gauges:
    """The numbers that the database knows."""

    queues: Sequence[Statistics]
    tables: Sequence[TableSize]
    schedules: Mapping[str, float]
    """The Unix time of each schedule's next tick."""

    @classmethod
    def read(cls, store: Store) -> Self:
        """Read them. The statistics of a short window cost least."""
        return cls(queues=store.stats(window=_WINDOW), tables=store.table_sizes(), schedules=next_ticks(store))


def next_ticks(store: Store) -> dict[str, float]:
    """Return the Unix time of the next tick of each schedule that is not paused and has one.

    That is the next one from now on, or, where no worker has planted in time, the first one that is not planted.
    """
    found, now = {}, store.now()
    for one in store.schedules.list():
        with suppress(InvalidArgument):  # a zone that is unknown here: the planters log it
            tick = parse_rule(one.rule, one.tz, starts_at=one.starts_at).after(min(one.planted_until, now))
            if one.paused_at is None and tick is not None and (one.ends_at is None or tick < one.ends_at):
                found[one.name] = tick.timestamp()
    return found


class GaugeCache:
    """The gauges of the database, as they were read last. A thread reads them, so that a scrape need not wait for ever."""

    def __init__(self, read: Callable[[], Gauges], clock: Callable[[], float] = time.monotonic) -> None:
        self._read, self._clock = read, clock
        self._lock = threading.Lock()
        self._failing = FailureLog(log)
        self._found: Gauges | None = None
        self._at = self._began = -math.inf
        self._reading: threading.Event | None = None

    def read(self) -> Gauges | None:
        """Return the gauges if they are fresh, or can be read in time. None: the database does not answer."""
        with self._lock:
            if self._clock() - self._at < FRESH_FOR:
                return self._found
            done = self._reading
            if done is None:
                done, self._began = threading.Event(), self._clock()
                self._reading = done
                threading.Thread(target=self._refresh, args=(done,), name="outboxq-gauges", daemon=True).start()
            left = self._began + PATIENCE - self._clock()
        if not done.wait(max(0.0, left)):  # of several scrapes in an outage, only the first one waits
            return None
        with self._lock:
            return self._found

    def _refresh(self, done: threading.Event) -> None:
        found = None
        try:
            found = self._read()
            self._failing.worked("the gauges of the database can be read again")
        except Exception as error:  # noqa: BLE001
            self._failing.failed("the gauges of the database could not be read, so /metrics leaves them out", error)
        finally:
            with self._lock:
                self._found, self._at, self._reading = found, self._clock(), None
            done.set()


class MetricsServer:
    """Answers `/metrics` over HTTP, in threads of its own, until it is closed."""

    def __init__(self, worker: Worker, store: Store, *, host: str, port: int) -> None:
        """Bind the port; 0 takes a free one. `store` has connections of its own, which `close` closes.

        Raises ConfigurationError if the port cannot be had.
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
                f"no metrics can be served on {host} port {port}: {error.strerror or error}; free that port or choose another "
                "one (metrics_port, in commands --metrics-port)"
            ) from error
        self.port = int(self._server.server_port)
        log.info("metrics are served on http://%s:%d/metrics", f"[{host}]" if ":" in host else host, self.port)

    def close(self) -> None:
        """Free the port, and close the connections."""
        ending = threading.Thread(target=self._server.shutdown, name="outboxq-metrics-end", daemon=True)
        ending.start()
        with suppress(OSError):  # it looks at that twice a second, and whenever somebody comes
            socket.create_connection((self._host, self.port), timeout=1).close()
        ending.join()
        self._server.server_close()
        close(self._store.bound_engine)


def _of_worker(worker: Worker) -> Iterator[Family]:
    """Yield what the process itself knows."""
    meter = worker.meter
    counts = meter.read()
    attempts = _family(metrics.ATTEMPTS)
    for (queue, task), one in counts.items():
        for end in AttemptEnd:
            attempts.add_metric([queue, task, end], getattr(one, end))
    yield attempts
    runs = _family(metrics.RUN_SECONDS)
    for (queue, task), one in counts.items():
        runs.add_metric([queue, task], _buckets(BOUNDS, one.run), one.run_seconds)
    yield runs
    waits = _family(metrics.WAIT_SECONDS)
    for queue, each in _by_queue(counts).items():
        buckets = [sum(one.wait[bucket] for one in each) for bucket in range(BUCKETS)]
        waits.add_metric([queue], _buckets(BOUNDS, buckets), sum(one.wait_seconds for one in each))
    yield waits
    claims, seconds, tasks = (_family(one) for one in (metrics.CLAIMS, metrics.CLAIM_SECONDS, metrics.CLAIMED_TASKS))
    for result, tries in meter.read_claims().items():
        claims.add_metric([result], tries.claims)
        seconds.add_metric([result], _buckets(BOUNDS, tries.by_seconds), tries.seconds)
        tasks.add_metric([result], _buckets(TASK_BOUNDS, tries.by_tasks), tries.tasks)
    yield from (claims, seconds, tasks)
    lateness = _family(metrics.SCHEDULE_LATENESS)
    for schedule, late in meter.read_lateness().items():
        lateness.add_metric([schedule], _buckets(BOUNDS, late.by_seconds), late.seconds)
    yield lateness
    busy = min(worker.running, worker.settings.concurrency)
    yield _filled(metrics.THREADS, {("busy",): busy, ("idle",): worker.settings.concurrency - busy})
    yield _filled(metrics.LISTENING, {(): worker.health.listening})
    beat = meter.last_answer
    yield _filled(metrics.LAST_BEAT, {} if beat is None else {(): beat})
    none = dict.fromkeys((queue for queue, _ in counts), 0)  # a counter that begins above 0 has no increase
    for metric, numbers in (
        (metrics.RECOVERED, meter.read_recovered()),
        (metrics.LEASES_LOST, meter.read_leases_lost()),
    ):
        yield _filled(metric, {(queue,): number for queue, number in {**none, **numbers}.items()})


def _of_database(gauges: Gauges | None) -> Iterator[Family]:
    """Yield what the database knows; nothing if it did not answer."""
    if gauges is None:
        return
    tasks: dict[tuple[str, ...], int] = {}
    ages: dict[tuple[str, ...], float] = {}
    for one in gauges.queues:
        for state, number in _depths(one).items():
            tasks[one.queue, state] = number
        age = one.oldest_ready_age
        ages[one.queue,] = 0.0 if age is None else max(0.0, age.total_seconds())
    yield _filled(metrics.TASKS, tasks)
    yield _filled(metrics.OLDEST_READY_AGE, ages)
    yield _filled(metrics.LIVE_WORKERS, {(one.queue,): one.live_workers for one in gauges.queues})
    yield _filled(metrics.SCHEDULE_NEXT, {(name,): moment for name, moment in gauges.schedules.items()})
    yield _filled(metrics.TABLE_BYTES, {(one.name,): one.size for one in gauges.tables})
    yield _filled(metrics.TABLE_DEAD_ROWS, {(one.name,): one.dead_rows for one in gauges.tables})


def _depths(one: Statistics) -> dict[str, int]:
    """Return the tasks of a queue by state. Where only so many were counted, it is the last full count, if that found more."""
    counted = {"ready": one.ready, "delayed": one.delayed + one.retrying, "running": one.running, "failed": one.failed}
    capped = {
        "ready": one.ready_at_least,
        "delayed": one.delayed_at_least or one.retrying_at_least,
        "failed": one.failed_at_least,
    }
    return {
        state: max(number, getattr(one.sample, state)) if one.sample is not None and capped.get(state) else number
        for state, number in counted.items()
    }


def _family(metric: Metric) -> Any:
    kinds = {
        Kind.COUNTER: CounterMetricFamily,
        Kind.GAUGE: GaugeMetricFamily,
        Kind.HISTOGRAM: HistogramMetricFamily,
    }
    return kinds[metric.kind](metric.name, metric.help, labels=metric.labels)


def _filled(metric: Metric, values: Mapping[tuple[str, ...], float]) -> Any:
    family = _family(metric)
    for labels, value in values.items():
        family.add_metric(list(labels), value)
    return family


def _by_queue(counts: Mapping[tuple[str, str], AttemptCounts]) -> Mapping[str, list[AttemptCounts]]:
    found = defaultdict(list)
    for (queue, _), one in counts.items():
        found[queue].append(one)
    return found


def _buckets(bounds: Sequence[float], numbers: Sequence[int]) -> list[tuple[str, float]]:
    """Return the buckets as Prometheus has them: each with all that is below it too, the last without a bound."""
    named = [*map(floatToGoString, bounds), "+Inf"]
    return [(name, sum(numbers[: at + 1])) for at, name in enumerate(named)]
