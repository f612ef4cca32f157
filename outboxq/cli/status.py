"""`outboxq status` shows the queues' counts, rates and durations, once or repeatedly. `outboxq check` shows what needs
attention.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from ..errors import InvalidArgument
from ..model.unknown_options import no_queue
from ..model.wording import brief, grouped, plain, plural, rate_of, short
from ..model.workers import SourceState, sources_of
from ..operating.reading import NONE, read_span
from .console import EXIT_NOT_FOUND, Lines, drawn, fail, screen, table, wants_json, write_json
from .database import database_options, front_end, with_cures
from .groups import until_stopped
from .parameters import QUEUE, SPAN, Read, option, repeated, span_option
from .queues import number, per_key, with_plus
from .relays import receiver_lines, relay_lines

if TYPE_CHECKING:
    from ..store import Cure, Statistics, Store
    from ..store.numbers.overview import Overview

    Cells = Callable[[Statistics], dict[str, object]]

_NOW = ("due", "delayed", "retrying", "running", "failed")
_SPARE_NOW: Final = ("retrying", "delayed", "workers", "running", "oldest", "")
_SPARE_HAPPENED: Final = ("cancelled", "retried", "per s", "completed")
_SPARE_TIMES: Final = ("wait p99", "run p99", "wait p50", "run p50")
"""The columns that are left out first on a narrow terminal, for each of three tables."""


class Watching(click.Command):
    """A command whose `--watch` option may be followed directly by APP."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default number of seconds after `--watch` if the next word is not a number."""
        written = [
            f"{word}={_SECONDS}" if word == "--watch" and not _NUMBER.fullmatch(behind) else word
            for word, behind in zip(args, (*args, "")[1:], strict=True)
        ]
        return super().parse_args(ctx, written)


_SECONDS = 2.0
_NUMBER = re.compile(r"[-+.\d].*")


@click.command(cls=Watching)
@option(
    "--watch",
    is_flag=False,
    flag_value=_SECONDS,
    default=None,
    type=click.FloatRange(min=0.1),
    metavar="[SECONDS]",
    help="Refresh every SECONDS (2 by default) until Ctrl-C.",
)
@option(
    "--by",
    type=click.Choice(["queue", "task"]),
    default="queue",
    help="Print one line for each queue, or for each task name. Default: queue.",
)
@span_option("--window", help="Time span for the rates and durations, e.g. 10m or 7d.", default="1h")
@database_options
def status(store: Store, watch: float | None, by: Literal["queue", "task"], window: timedelta) -> None:
    """Show counts, rates and durations for each queue.

    The command counts the dead letters, and the tasks that are due, delayed, waiting for a retry, or running. Each
    count stops at 10,000; a + means that there are more. Rates and durations cover the time span given by --window, and
    are based on the workers' own counts, which each worker writes every ten seconds. With --json, a queue whose counts
    stop at 10,000 also has the last full count and its age. If the output is piped, the command prints one line for
    each queue: the most important columns, separated by tabs, with durations in seconds. To get every number, use
    --json. With --json and --watch, each refresh prints one line. On a terminal, --watch lists problems first, and also
    shows graphs and workers. A narrow terminal shows fewer columns.

    The receivers, and the relays to brokers, are listed after the queues. With --json, the object has the keys `queues`,
    `relays` and `receivers`.
    """
    look = partial(store.stats, window=window, by=by)
    on_terminal = sys.stdout.isatty()
    tables = partial(_for_people if on_terminal else _for_programs, by_task=by == "task")

    def show() -> None:
        if wants_json():
            sources = _sources(store)
            whole = {"queues": look(), "relays": store.relays.list(), "receivers": sources}
            write_json(whole, line=watch is not None)
            return
        for one in (*tables(look()), *_relays_and_receivers(store)):
            table(*one)
        if watch is not None:
            click.echo()

    if watch is None:
        show()
        return
    with until_stopped() as stop:
        if on_terminal and not wants_json():
            _watch(store, look, tables, View(store, window), partial(stop.wait, watch))
            return
        show()
        while not stop.wait(watch):
            show()


def _sources(store: Store) -> list[SourceState]:
    return sources_of(state for worker in store.workers.list() for state in worker.receivers)


def _relays_and_receivers(store: Store) -> list[Lines]:
    return [one for one in (relay_lines(store), receiver_lines(store.now(), _sources(store))) if one.rows]


def _watch(
    store: Store,
    look: Callable[[], list[Statistics]],
    tables: Callable[[list[Statistics]], list[Lines]],
    view: View,
    wait: Callable[[], bool],
) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    console = screen()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            overview = store.overview(retries=True)
            found = view.sorted(look(), overview)
            head = [Text(line, no_wrap=True) for line in view.head(overview, console.width)]
            lines = [*tables(found), *_relays_and_receivers(store), *view.tables(found, overview)]
            shown = [drawn(one.head, one.rows, width=console.width, spare=one.spare) for one in lines]
            live.update(Group(*head, *shown), refresh=True)
            if wait():
                return


def _for_programs(found: Sequence[Statistics], *, by_task: bool) -> list[Lines]:
    """Return one table, for a pipe. Its columns are always the same, so that scripts can find them."""
    return [_lines(found, _important, by_task=by_task)]


def _important(one: Statistics) -> dict[str, object]:
    return {
        **{name: number(one, name) for name in _NOW},
        "oldest due": one.oldest_due_at,
        **{name: getattr(one, name) for name in ("completed", "failures", "retries", "cancelled", "throughput")},
        "failure rate": one.failure_rate,
        **_wait_and_run(one, timedelta.total_seconds),
        "workers": one.live_workers,
        "notes": _notes(one, *(f"unknown task {name.task_name}" for name in one.unknown)),
    }


def _for_people(found: Sequence[Statistics], *, by_task: bool) -> list[Lines]:
    """Return separate tables for the counts, the rates and the durations. Each table fits in 40 columns."""
    of = partial(_lines, by_task=by_task)
    lines = [of(found, _now, _SPARE_NOW), of(found, _happened, _SPARE_HAPPENED)]
    if attempts := [one for one in found if one.wait is not None]:
        lines.append(of(attempts, partial(_wait_and_run, render=brief), _SPARE_TIMES))
    if unknown := [(name.task_name, one.queue, ", ".join(name.met_by)) for one in found for name in one.unknown]:
        lines.append(Lines(["no live worker knows", "queue", "met by"], unknown))
    samples = {one.queue: one for one in found if one.sample is not None}
    sampled = [
        (queue, sample.due, sample.delayed, sample.failed, brief(age))
        for queue, one in samples.items()
        if (sample := one.sample) is not None and (age := one.sample_age) is not None
    ]
    if sampled:
        lines.append(Lines(["counted in full", "due", "delayed", "failed", "ago"], sampled, ["delayed"]))
    if note := _note(found):
        lines.append(Lines([note], []))
    return lines


def _note(found: Sequence[Statistics]) -> str | None:
    """Return a sentence about the age of the workers' counts, or about missing counts; None if there are no queues."""
    if not found:
        return None
    if not any(one.by_workers for one in found):
        return "no worker has written any statistics in this period; workers write them every 10 s"
    if since := next((one.counted_since for one in found if one.counted_since is not None), None):
        return f"the rates are up to 10 s old, and cover only the time since {short(since)} UTC"
    return "the rates are up to 10 s old"


def _now(one: Statistics) -> dict[str, object]:
    return {
        **{name: number(one, name) for name in _NOW},
        "oldest": None if one.oldest_due_age is None else brief(one.oldest_due_age),
        "workers": one.live_workers,
        "": _notes(one),
    }


def _happened(one: Statistics) -> dict[str, object]:
    return {
        "completed": one.completed,
        "failed": one.failures,
        "retried": one.retries,
        "cancelled": one.cancelled,
        "per s": _rate(one.throughput),
        "failing": None if one.failure_rate is None else f"{one.failure_rate * 100:.1f} %",
    }


def _rate(number: float) -> str:
    """Return a rate with up to three significant digits or as a whole number, never with an exponent: 0.0012, 12.5,
    1,235.
    """
    if 0 < number < 0.0001:
        return "< 0.0001"
    return grouped(round(number)) if number >= 999.5 else f"{number:.3g}"


def _notes(one: Statistics, *more: str) -> str | None:
    """Return a note about the queue's pause and limits, and anything else that is worth noting; None if there is
    nothing.
    """
    notes = ["paused"] if one.paused else []
    if one.concurrency is not None:
        notes.append(f"limit {grouped(one.concurrency)} at a time")
    if one.rate is not None:
        notes.append(f"limit {rate_of(one.rate)}")
    if (of_keys := per_key(one)) is not None:
        notes.append(f"limit {of_keys} per key")
    return ", ".join([*notes, *more]) or None


def _wait_and_run(one: Statistics, render: Callable[[timedelta], object]) -> dict[str, object]:
    return {
        f"{what} {name}": None if taken is None else render(getattr(taken, name))
        for what, taken in (("wait", one.wait), ("run", one.run))
        for name in ("p50", "p95", "p99")
    }


def _lines(found: Sequence[Statistics], cells: Cells, spare: Sequence[str] = (), *, by_task: bool) -> Lines:
    """Return the column names, which are taken from an empty record, and one row for each record."""
    from ..store import Statistics

    names = ["queue", "task"] if by_task else ["queue"]
    rows = [[*(one.queue, one.task_name)[: len(names)], *cells(one).values()] for one in found]
    return Lines([*names, *cells(Statistics(queue=""))], rows, spare)


_BARS: Final = "▁▂▃▄▅▆▇█"
_UNITS: Final = ("", "k", "M", "G")
_STEPS: Final = 24
"""The number of bars in a curve."""
_CURVES: Final = 6
"""The maximum number of queues for which a curve is drawn. Each curve requires one statement."""
_PROBLEMS: Final = 5
_WORKERS: Final = 8
_CURVES_EVERY: Final = 15.0
"""Seconds between two reads of the curves. Workers take samples no more often than that."""


class View:
    """The lines and tables that `--watch` adds to those of `status`."""

    def __init__(self, store: Store, window: timedelta) -> None:
        self._store = store
        self._step = _step_of(window)
        self._read_at: float | None = None
        self._curves: list[tuple[str, str, str]] = []

    def sorted(self, found: Iterable[Statistics], overview: Overview) -> list[Statistics]:
        """Return the queues sorted by urgency: those with problems first, then the others by the number of due tasks."""
        places = [(queue, place) for place, one in enumerate(overview.problems) for queue in one.subjects]
        order, last = dict(reversed(places)), len(places)
        return sorted(found, key=lambda one: (order.get(one.queue, last), -one.due, one.queue, one.task_name or ""))

    def head(self, overview: Overview, width: int) -> list[str]:
        """Return the lines above the tables: the totals over all queues, and the problems."""
        numbers = [f"{with_plus(getattr(overview, name))} {name}" for name in _NOW]
        live = f"{overview.live_workers} {plural(overview.live_workers, 'worker')}"
        first = f"{overview.at:%H:%M:%S} UTC  {'  '.join(numbers)}  {live}"
        troubles = [f"! {one.sentence}" for one in overview.problems[:_PROBLEMS]]
        if (more := len(overview.problems) - _PROBLEMS) > 0:
            troubles.append(f"! and {more} more: outboxq check")
        return [cut(one, width) for one in (first, *troubles)]

    def tables(self, found: Sequence[Statistics], overview: Overview) -> list[Lines]:
        """Return the tables that follow those of `status`: the curves and the workers."""
        now = time.monotonic()
        if self._read_at is None or now - self._read_at >= _CURVES_EVERY:
            queues = [*dict.fromkeys(one.queue for one in found)]
            chosen: list[str | None] = [None, *queues[:_CURVES]] if len(queues) > 1 else [None]
            self._read_at, self._curves = now, [self._curve(queue, overview.at) for queue in chosen]
        lines = [Lines((f"the last {brief(self._step * _STEPS)}", "due", "done"), self._curves, ("done",))]
        rows = []
        for one in sorted(overview.workers, key=lambda one: (-(one.busy or 0), one.label))[:_WORKERS]:
            busy = f"{'?' if one.busy is None else one.busy}/{one.concurrency}"
            rows.append((one.host or one.label, one.pid, one.version, busy, brief(overview.at - one.last_seen_at)))
        if rows:
            lines.append(Lines(("worker", "pid", "version", "busy", "seen ago"), rows, ("version", "pid")))
        return lines

    def _curve(self, queue: str | None, now: datetime) -> tuple[str, str, str]:
        since = now - self._step * _STEPS
        found = self._store.trends(since=since, until=now, step=self._step, queue=queue)
        name = "all queues" if queue is None else queue
        return name, _with_top([one.due for one in found.depths]), _with_top([one.completed for one in found.counts])


def _step_of(window: timedelta) -> timedelta:
    """Return the shortest step with which a curve covers the entire window. The step is a multiple of the length of the
    spans in which counts of this age are stored; otherwise, the bars would cover different numbers of spans.
    """
    from ..store.numbers.metrics import LEVELS

    lengths, ages = [length for _, length in LEVELS], [age for age, _ in LEVELS[1:]]
    steps = [max(1, -(-window // (_STEPS * length))) * length for length in lengths]
    return next((step for step, age in zip(steps, ages, strict=False) if _STEPS * step <= age), steps[-1])


def _with_top(values: Sequence[float | None]) -> str:
    """Return the values as bars, followed by the largest value, written in at most five characters."""
    most = max((one for one in values if one is not None), default=None)
    if most is None:
        return sparkline(values)
    size, place = float(most), 0
    while size >= 999.5 and place < len(_UNITS) - 1:
        size, place = size / 1000, place + 1
    number = f"{size:.1f}" if place and size < 9.95 else f"{size:.0f}"
    return f"{sparkline(values)} {number}{_UNITS[place]}"


def sparkline(values: Sequence[float | None]) -> str:
    """Return the values as bars, scaled from 0 to the largest value. None leaves a gap."""
    most = max((one for one in values if one is not None), default=0)
    if most <= 0:
        return "".join(" " if one is None else _BARS[0] for one in values)
    top = len(_BARS) - 1
    # Any value above 0 gets a bar that differs from that of 0.
    return "".join(" " if one is None else _BARS[0 if one <= 0 else max(1, round(one / most * top))] for one in values)


def cut(text: str, width: int) -> str:
    """Return the text on one line, cut to the terminal's width."""
    known = plain(text)
    return known if len(known) <= width else f"{known[: width - 1]}…"


EXIT_PROBLEM = 1


def _read_number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise InvalidArgument("write a whole number of at least 0, or 'none'")
    return int(text)


def _limit(read: Callable[[str], object], metavar: str, name: str, rule: str, help: str) -> Callable[[Any], Any]:
    """Return the option that sets a rule's limit; `none` switches the rule off."""
    kind = Read("text", lambda text: None if text == NONE else read(text))
    return option(name, rule, type=kind, default=..., metavar=metavar, help=f"{help} `none` removes the limit.")


_span_limit, _number_limit = partial(_limit, read_span, "SPAN"), partial(_limit, _read_number, "NUMBER")


def _asks(name: str, rule: str, help: str, *, default: bool = True) -> Callable[[Any], Any]:
    """Return the option that switches a rule on or off."""
    return click.option(f"--{name}/--no-{name}", rule, default=default, help=help)


@click.command()
@_span_limit("--max-age", "oldest", "Maximum time since a waiting task became due. Default: 5m.")
@_number_limit("--max-failed", "failed", "Maximum number of new dead letters. Default: 0.")
@option("--failed-within", type=SPAN, default=..., help="Time span for --max-failed. Default: 1h.")
@_limit(
    _read_number,
    "PERCENT",
    "--max-retried",
    "retried",
    "Maximum percentage of attempts that failed and will be retried, per task over the last 10 minutes. Default: 20.",
)
@_span_limit("--max-lateness", "schedule_overdue", "Maximum lateness of a schedule. Default: 1m.")
@_span_limit("--max-relay", "relay_late", "Maximum time that an event may wait for a relay to publish it. Default: 5m.")
@_span_limit("--max-receiver", "receiver_failing", "Maximum time that a receiver may keep failing. Default: 5m.")
@_span_limit(
    "--max-snapshot", "snapshot", "Maximum age of a transaction that keeps dead rows from being vacuumed. Default: 10m."
)
@_number_limit(
    "--max-dead-rows", "dead_rows", "Maximum number of dead rows in a table with short-lived rows. Default: 100000."
)
@_span_limit("--max-history", "history", "Maximum age of the oldest event if nothing deletes old tasks. Default: 7d.")
@_asks("clocks", "schedule_ahead", "Check whether ticks were planted too early because a clock was running fast.")
@_asks("workers", "no_worker", "Check whether each queue with waiting tasks has a live worker.")
@_asks("failing-workers", "worker_failing", "Check whether an error keeps a live worker from claiming or ending tasks.")
@_asks("lost-workers", "worker_lost", "Check whether a worker stopped reporting while it was running tasks.")
@_asks("keys", "key_held", "Check whether tasks wait behind a dead letter.")
@_asks("names", "unknown_task", "Check whether workers know all waiting tasks.")
@_asks("waiting-batches", "batch_waits", "Check whether a batch or a chain waits for dead letters.")
@_asks("batches", "batch_unclosed", "Check whether a batch was left unclosed.")
@_asks("pauses", "queue_paused", "Check whether a queue is paused. Default: no.", default=False)
@repeated("-q", "--queue", "queues", type=QUEUE, help="Report only problems with this queue. May be repeated.")
@database_options
def check(store: Store, *, queues: tuple[str, ...], **limits: Any) -> None:
    """Print what needs attention; exit with code 1 if anything does.

    Each problem is printed on one line, with the commands that can help. Problems are sorted by how many tasks they hold
    up and for how long, but a problem always follows the problems that cause it. The largest parts of a problem follow
    it, indented. The exit code is 0 if there is no problem, 3 if there is no queue with the given name, and 69, 77 or 4
    if the database cannot be read.
    """
    from ..store import HealthLimits

    given = {rule: value for rule, value in limits.items() if value is not ...}
    known = [one.queue for one in store.queues.list()] if queues else []
    for name in queues:
        # A queue with a mistyped name would never have a problem.
        if name not in known and not store.queues.is_known(name):
            fail(no_queue(name, known), EXIT_NOT_FOUND)
    found = store.health(replace(HealthLimits(), **given), queues=queues or None)
    if wants_json():
        write_json([with_cures(one, "check") for one in found])
    else:
        for one in found:
            _tell(f"{one.rule}: {one.sentence}", one.cures)
            for part in one.parts:
                _tell(f"  {part.sentence}", part.cures)
        if not found:
            click.echo("all is well")
    sys.exit(EXIT_PROBLEM if found else 0)


def _tell(sentence: str, cures: Iterable[Cure]) -> None:
    typed = front_end("check").typed
    words = "; ".join(f"to {cure.purpose}: {typed(cure.command)}" for cure in cures)
    click.echo(plain(f"{sentence}{f' ({words})' if words else ''}"))
