"""`outboxq queue`: pauses, limits and orders queues."""

from __future__ import annotations

import re
from datetime import timedelta
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import click

from .console import span
from .database import database_options
from .groups import Group
from .output import show
from .queue_report import HEAD, PER_KEY, cells, list_, per_key, show_

if TYPE_CHECKING:
    from ..store import QueueSettings, Store

Rate = tuple[int, timedelta] | None | EllipsisType


def _rate(context: click.Context, parameter: click.Parameter, value: str | None) -> Rate:
    """Read a rate as a click callback: 100/1m is 100 starts a minute, none removes the limit."""
    if value is None or value == "none":
        return ... if value is None else None
    parts = re.fullmatch(r"(\d{1,9})/(.+)", value)
    time = span(context, parameter, parts[2]) if parts else None
    if parts is None or not time or int(parts[1]) < 1:
        raise click.BadParameter("write it as 100/1m or 5/1s, or none")
    return int(parts[1]), time


def _concurrency(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | EllipsisType | None:
    if value is None or value == "none":
        return ... if value is None else None
    if not re.fullmatch(r"\d{1,9}", value) or int(value) < 1:
        raise click.BadParameter("write a whole number of at least 1, or none")
    return int(value)


_create = click.option(
    "--create", is_flag=True, help="Set up a queue of which nothing is known yet, before its first task."
)


@click.group(cls=Group)
def queue() -> None:
    """List, show, pause, limit, order or forget queues."""


@queue.command()
@click.argument("name")
@_create
@database_options
def pause(store: Store, name: str, *, create: bool) -> None:
    """Start no task of a queue until it is resumed.

    Tasks that already run go on.
    """
    _print(store.queues.pause(name, create=create))


@queue.command()
@click.argument("name")
@database_options
def resume(store: Store, name: str) -> None:
    """Resume a paused queue."""
    _print(store.queues.resume(name))


@queue.command()
@click.argument("name")
@click.option(
    "--concurrency",
    callback=_concurrency,
    metavar="NUMBER",
    help="Maximum number of the queue's tasks that run at once, over all workers. `none` removes the limit.",
)
@click.option(
    "--rate",
    callback=_rate,
    metavar="NUMBER/SPAN",
    help="Maximum number of starts in a time span, e.g. 100/1m. `none` removes the limit.",
)
@click.option(
    "--per-key",
    "rate_per_key",
    callback=_rate,
    metavar="NUMBER/SPAN",
    help="Maximum number of starts of each key in a time span, e.g. 5/1m. `none` removes the limit.",
)
@click.option(
    "--concurrency-per-key",
    callback=_concurrency,
    metavar="NUMBER",
    help="Maximum number of tasks of each concurrency key that run at once. `none`: one.",
)
@_create
@database_options
def limit(store: Store, name: str, *, create: bool, **limits: Any) -> None:
    """Limit a queue, and each of its keys.

    An option that is left out keeps its value. Running tasks are not stopped.
    """
    if all(value is ... for value in limits.values()):
        raise click.UsageError(
            "give --concurrency, --rate, --per-key, --concurrency-per-key, or some of them; none removes a limit"
        )
    _print(store.queues.limit(name, create=create, **limits))


@queue.command()
@click.argument("name")
@click.argument("first", type=click.Choice(["turns", "oldest"]))
@_create
@database_options
def order(store: Store, name: str, first: str, *, create: bool) -> None:
    """Choose how the partition keys of a queue share it.

    turns: the keys take turns (the default). oldest: the task that has been due the longest starts first, whatever its key.
    """
    _print(store.queues.order(name, fair=first == "turns", create=create))


@queue.command()
@click.argument("name")
@database_options
def forget(store: Store, name: str) -> None:
    """Delete the settings of a queue without tasks, and print them.

    For a queue that was set up under a wrong name. While it has waiting or running tasks or dead letters, `resume` and `limit`
    change its settings.
    """
    _print(store.queues.forget(name))


def _print(settings: QueueSettings) -> None:
    show((*HEAD, PER_KEY), [(*cells(settings), per_key(settings))], records=settings)


for _command in (list_, show_):
    queue.add_command(_command)
