"""`outboxq enqueue` and `outboxq emit`: enqueue a task or emit an event from the command line. Everything is checked
before anything is written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import InvalidCall
from ..model import OnConflict
from ..model.actions import CommandAction
from ..model.relays import RELAY_PREFIX, task_of
from ..model.wording import short
from ..operating.fields import REASON
from .changes import FEW, Exactly, changed, confirmation_options, confirmed
from .console import EXIT_NOT_FOUND, fail, merged, show, tell, wants_json
from .database import database_options, database_options_after_ids, present_outbox
from .groups import Group
from .parameters import (
    INSTANT,
    QUEUE,
    TASK_NAME,
    choice_option,
    flag,
    json_reader,
    number_option,
    option,
    repeated,
    span_option,
    stacked,
)
from .verbs import recorded, with_fields

if TYPE_CHECKING:
    from datetime import datetime

    from ..model import NewTask
    from ..outbox import Outbox
    from ..store import Store
    from ..task import Task


def _headers(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    """Parse headers written as name=text. This is a click callback."""
    found = [one.partition("=") for one in values]
    if not all(between for _, between, _ in found):
        raise click.BadParameter("write it as name=text")
    return {name: text for name, _, text in found} or None


_options_of_both = stacked(
    span_option("--delay", help="Time span from now until the task is due, e.g. 10m."),
    option("--at", "run_after", type=INSTANT, help="Time at which the task is due, e.g. 2026-11-23T02:30Z."),
    span_option("--expires", help="Time span from now after which the task must not start."),
    option("--key", "partition_key", help="Partition key. Tasks with the same key run one at a time, in order."),
    option(
        "--concurrency-key",
        help="Concurrency key. The queue's limit per key applies to the running tasks with this key.",
    ),
    option("--idempotency-key", help="Idempotency key. Requests with the same key create only one task."),
    repeated("--header", "headers", callback=_headers, metavar="NAME=TEXT", help="Header. May be repeated."),
    flag("--dry-run", help="Check everything and print what would happen, but write nothing."),
)


_AS_JSON: Final = """write arguments as JSON: --args '{"order": 7}'"""


class OfTask(click.Command):
    """A command whose argument TASK, written module:function, also names the application."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Use TASK as APP if no application is given."""
        try:
            rest = super().parse_args(ctx, args)
        except click.UsageError as error:
            if type(error) is not click.UsageError or not ctx.params.get("place"):
                raise
            raise click.UsageError(f"{error.message}; {_AS_JSON}", ctx=ctx) from None
        place = str(ctx.params.get("place"))
        if set("={[") & set(ctx.params.get("app_argument") or ""):
            fail(f"the word after TASK names the application; {_AS_JSON}")
        if ":" in place and "app_argument" in ctx.params and not (ctx.params["app_argument"] or ctx.params["app"]):
            ctx.params["app_argument"] = place
        return rest


@click.command(cls=OfTask)
@click.argument("place", metavar="TASK", type=TASK_NAME)
@option(
    "--args",
    "arguments",
    default="{}",
    callback=json_reader("an object", '{"order": 7}', dict),
    metavar="JSON",
    help="Arguments for the task, as a JSON object; - reads standard input.",
)
@option("-q", "--queue", type=QUEUE, help="Queue for the task. Default: as declared.")
@number_option(
    "--priority", help="Priority; tasks with a higher priority run first. Default: as declared.", least=-100, most=100
)
@number_option("--max-attempts", help="Maximum number of attempts. Default: the retry policy decides.")
@span_option("--unique-for", help="How long the idempotency key stays taken. Default: until the task is pruned.")
@flag("--unique-until-finished", help="Free the idempotency key when the task ends.")
@choice_option(
    "--on-conflict",
    kind=OnConflict,
    default=OnConflict.RETURN,
    help="How to handle an idempotency key that is already taken.",
)
@_options_of_both
@database_options
def enqueue(store: Store, *, place: str, arguments: dict[str, Any], dry_run: bool, **options: Any) -> None:
    """Enqueue a task, and print its id.

    Write TASK as module:function, e.g. shop.tasks:send_receipt, or as the name of a task of APP. The arguments are
    checked against the function before anything is written.
    """
    outbox = present_outbox()
    if outbox is None:
        fail("no application is given; write TASK as module:function, or give APP: --app shop:outbox")
    known = _task(outbox, place)
    try:
        known.parameters.check_call((), arguments)
    except InvalidCall as error:
        example = ", ".join(f'"{name}": …' for name in known.parameters.required)
        raise InvalidCall(f"{error}; write the arguments as one JSON object: --args '{{{example}}}'") from None
    values = known.parameters.load(json.dumps(arguments), is_new=True)
    bound = known.using(known.outbox, **options)
    if not dry_run:
        handle = bound.enqueue(**values)
        has_task = handle.id.int != 0  # False with --on-conflict skip
        if has_task or wants_json():
            found = {"id": handle.id if has_task else None, "task_name": known.name, "dry_run": False}
            tell(str(handle.id), merged(handle, found))
        if not (handle.created or handle.replaced or wants_json()):
            owner = "this" if has_task else "another"
            click.echo(f"{owner} task already has the idempotency key; nothing was enqueued", err=True)
        return
    _foresee(store, bound.planned(**values), at=options["run_after"], delay=options["delay"])


def _foresee(store: Store, planned: NewTask, *, at: datetime | None, delay: timedelta | None) -> None:
    """Print what would happen if the task were enqueued now. Raises DuplicateTask."""
    from ..store.producing.enqueue import foresee

    handle = foresee(store, planned)
    due = f"at {short(at or store.now() + (delay or timedelta(0)))} UTC" if at or delay else "now"
    place = f"in the queue {planned.queue!r}, due {due}, with {planned.args}"
    owner = f"task {handle.id}" if handle.id.int else "another task"
    if handle.created:
        sentence = f"{planned.task_name} would be enqueued {place}"
    elif handle.replaced:
        sentence = f"{owner}, which has the idempotency key, would be replaced by {planned.task_name} {place}"
    else:
        sentence = f"nothing would be enqueued: {owner} already has the idempotency key"
    known = None if handle.created or not handle.id.int else handle.id
    shown = ("task_name", "queue", "priority", "partition_key", "concurrency_key", "idempotency_key", "args")
    fields = {name: getattr(planned, name) for name in shown}
    tell(sentence, {"id": known, "created": False, "replaced": False, "dry_run": True, **fields})


def _task(outbox: Outbox, place: str) -> Task[..., Any]:
    from ..task import Task

    if ":" not in place:
        return outbox.task_of(place)
    try:
        found = resolve_name(place)
    except (ImportError, AttributeError):
        found = None
    if not isinstance(found, Task):
        fail(f"{place} is not a task; write TASK as module:function, or as the name of a task of APP")
    if found.outbox is not outbox:
        fail(f"{place} does not belong to the outbox of APP; leave APP out")
    return found


@click.command()
@click.argument("topic")
@option(
    "--payload",
    callback=json_reader("a value", '{"order": 7}'),
    metavar="JSON",
    help="Event payload as JSON; - reads standard input. Default: null.",
)
@_options_of_both
@database_options
def emit(store: Store, *, topic: str, payload: object, dry_run: bool, **options: Any) -> None:
    """Emit an event to the tasks that subscribe to its topic.

    The command prints the enqueued tasks, and the relays that publish the event to brokers. If no task or relay
    subscribes to the topic, event_unrouted is recorded. With --dry-run, the command prints the tasks and relays that
    subscribe to the topic.
    """
    from ..outbox import Outbox

    outbox = present_outbox() or Outbox(store.bound_engine, schema=store.schema)
    if dry_run:
        _plan(store, topic, payload, **options)
        return
    emitted = outbox.emit(topic, payload, using=outbox, **options)
    rows: list[tuple[object, ...]] = [
        (name, one.id, "enqueued" if one.created else "already existed") for name, one in emitted.handles.items()
    ]
    rows += [(task_of(name), None, "written for the relay") for name in emitted.relays]
    if not rows and not wants_json():
        unrouted = "no task or relay subscribes to this topic"
        is_keyed = options["idempotency_key"] is not None
        had_it = f"{unrouted}, or every relay that subscribes to it has already received an event with this idempotency key; the event was not delivered"
        click.echo(had_it if is_keyed else f"{unrouted}; event_unrouted was recorded", err=True)
    show(("task", "id", "result"), rows, records={**merged(emitted), "dry_run": False})


def _plan(store: Store, topic: str, payload: object, **options: Any) -> None:
    from ..model.options import headers_as_json, times
    from ..model.subscriptions import NewEvent
    from ..model.uuid7 import family
    from ..payload.parameters import dump_payload
    from ..store.claims.workers import takes
    from ..store.producing.fanout import check_event

    what = f"event {topic!r}"
    moments = {name: options[name] for name in ("delay", "run_after", "expires")}
    event = NewEvent(
        id=family(),
        topic=topic,
        payload=dump_payload(payload, name=what),
        **{name: options[name] for name in ("partition_key", "concurrency_key", "idempotency_key")},
        headers=None if options["headers"] is None else headers_as_json(options["headers"], what),
        **times(what, **moments),
    )
    check_event(event)
    matching = [one for one in store.subscriptions.list() if takes((one.topic,), topic)]
    subscribers = {one.task_name: (one.task_name, one.queue, one.topic) for one in reversed(matching)}
    if not subscribers and not wants_json():
        click.echo("no task or relay subscribes to this topic; event_unrouted would be recorded", err=True)
    relays = {one.task_name for one in matching if one.parameter is None}
    record = {
        "pipeline_execution_id": None,
        "handles": dict.fromkeys(sorted(subscribers.keys() - relays)),
        "relays": sorted(name.removeprefix(RELAY_PREFIX) for name in relays),
        "dry_run": True,
    }
    show(("task", "queue", "subscribes to"), sorted(subscribers.values()), records=record)


@click.group(cls=Group)
def subscription() -> None:
    """List or remove tasks' subscriptions to topics."""


@subscription.command("list")
@option("--topic", help="Only subscriptions that match this topic.")
@option("--task", help="Only subscriptions of this task.")
@database_options
def list_(store: Store, topic: str | None, task: str | None) -> None:
    """List the subscriptions, by topic and task.

    A task that subscribes to a topic, or to a matching pattern, is enqueued for each event with the topic.
    """
    from ..store.claims.workers import takes

    every = store.subscriptions.list()
    found = [one for one in every if task in (None, one.task_name) and (topic is None or takes((one.topic,), topic))]
    head = ("topic", "task", "parameter", "queue", "priority", "attempts")
    rows = [(one.topic, one.task_name, one.parameter, one.queue, one.priority, one.max_attempts) for one in found]
    show(head, rows, records=found, spare=("attempts", "priority", "parameter"))


@subscription.command()
@click.argument("names", nargs=-1, required=True, metavar="TASK…", type=TASK_NAME)
@with_fields(REASON)
@confirmation_options
@database_options_after_ids
def remove(store: Store, names: Sequence[str], *, reason: str, yes: bool, dry_run: bool) -> None:
    """Remove all subscriptions of tasks whose code is gone.

    Tasks that were enqueued for earlier events remain. If a worker's code still declares one of
    these subscriptions, the subscription is stored again when the worker starts.
    """
    wanted = dict.fromkeys(names)
    found = [one for one in store.subscriptions.list() if one.task_name in wanted]
    if missing := [name for name in wanted if name not in {one.task_name for one in found}]:
        fail(f"no subscription of {', '.join(map(repr, missing))} is stored; nothing was removed", EXIT_NOT_FOUND)
    count = Exactly(number=len(found))
    what = f"subscriptions of {', '.join(map(repr, wanted))}"
    first = [f"{one.task_name}  {one.topic}" for one in found[:FEW]]
    if not confirmed(count, what, yes=yes, dry_run=dry_run, done="removed", first=lambda: first):
        return
    target = names[0] if len(wanted) == 1 else None
    action, details = CommandAction.SUBSCRIPTION_REMOVE, {"tasks": [*wanted]} if target is None else {}
    change = partial(store.subscriptions.replace, [], tasks=wanted)
    recorded(store, action, target, change, details=details, reason=reason, number=lambda _: len(found))
    tell(f"{len(found)} removed", changed("removed", len(found), count))
