"""`outboxq relay`: list, run and change relays to brokers. This module also contains the tables of relays and receivers
that `outboxq status` and `outboxq workers show` print.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import ConfigurationError
from ..model.relays import Relay, count_of, is_counted, state_of, task_of
from ..model.wording import brief, plural
from ..model.workers import SourceState
from ..operating.verb import Noun
from ..operating.verbs import REMOVE_RELAY
from .changes import Exactly, add_verbs, changed, confirmation_options, confirmed, present_operator, with_fields
from .console import (
    EXIT_NOT_FOUND,
    EXIT_USAGE,
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
from .database import (
    APP,
    OUTBOX,
    Given,
    app_argument,
    app_option,
    database_options,
    database_options_after_ids,
    disposing,
    front_end,
    load,
    one_app,
    opens_app,
    present_outbox,
)
from .groups import Group
from .parameters import listen_options, span_option

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

RELAY_HEAD: Final = (
    "relay",
    "state",
    "waiting",
    "oldest",
    "refused",
    "redriven",
    "shards",
    "sent by",
    "topics",
    "last error",
)
RELAY_SPARE: Final = ("topics", "last error", "sent by", "shards", "oldest", "redriven")
"""The columns that are left out first on a narrow terminal."""

RECEIVER_HEAD: Final = ("received from", "state", "for", "workers", "tasks", "last error")
RECEIVER_SPARE: Final = ("tasks", "last error")


@click.group(cls=Group)
def relay() -> None:
    """List, show, run, pause, resume or remove relays to brokers."""


@relay.command("list")
@database_options
def list_(store: Store) -> None:
    """List the relays to brokers, with their backlogs and workers.

    A + after a count means that there are more.
    """
    show(RELAY_HEAD, relay_rows(store), records=store.relays.list(), spare=RELAY_SPARE)


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
    rows = [
        (
            shard.shard,
            0 if (backlog := backlogs.get(shard.shard)) is None else backlog.messages,
            None if backlog is None else brief(found.at - backlog.oldest_at),
            shard.worker or shard.worker_id,
        )
        for shard in one.shards
    ]
    table(("shard", "waiting", "oldest", "sent by"), rows)
    held = [(key.partition_key, key.waiting, key.event_id, key.dead_letter, key.error) for key in found.held_keys]
    head = ("held key", "waiting", "by the event", "its dead letter", "error")
    add_table(head, held, spare=("error", "by the event"))


def _redriven(relay: Relay) -> str:
    """Return the number of redriven events in words, with the command that lists them. A worker publishes these events
    as tasks; the relay's senders do not publish them.
    """
    look = front_end("relay show").typed(("task", "list", "-q", task_of(relay.name)))
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
        fail(
            f"there is no relay {name!r}, so nothing was removed; the relays to brokers are: {', '.join(every) or 'none'}",
            EXIT_NOT_FOUND,
        )
    count = Exactly(number=known.messages, at_least=not is_counted(known.messages))
    what = f"unpublished events of the relay {name!r}, and the relay itself"
    if not confirmed(count, what, yes=yes, dry_run=dry_run, done="deleted"):
        return
    outcome = REMOVE_RELAY.do(store, name, operator=present_operator(), reason=reason)
    tell(outcome.sentence, changed("deleted", outcome.record["messages"], count))


@relay.command(epilog=EPILOG)
@app_argument
@app_option
@click.option("--name", "names", multiple=True, metavar="NAME", help="Only this relay. May be repeated.")
@click.option("--burst", is_flag=True, help="Exit as soon as nothing is left to publish.")
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
    app = one_app(context, app_argument, app)
    if app is None and OUTBOX not in context.meta:
        fail(f"no application is named; name one as module:outbox, e.g. shop:outbox, or set {APP}", EXIT_USAGE)
    configure("INFO", LogFormat.TEXT)
    with process.as_worker(), speaking_plainly(None if app is None else Given(app=app).upgrade):
        outbox = present_outbox() if app is None else load(app)
        assert outbox is not None, "a framework's command line always has an application"
        try:
            runner = RelayRunner(outbox.store, outbox.tasks, names, **options)
        except ConfigurationError as error:
            fail(str(error), EXIT_USAGE)
        with disposing(outbox.store.bound_engine):
            sys.exit(runner.run())


add_verbs(relay, Noun.RELAY)


def relay_rows(store: Store) -> list[tuple[object, ...]]:
    """Return a row for each relay. A + after a count means that there are more."""
    now = store.now()
    rows: list[tuple[object, ...]] = []
    for one in store.relays.list():
        owners = dict.fromkeys(shard.worker or str(shard.worker_id) for shard in one.shards if shard.worker_id)
        rows.append(
            (
                one.name,
                state_of(one).value,
                count_of(one.messages),
                None if one.oldest_at is None else brief(now - one.oldest_at),
                count_of(one.dead_letters),
                count_of(one.redriven),
                len(one.shards),
                ", ".join(owners) or None,
                ", ".join(one.topics),
                one.last_error if one.failing_since else None,
            )
        )
    return rows


def receiver_rows(now: datetime, sources: Iterable[SourceState]) -> list[tuple[object, ...]]:
    """Return a row for each source, with the time since the source began to fail."""
    return [
        (
            one.source,
            one.state,
            None if one.failing_since is None else brief(max(now - one.failing_since, timedelta(0))),
            f"{one.failing} of {one.workers}" if one.failing else one.workers,
            ", ".join(one.tasks),
            one.last_error,
        )
        for one in sources
    ]
