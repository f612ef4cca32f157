"""`outboxq relay`: list, run and change relays to brokers. This module also contains the tables of relays and receivers
that `outboxq status` and `outboxq workers show` print.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import ConfigurationError
from ..model.relays import Relay, count_of, is_counted, state_of, task_of
from ..model.wording import brief, plural
from ..model.workers import SourceState
from ..operating.verb import Noun
from ..operating.verbs import REMOVE_RELAY
from . import database
from .changes import Exactly, changed, confirmation_options, confirmed
from .console import (
    EXIT_NOT_FOUND,
    Lines,
    add_table,
    card,
    fail,
    in_utc,
    merged,
    show,
    speaking_plainly,
    table,
    tell,
    wants_json,
    write_json,
)
from .database import app_argument, app_option, database_options, database_options_after_ids, opens_app
from .groups import Group
from .parameters import flag, listen_options, repeated, span_option
from .verbs import add_verbs, present_operator, with_fields

if TYPE_CHECKING:
    from ..store import Store

EPILOG = """\b
Exit codes:
   0  the process stopped cleanly
   1  a batch was unfinished, a thread died, or a broker failed during a burst
   2  wrong usage: an invalid option or APP, or APP has no relays to brokers
   3  there is no relay with this name
   4  the file or the tables are missing, or are from an incompatible release
  69  the database cannot be reached, or its file is damaged
  77  the database role lacks a privilege
"""


@click.group(cls=Group)
def relay() -> None:
    """List, show, run, pause, resume or remove relays to brokers."""


@relay.command("list")
@database_options
def list_(store: Store) -> None:
    """List the relays to brokers, with their backlogs and workers.

    A + after a count means that there are more.
    """
    show(*relay_lines(store), records=store.relays.list())


@relay.command("show")
@click.argument("name")
@database_options_after_ids
def show_(store: Store, name: str) -> None:
    """Show a relay with its shards and held keys.

    The command prints the relay's state, its backlog by shard, and the partition keys held by refused events. The
    events of a held key wait until the dead letter is redriven or discarded.
    """
    found = store.relays.show(name)
    one = found.relay
    if wants_json():
        write_json(merged(one, {"state": state_of(one), "backlogs": found.backlogs, "held_keys": found.held_keys}))
        return
    refused = f"{count_of(one.dead_letters)} {plural(one.dead_letters, 'dead letter')}"
    lines: dict[str, object] = {
        "state": state_of(one),
        "paused since": in_utc(one.paused_at),
        "reason": one.pause_reason,
        "failing since": in_utc(one.failing_since),
        "next attempt": in_utc(one.next_try_at),
        "last error": one.last_error,
        "topics": ", ".join(one.topics),
        "waiting": f"{count_of(one.messages)} {plural(one.messages, 'event')}",
        "refused": refused if one.dead_letters else None,
        "redriven": _redriven(one) if one.redriven else None,
    }
    card(("relay", name), lines.items())
    click.echo()
    backlogs = {backlog.shard: backlog for backlog in found.backlogs}
    rows: list[tuple[object, ...]] = []
    for shard in one.shards:
        backlog, worker = backlogs.get(shard.shard), shard.worker or shard.worker_id
        waits = (0, None) if backlog is None else (backlog.messages, brief(found.at - backlog.oldest_at))
        rows.append((shard.shard, *waits, worker))
    table(("shard", "waiting", "oldest", "sent by"), rows)
    held = [(key.partition_key, key.waiting, key.event_id, key.dead_letter, key.error) for key in found.held_keys]
    head = ("held key", "waiting", "by the event", "its dead letter", "error")
    add_table(head, held, spare=("error", "by the event"))


def _redriven(relay: Relay) -> str:
    """Return the number of redriven events in words, with the command that lists them. A worker publishes these events
    as tasks; the relay's senders do not publish them.
    """
    look = database.front_end("relay show").typed(("task", "list", "-q", task_of(relay.name)))
    return f"{count_of(relay.redriven)} {plural(relay.redriven, 'event')}, which a worker will publish: {look}"


@relay.command()
@click.argument("name")
@with_fields(*REMOVE_RELAY.fields)
@confirmation_options
@database_options_after_ids
def remove(store: Store, name: str, *, yes: bool, dry_run: bool, reason: str) -> None:
    """Delete a relay to a broker, with its unpublished events.

    Its dead letters remain. A relay that APP declares is stored again by the next worker that starts.
    """
    every = {one.name: one for one in store.relays.list()}
    if (known := every.get(name)) is None:
        names = ", ".join(every) or "none"
        fail(f"there is no relay {name!r}, so nothing was removed; the relays to brokers are: {names}", EXIT_NOT_FOUND)
    count = Exactly(number=known.messages, at_least=not is_counted(known.messages))
    what = f"unpublished events of the relay {name!r}, and the relay itself"
    if not confirmed(count, what, yes=yes, dry_run=dry_run, done="deleted"):
        return
    outcome = REMOVE_RELAY.do(store, name, operator=present_operator(), reason=reason)
    tell(outcome.sentence, changed("deleted", outcome.record["messages"], count))


@relay.command(epilog=EPILOG)
@app_argument
@app_option
@repeated("--name", "names", metavar="NAME", help="Only this relay. May be repeated.")
@flag("--burst", help="Exit as soon as nothing is left to publish.")
@listen_options
@span_option("--drain-timeout", help="Time allowed for a batch to finish when the process stops.", default="25s")
@click.pass_context
@opens_app
def run(
    context: click.Context,
    /,
    *,
    app: str | None = None,
    app_argument: str | None = None,
    names: Sequence[str],
    **options: Any,
) -> None:
    """Publish relay events until SIGTERM, SIGINT or SIGHUP.

    `outboxq worker` does the same unless it was started with --no-relay. Processes share the shards of a relay. With
    --burst, the last log lines say how many of each relay's events were published, and how many are left and why.
    """
    from ..context import process
    from ..worker.relays import RelayRunner
    from .serving.logs import LogFormat, configure
    from .serving.starting import open_closed_streams

    open_closed_streams()
    app = database.one_app(context, app_argument, app)
    if app is None and database.OUTBOX not in context.meta:
        fail(f"no application is named; name one as module:outbox, e.g. shop:outbox, or set {database.APP}")
    configure("INFO", LogFormat.TEXT)
    with process.as_worker(), speaking_plainly(None if app is None else database.Given(app=app).upgrade):
        outbox = database.present_outbox() if app is None else database.load(app)
        assert outbox is not None, "a framework's command line always has an application"
        try:
            runner = RelayRunner(outbox.store, outbox.tasks, names, **options)
        except ConfigurationError as error:
            fail(str(error))
        with database.disposing(outbox.store.bound_engine):
            sys.exit(runner.run())


add_verbs(relay, Noun.RELAY)


def _senders(relay: Relay) -> dict[str, None]:
    return dict.fromkeys(shard.worker or str(shard.worker_id) for shard in relay.shards if shard.worker_id)


_COLUMNS: Final[Mapping[str, Callable[[Relay, datetime], object]]] = {
    "relay": lambda one, _: one.name,
    "state": lambda one, _: state_of(one).value,
    "waiting": lambda one, _: count_of(one.messages),
    "oldest": lambda one, now: None if one.oldest_at is None else brief(now - one.oldest_at),
    "refused": lambda one, _: count_of(one.dead_letters),
    "redriven": lambda one, _: count_of(one.redriven),
    "shards": lambda one, _: len(one.shards),
    "sent by": lambda one, _: ", ".join(_senders(one)) or None,
    "topics": lambda one, _: ", ".join(one.topics),
    "last error": lambda one, _: one.last_error if one.failing_since else None,
}
"""The columns of the table of relays. Each function takes a relay and the current time."""


def relay_lines(store: Store) -> Lines:
    """Return the table of relays. A + after a count means that there are more."""
    now = store.now()
    rows = [[cell(one, now) for cell in _COLUMNS.values()] for one in store.relays.list()]
    return Lines([*_COLUMNS], rows, ("topics", "last error", "sent by", "shards", "oldest", "redriven"))


def receiver_lines(now: datetime, sources: Iterable[SourceState]) -> Lines:
    """Return the table of sources, with the time since each source began to fail."""
    head = ("received from", "state", "for", "workers", "tasks", "last error")
    rows = []
    for one in sources:
        since = None if one.failing_since is None else brief(max(now - one.failing_since, timedelta(0)))
        workers = f"{one.failing} of {one.workers}" if one.failing else one.workers
        rows.append((one.source, one.state, since, workers, ", ".join(one.tasks), one.last_error))
    return Lines(head, rows, ("tasks", "last error"))
