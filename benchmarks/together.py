"""The measures for all queues: enqueueing, draining a backlog, and starting a single task quickly."""

from __future__ import annotations

import time
from typing import Literal

from benchmarks.bench import Bench
from benchmarks.queues import OUTBOXQ, RAW
from benchmarks.results import BYTES, MICROSECONDS, MILLISECONDS, PERCENT, RATE, percentile
from benchmarks.running import Drained, Running, cpu_of

FULL = "only in a full run"


def enqueue(bench: Bench, kind: str) -> None:
    """Measure enqueues of single tasks, each in a separate transaction, and of many tasks in one call."""
    tasks, bulk = bench.sizes.singles, bench.sizes.bulk

    def singly(one: Running) -> None:
        one.reset()
        _, before = one.base.cost()
        rate = tasks / one.client.ask("enqueue", tasks)
        wal = one.base.cost()[1] - before
        bench.results.add(
            f"{kind}.enqueue", f"{kind}: enqueue, one transaction each, {tasks:,} tasks", RATE, one.queue.name, rate
        )
        if wal:
            title = f"{kind}: WAL of a task that is enqueued alone"
            bench.results.add(f"{kind}.enqueue.wal", title, BYTES, one.queue.name, wal / (tasks + 20))
        one.reset()

    def at_once(one: Running) -> None:
        one.reset()
        rate = bulk / one.client.ask("bulk", bulk)
        bench.results.add(f"{kind}.bulk", f"{kind}: enqueue {bulk:,} in one call", RATE, one.queue.name, rate)
        one.reset()

    bench.in_turns(f"{kind}, enqueue", bench.queues(kind), singly)
    bench.in_turns(f"{kind}, bulk", able(bench, kind, "bulk", "no call that enqueues many"), at_once)


def able(bench: Bench, kind: str, what: Literal["bulk", "later"], why: str) -> list[Running]:
    """Return the queues that have this ability."""
    return asked(bench, f"{kind}, {what}", [one for one in bench.queues(kind) if getattr(one.queue, what)], kind, why)


def asked(bench: Bench, what: str, those: list[Running], kind: str, why: str) -> list[Running]:
    """Return these queues, and record the reason why the others are not measured."""
    others = [one.queue.name for one in bench.queues(kind) if one not in those]
    if others:
        bench.results.missing[f"{what}: {', '.join(others)}"] = why
    return those


def drain(bench: Bench, kind: str) -> None:
    """Measure the drain of a backlog of no-op tasks, by one worker process and by two."""
    everybody = bench.queues(kind)
    sizes = {one.queue.name: max(10, int(bench.sizes.drained * one.queue.share)) for one in everybody}
    bench.results.about["drained"] |= {f"{kind}: {name}": f"{tasks:,} tasks" for name, tasks in sizes.items()}

    def with_one(one: Running) -> None:
        tasks = sizes[one.queue.name]
        one.reset()
        note(bench, f"{kind}.drain", f"{kind}: drain by 1 process", one, one.drain(tasks), tasks)

    def with_two(one: Running) -> None:
        tasks = sizes[one.queue.name]
        one.reset()
        bench.results.add(
            f"{kind}.drain2", f"{kind}: drain by 2 processes", RATE, one.queue.name, one.drain(tasks, 2).rate
        )

    bench.in_turns(f"{kind}, drain by 1", everybody, with_one)
    # SQLite allows only one writer at a time, so a quick run measures only one process.
    two = bench.queues_of_goals(kind) if kind == "postgresql" or bench.sizes.thorough else []
    rounds = None if kind == "postgresql" else bench.sizes.slow_rounds
    bench.in_turns(f"{kind}, drain by 2", asked(bench, f"{kind}, drain by 2", two, kind, FULL), with_two, rounds)


def note(bench: Bench, key: str, title: str, one: Running, drained: Drained, tasks: int) -> None:
    """Record the rate and the cost of a drain."""
    name, add = one.queue.name, bench.results.add
    add(key, title, RATE, name, drained.rate)
    add(f"{key}.steady", f"{title}, from the first fifth on", RATE, name, drained.steady)
    add(f"{key}.worker", f"{title}: CPU of the worker for a task", MICROSECONDS, name, drained.worker / tasks * 1e6)
    if drained.wal:
        add(f"{key}.server", f"{title}: CPU of the server for a task", MICROSECONDS, name, drained.server / tasks * 1e6)
        add(f"{key}.wal", f"{title}: WAL for a task", BYTES, name, drained.wal / tasks)


def backlog(bench: Bench, kind: str) -> None:
    """Measure drains of larger backlogs, by raw, outboxq and the fastest peer."""
    wanted = {RAW, OUTBOXQ, "PgQueuer"} if bench.sizes.thorough else {RAW, OUTBOXQ}
    chosen = [one for one in bench.queues(kind) if one.queue.peer in wanted]
    if not bench.sizes.backlogs:
        bench.results.missing[f"{kind}, large backlogs"] = FULL
    for tasks in bench.sizes.backlogs:

        def work(one: Running, tasks: int = tasks) -> None:
            one.reset()
            key, title = f"{kind}.backlog.{tasks}", f"{kind}: drain a backlog of {tasks:,} by 1 process"
            bench.results.add(key, title, RATE, one.queue.name, one.drain(tasks).rate)
            one.reset()

        rounds = 1 if tasks > 500_000 else bench.sizes.slow_rounds
        bench.in_turns(f"{kind}, backlog of {tasks:,}", chosen, work, rounds)


def pickup(bench: Bench, kind: str) -> None:
    """Measure how soon an idle worker starts a single task: from just before the enqueue, including its commit, to the start of
    the handler."""
    tasks = bench.sizes.pickups
    punctual = able(bench, kind, "later", "not told by the driver when a task is due")

    def work(one: Running) -> None:
        one.reset()
        name, add = one.queue.name, bench.results.add
        with one.workers() as found:
            found[0].ready()
            found[0].tell("begin")
            one.client.ask("enqueue", 1)
            one.wait_for(21)  # includes the 20 tasks of the warm-up
            time.sleep(1)
            if one.queue.peer == OUTBOXQ or bench.sizes.thorough:
                before = cpu_of(found[0].process.pid)
                time.sleep(bench.sizes.idle)
                share = (cpu_of(found[0].process.pid) - before) / bench.sizes.idle * 100
                add(f"{kind}.idle", f"{kind}: CPU of an idle worker", PERCENT, name, share)
            told = one.client.ask("pace", 1_000_000, tasks)
            one.wait_for(21 + tasks)
            waits = since(one, 1_000_000, told)
            add(f"{kind}.pickup.p50", f"{kind}: pickup, p50 of {tasks}", MILLISECONDS, name, percentile(waits, 0.5))
            add(f"{kind}.pickup.p99", f"{kind}: pickup, p99 of {tasks}", MILLISECONDS, name, percentile(waits, 0.99))
            if one in punctual:
                late = bench.sizes.delayed
                due = one.client.ask("delayed", 2_000_000, late, 0.3)
                one.wait_for(21 + tasks + late)
                waits = since(one, 2_000_000, due)
                add(f"{kind}.late", f"{kind}: due in 300 ms, late by, p50", MILLISECONDS, name, percentile(waits, 0.5))
                add(f"{kind}.late.worst", f"{kind}: due in 300 ms, late by, worst", MILLISECONDS, name, max(waits))
        one.reset()

    bench.in_turns(f"{kind}, pickup", bench.queues(kind), work, bench.sizes.slow_rounds)


def since(one: Running, first: int, moments: list[int]) -> list[float]:
    """Return the milliseconds from these times to the starts of the tasks with the numbers from `first` on."""
    began = dict(one.beginnings())
    return [(began[first + number] - moment) / 1e6 for number, moment in enumerate(moments)]
