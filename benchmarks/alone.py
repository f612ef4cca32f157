"""Measures without peers, which compare outboxq with hand-written SQL or with itself: old tables, slow handlers, memory."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from sqlalchemy import Engine

from benchmarks.bench import Bench
from benchmarks.claims import WORKER, new
from benchmarks.past import Past, tidy
from benchmarks.queues import OUTBOXQ
from benchmarks.results import COUNT, MEGABYTES, RATE, SHARE
from benchmarks.running import Running, SqliteBase
from outboxq.database.engine import make_engine
from outboxq.store import Store


def history(bench: Bench, kind: str) -> None:
    """Measure drains of a backlog on small tables and behind many finished tasks, in the same rounds."""
    for finished in bench.sizes.finished:
        behind(bench, kind, finished)


def behind(bench: Bench, kind: str, finished: int) -> None:
    """Measure raw and outboxq on the same two databases: one with small tables, and one with this many finished tasks."""
    tasks, title = bench.sizes.drained, f"{kind}: drain behind {finished:,} finished tasks"
    with ExitStack() as stack:
        few, many = bench.ours_together(kind, stack), bench.ours_together(kind, stack)
        engine = engine_of(many[0])
        Past.of_months(finished).write(engine)
        tidy(engine)
        engine.dispose()

        def work(one: Running) -> None:
            name = f"{one.queue.name}, {'few' if one in few else 'many'}"
            bench.results.add(f"{kind}.history.{finished}", title, RATE, name, one.drain(tasks).rate)

        # A goal refers to the figure on PostgreSQL, so it needs at least two rounds.
        rounds = min(bench.sizes.rounds, max(2 if kind == "postgresql" else 1, bench.sizes.slow_rounds))
        bench.in_turns(f"{kind}, behind {finished:,}", [*few, *many], work, rounds)
        if kind == "postgresql":
            buffers(bench, few[0], many[0], finished)


def buffers(bench: Bench, few: Running, many: Running, finished: int) -> None:
    """Count the shared buffers that one claim reads, in transactions that are rolled back."""
    from benchmarks.history import Place, captured, visited

    for side, one in (("few", few), ("many", many)):
        engine = engine_of(one)
        place = Place(url=str(engine.url), store=Store(engine))
        place.store.enqueue_many([new() for _ in range(200)])
        tidy(engine)  # otherwise the count depends on when autovacuum last ran
        for limit in (1, 100):
            ask = partial(place.store.claim_ready_task, limit, worker_id=WORKER, queues=["bench"])
            seen = captured(place, lambda using, ask=ask: ask(using=using))
            key, title = f"buffers.{finished}.{limit}", f"buffers of a claim of {limit} behind {finished:,} finished"
            read = [visited(place, seen) for _ in range(5)]
            bench.results.add(f"postgresql.{key}", f"postgresql: {title}", COUNT, side, read)
        engine.dispose()


def engine_of(one: Running) -> Engine:
    address = one.base.address
    if isinstance(one.base, SqliteBase):
        return make_engine(f"sqlite:///{address}")
    return make_engine(address.replace("postgresql:", "postgresql+psycopg:"))


def handlers(bench: Bench, kind: str) -> None:
    """Measure handlers that wait, as a share of the rate that this number of threads could reach."""

    def work(one: Running) -> None:
        one.reset()
        how = one.queue.name.partition(" ")[2]
        for milliseconds, threads in bench.sizes.handled:
            ideal = threads / (milliseconds / 1000)
            tasks = min(max(20, threads, int(ideal * bench.sizes.handlers)), 40_000)
            drained = one.drain(tasks, BENCH_THREADS=str(threads), BENCH_SLEEP=str(milliseconds / 1000))
            title = f"{kind}: handlers of 1 and 20 ms, beside threads / duration"
            name = f"{milliseconds} ms, {threads} threads" + (f", {how}" if how else "")
            bench.results.add(f"{kind}.handlers", title, SHARE, name, drained.rate / ideal)
        one.reset()

    asked = [one for one in bench.as_it_comes(kind) if one.queue.peer == OUTBOXQ]
    bench.in_turns(f"{kind}, handlers", asked, work, bench.sizes.slow_rounds)


def memory(bench: Bench, kind: str) -> None:
    """Measure the memory of one worker process after N tasks and after ten times as many."""
    one, few = bench.outboxq(kind), bench.sizes.memory
    one.reset()
    with one.workers() as found:
        one.fill(few)
        first = one.drained(found, few)
        one.fill(9 * few)
        second = one.drained(found, 9 * few, before=few)
    for name, drained in ((f"after {few:,}", first), (f"after {10 * few:,}", second)):
        bench.results.add(f"{kind}.memory", f"{kind}: memory of a worker", MEGABYTES, name, drained.rss / 1e6)
    one.reset()
