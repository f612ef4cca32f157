"""`outboxq queue`: list, show and change queues."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import click

from ..model.unknown_options import no_queue
from ..model.wording import brief, grouped, plain, rate_of
from ..operating.verb import Noun, Outcome
from .console import EXIT_NOT_FOUND, add_table, card, fail, in_utc, merged, show, wants_json, write_json
from .database import database_options, front_end
from .groups import Group
from .parameters import QUEUE
from .verbs import add_verbs, note_no_change
from .workers import order_of

if TYPE_CHECKING:
    from datetime import timedelta

    from ..store import Count, QueueSettings, Statistics, Store


HEAD = ("queue", "paused since", "paused because", "concurrency", "rate", "order")
PER_KEY = "per key"
"""The name of the last column. This column comes last so that the others stay where scripts expect them."""
_COUNTS = ("due", "delayed", "retrying", "running", "failed")
_MOST_KEYS = 50


@click.command("list")
@database_options
def list_(store: Store) -> None:
    """List all queues, with their settings and counts.

    The list contains every queue that has unfinished tasks, settings, a sample or a live worker. A + after a count
    means that there are more.
    """
    from ..store import QueueSettings

    found = store.overview(retries=True)
    settings = {one.queue: one for one in found.settings}
    pairs = [(settings.get(one.queue) or QueueSettings(queue=one.queue), one) for one in found.queues]
    rows = [(*cells(one), *(number(n, name) for name in _COUNTS), n.live_workers, per_key(one)) for one, n in pairs]
    records = [merged(one, counts(numbers)) for one, numbers in pairs]
    spare = ("order", PER_KEY, "rate", "concurrency", "paused because", "paused since", "workers", *_COUNTS[1:4])
    show((*HEAD, *_COUNTS, "workers", PER_KEY), rows, records=records, spare=spare)


@click.command("show")
@click.argument("name", type=QUEUE)
@database_options
def show_(store: Store, name: str) -> None:
    """Show the settings, counts and workers of a queue.

    The command also prints when the next task is due, which keys are held by dead letters, and what needs attention.
    """
    found = store.overview(problems_of=[name], retries=True)
    names = [one.queue for one in found.queues]
    if name not in names and not store.queues.is_known(name):
        fail(no_queue(name, names), EXIT_NOT_FOUND)
    numbers, settings = found.of_queue(name), found.settings_of(name)
    live = [one for one in found.workers if one.works_on(name)]
    due = store.next_available_at([name])
    keys = store.queues.held_keys(name, limit=_MOST_KEYS)
    typed = front_end("queue show").typed
    if wants_json():
        sentences = [{"rule": one.rule, "sentence": one.sentence} for one in found.problems]
        more = {"next_due_at": due, "held_keys": keys, "workers": live, "problems": sentences}
        write_json(merged(settings, counts(numbers), more))
        return
    known = dict(zip((*HEAD, PER_KEY), (*cells(settings), per_key(settings)), strict=True))
    lines: dict[str, object] = {
        **{one: number(numbers, one) for one in _COUNTS},
        "oldest": None if numbers.oldest_due_age is None else f"due for {brief(numbers.oldest_due_age)}",
        "next due": in_utc(due),
        "paused since": in_utc(settings.paused_at),
        **{one: known[one] for one in ("paused because", "concurrency", "rate", PER_KEY, "order")},
        "workers": numbers.live_workers,
    }
    card(("queue", name), lines.items())
    rows = [(one.partition_key, one.dead_letter, one.failed_at, with_plus(one.waiting)) for one in keys]
    add_table(("held key", "by dead letter", "failed", "waiting"), rows, spare=("failed",))
    head = ("worker", "pid", "version", "busy", "threads", "seen", "order")
    cells_of = attrgetter("pid", "version", "busy", "concurrency", "last_seen_at")
    add_table(head, [(one.host or one.label, *cells_of(one), order_of(one)) for one in live], spare=("version",))
    for problem in found.problems:
        click.echo()
        click.echo(plain(problem.sentence))
        for cure in problem.cures:
            click.echo(plain(f"  to {cure.purpose}: {typed(cure.command)}"))
        for part in problem.parts:
            click.echo(plain(f"  {part.sentence}"))


def cells(one: QueueSettings) -> tuple[object, ...]:
    """Return the settings in the order of `HEAD`."""
    order = "turns" if one.fair else "oldest"
    return one.queue, one.paused_at, one.pause_reason, one.concurrency, _rate(one.rate), order


def per_key(one: QueueSettings | Statistics) -> str | None:
    """Return the limits per key in words; None if there are none."""
    at_once = None if one.concurrency_per_key is None else f"{grouped(one.concurrency_per_key)} at once"
    return ", ".join(filter(None, (at_once, _rate(one.rate_per_key)))) or None


def _rate(rate: tuple[int, timedelta] | None) -> str | None:
    return None if rate is None else rate_of(rate)


def counts(one: Statistics) -> dict[str, object]:
    """Return a queue's counts for JSON."""
    marks = (f"{name}_at_least" for name in _COUNTS if name != "running")
    names = (*_COUNTS, *marks, "oldest_due_at")
    return {**{name: getattr(one, name) for name in names}, "live_workers": one.live_workers}


def number(one: Statistics, name: str) -> object:
    """Return a count, with a + if there are more."""
    found = getattr(one, name)
    return f"{found}+" if getattr(one, f"{name}_at_least", False) else found


def with_plus(count: Count | int) -> str:
    """Return a count, with a + if there are more."""
    return str(count) if isinstance(count, int) else f"{count.number}{'+' if count.at_least else ''}"


@click.group(cls=Group)
def queue() -> None:
    """List, show, pause, limit, order or forget queues."""


def _print(_store: Store, outcome: Outcome) -> None:
    settings = outcome.record
    record = merged(settings, {"changed": bool(outcome.changes)})
    show((*HEAD, PER_KEY), [(*cells(settings), per_key(settings))], records=record)
    note_no_change(outcome)


for _command in (list_, show_):
    queue.add_command(_command)
add_verbs(queue, Noun.QUEUE, _print)
