"""`outboxq task`, `outboxq failed` and `outboxq batch`: inspect tasks, dead letters and batches, and change them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import click

from ..errors import InvalidTransition
from ..model import TERMINAL, TaskExecution, TaskStatus, Waiting
from ..model.batches import UNCLOSED, BatchKind, BatchStatus
from ..model.display import as_json
from ..model.wording import brief, grouped, plain, plural
from ..operating.reading import STATES, read_argument, read_state, state_of
from ..operating.verb import Noun, Verb
from ..operating.verbs import CANCEL, CANCEL_BATCH, DISCARD, REDRIVE, RUN_NOW
from .bulk import Chosen, change_all, choosing, ensure_known, oldest
from .changes import Exactly, changed, confirmation_options, confirmed, progress
from .console import add_table, card, in_utc, merged, show, tell, wants_json, write_json
from .database import database_options, database_options_after_ids, front_end, with_cures
from .groups import Group
from .log import PAYLOAD
from .parameters import OF_DEAD_LETTERS, OF_TASKS, TASK_ID, Read, filtered, flag, number_option, option
from .task_report import history, report, rerun, state_at, steps
from .verbs import add_verbs, carry_out, present_operator, with_fields

if TYPE_CHECKING:
    from ..model.batches import Batch
    from ..store import DeadLetter, Store, TaskPage


SORTS: Final = {"duration": "ran", "wait": "waited"}
"""The sort orders of `task list`, and the names of their columns."""
_LATER: Final = {state.value: state for state in (Waiting.DELAYED, Waiting.RETRYING)}


@click.group(cls=Group)
def task() -> None:
    """Inspect tasks, or change one."""


@task.command("list")
@option("--status", type=click.Choice(list(STATES), case_sensitive=False), help="Only tasks in this state.")
@option("--worker", type=click.UUID, help="Only tasks that were last claimed by this worker.")
@option("--batch", type=click.UUID, help="Only tasks in this batch or chain, including the tasks that follow it.")
@option("--exception", help="Only tasks whose last error is this exception, as module.Class or Class.")
@option("--idempotency-key", help="Only the task that holds this idempotency key. Needs --task.")
@option(
    "--argument",
    type=Read("name=value", read_argument),
    help="Only tasks with this argument, at any depth, e.g. order_id=17. Needs --queue.",
)
@option("--sort", type=click.Choice(list(SORTS)), help="Print the slowest tasks first, by how long they ran or waited.")
@option("--before", type=TASK_ID, help="Only tasks older than the task with this id (the next page).")
@option("--after", type=TASK_ID, help="Only tasks newer than the task with this id (the previous page).")
@number_option("--limit", help="Maximum number of tasks.", most=10_000, default=50)
@database_options
@filtered(*OF_TASKS)
def list_(
    store: Store,
    *,
    wanted: dict[str, Any],
    status: str | None,
    sort: str | None,
    before: str | None,
    after: str | None,
    limit: int,
    **options: Any,
) -> None:
    """List tasks, newest first, and say why each one is waiting.

    A Ready task is due, delayed, or retrying (its last attempt failed, and the next attempt is due later). With
    --status running, --status failed or --batch, all matching tasks are found. Otherwise, the command reads at most
    10,000 tasks, or 1,000 with --argument. If there may be more, it prints the command for the next page to stderr.
    With --sort, it reads the newest tasks that have started, up to the same limit. It sorts these tasks either by how
    long their last attempt ran (duration) or by the time from enqueueing to the first start (wait). The exit code is 3
    if --queue or --task names an unknown queue or task.
    """
    chosen, waiting = (None, None) if status is None else read_state(status)
    names = ("worker", "batch", "exception", "idempotency_key", "argument")
    given = {"status": chosen, "waiting": waiting, **{name: options[name] for name in names}}
    wanted |= {name: value for name, value in given.items() if value is not None}
    place = {name: store.find(one) for name, one in (("before", before), ("after", after)) if one is not None}
    if sort is not None:
        if place:
            raise click.UsageError("--sort shows the slowest tasks on one page; leave out --before and --after")
        _list_slowest(store, sort, limit, wanted)
        return
    page, found = _listed(store, wanted, place, limit)
    if "batch" in wanted and not found:
        store.batches.get(wanted["batch"])  # raises BatchNotFound: an empty list would look as if the batch existed
    ahead, now = store.outlooks(found), store.now()
    rows, states = [], {}
    for one in found:
        outlook = ahead.get(one.id)
        due, reason = (None, None) if outlook is None else (outlook.due_at, outlook.reason.words)
        states[one.id] = state_of(one, due, now)
        identity = (one.id, one.task_name, one.queue, states[one.id], reason, one.attempt)
        rows.append((*identity, one.created_at, due, one.last_error))
    head = ("id", "task", "queue", "state", "reason", "attempt", "created", "due", "last error")
    waits = {one: {"reason": outlook.reason, "due_at": outlook.due_at} for one, outlook in ahead.items()}
    none = {"reason": None, "due_at": None}
    records = [merged(one, {"state": states[one.id], **waits.get(one.id, none)}, without=PAYLOAD) for one in found]
    show(head, rows, records=records, spare=("created", "attempt", "due", "queue", "last error"))
    _point_onward(page, {**wanted, "limit": limit}, upward=place.keys() == {"after"})
    if not found:
        ensure_known(store, wanted)  # after the empty table or list, so that JSON stays readable


def _list_slowest(store: Store, sort: str, limit: int, wanted: Mapping[str, Any]) -> None:
    from ..store import Slow

    found = store.slowest(by=Slow(sort), limit=limit, **wanted)
    column, rows, records = SORTS[sort], [], []
    for one in found.tasks:
        time = found.times[one.id]
        identity = (one.id, one.task_name, one.queue, one.status.lower())
        rows.append((*identity, brief(time), one.created_at, one.last_error))
        records.append(merged(one, {column: time}, without=PAYLOAD))
    head = ("id", "task", "queue", "state", column, "created", "last error")
    show(head, rows, records=records, spare=("created", "queue", "last error"))
    if found.is_cut:
        click.echo(f"only the newest {grouped(found.looked_at)} tasks were compared", err=True)
    if not found.tasks:
        ensure_known(store, wanted)


def _listed(
    store: Store, wanted: Mapping[str, Any], place: Mapping[str, Any], limit: int
) -> tuple[TaskPage, list[TaskExecution]]:
    """Return the page and its tasks. All running and failed tasks are read, because there are few of them."""
    page = store.task_page(limit=limit, **wanted, **place)
    found, upward = page.tasks, place.keys() == {"after"}
    whole = wanted.get("status") in {TaskStatus.RUNNING, TaskStatus.FAILED}
    while whole and page.is_cut and len(found) < limit:
        further: dict[str, Any] = {"after": page.newer} if upward else {**place, "before": page.older}
        page = store.task_page(limit=limit - len(found), **wanted, **further)
        found = page.tasks + found if upward else found + page.tasks
    return page, found


def _point_onward(page: TaskPage, wanted: Mapping[str, Any], *, upward: bool) -> None:
    """Print the command for the next page to stderr and, if the limit was reached, the number of tasks that were read."""
    following, option = (page.newer, "--after") if upward else (page.older, "--before")
    if following is None:
        return
    read = f"only {grouped(page.looked_at)} {plural(page.looked_at, 'task was', 'tasks were')} read; "
    if (waiting := wanted.get("waiting")) is not None:  # the words for `--status` include this state
        wanted = {**{name: value for name, value in wanted.items() if name != "waiting"}, "status": waiting}
    if (argument := wanted.get("argument")) is not None:
        wanted = {**wanted, "argument": f"{argument[0]}={json.dumps(argument[1], ensure_ascii=False)}"}
    given = {**wanted, option[2:]: following}
    options = [f"--{name.replace('_', '-')}={as_json(value)}" for name, value in given.items()]
    command = front_end("task list").typed(("task", "list", *options))
    click.echo(plain(f"{read if page.is_cut else ''}{'newer' if upward else 'older'} tasks: {command}"), err=True)


@task.command("show")
@click.argument("task_id", type=TASK_ID)
@flag("--show-args", help="Also print the task's arguments and its result.")
@flag("--traceback", help="Print the traceback of each failed attempt.")
@flag("--handler-log", help="Print all stored handler log lines for every attempt.")
@database_options
def show_(store: Store, task_id: str, *, show_args: bool, traceback: bool, handler_log: bool) -> None:
    """Print a task, its attempts, and its history.

    The attempts are followed by the handler's 10 newest log lines, from the last attempt that logged anything.
    """
    report(store, store.find(task_id), show_args=show_args, traceback=traceback, handler_log=handler_log)


@task.command()
@click.argument("task_id", type=TASK_ID)
@database_options
def explain(store: Store, task_id: str) -> None:
    """Explain why a task is not running, and suggest commands.

    If the id belongs to an event, the command explains why the relays have not published the event.
    """
    found = store.find(task_id)
    explanation = store.explain(found)
    record = with_cures(explanation, "task explain")
    lines = [explanation.sentence, *(f"  to {one['purpose']}: {one['command']}" for one in record["cures"])]
    tell("\n".join(map(plain, lines)), {"id": found, **record})


@task.command()
@click.argument("task_id", required=False, type=TASK_ID)
@choosing(
    CANCEL,
    OF_TASKS,
    option("--status", type=click.Choice(["ready", "running"]), help="Only waiting tasks, or only running tasks."),
    everything="Cancel every waiting and running task.",
    most="Maximum number of tasks, oldest first.",
    database=database_options,
)
def cancel(store: Store, *, task_id: str | None, status: str | None, force: bool, chosen: Chosen) -> None:
    """Cancel a task, or all matching tasks. A running task is asked to stop.

    Give the id of a task, or filters, or --all. A running task stays Running until its handler stops, unless you use
    --force.
    """
    if status is not None:
        chosen.wanted["status"] = read_state(status)[0]
    chosen.check((task_id,) if task_id else (), noun="a task")
    if task_id is None:
        states = (TaskStatus.RUNNING, TaskStatus.READY)
        change_all(
            store,
            CANCEL,
            chosen,
            act=partial(store.cancel_all, force=force),
            count=partial(store.count_tasks, force=force),
            first=partial(oldest, store, chosen.wanted, name="status", states=states),
            noun="waiting and running tasks",
            happened="enqueued",
            done="cancelled",
            sentence="cancelled or asked to stop",
            others="ended or been changed in the meantime",
        )
        return
    found = store.find(task_id)
    if chosen.dry_run:
        known = store.get(found)
        if known.status in TERMINAL:
            raise InvalidTransition(f"task {found} is {known.status} and cannot be cancelled")
        would = "be asked to stop" if known.status is TaskStatus.RUNNING and not force else "be cancelled"
        tell(f"{found}, {known.task_name}, is {known.status} and would {would}", {"id": found, "status": known.status})
        return
    carry_out(store, CANCEL, found, reason=chosen.reason, force=force)


@task.command("run-now")
@click.argument("task_id", required=False, type=TASK_ID)
@choosing(
    RUN_NOW,
    OF_TASKS,
    option("--status", type=click.Choice(list(_LATER)), help="Only delayed tasks, or only retrying tasks."),
    everything="Run every delayed and retrying task.",
    most="Maximum number of tasks, oldest first.",
    database=database_options,
)
def run_now(store: Store, *, task_id: str | None, status: str | None, chosen: Chosen) -> None:
    """Make a delayed or retrying task, or all matching tasks, due now.

    Give the id of a task, or filters, or --all. Pauses, limits and partition keys still apply.
    """
    if status is not None:
        chosen.wanted["waiting"] = _LATER[status]
    chosen.check((task_id,) if task_id else (), noun="a task")
    if task_id is None:
        first = partial(oldest, store, chosen.wanted, name="waiting", states=_LATER.values(), status=TaskStatus.READY)
        change_all(
            store,
            RUN_NOW,
            chosen,
            act=store.run_all_now,
            count=store.count_later,
            first=first,
            noun="delayed and retrying tasks",
            happened="enqueued",
            done="made due",
            others="become due or ended in the meantime",
        )
        return
    found = store.find(task_id)
    if chosen.dry_run:
        if (now := store.get(found).status) is not TaskStatus.READY:
            raise InvalidTransition(f"task {found} is {now} and cannot be rescheduled")
        would = store.explain(found)
        tell(f"{found} would be due now: {would.sentence}", {"id": found, "reason": would.reason})
        return
    carry_out(store, RUN_NOW, found, reason=chosen.reason)


for _command in (history, state_at, steps, rerun):
    task.add_command(_command)
add_verbs(task, Noun.TASK)


_NOT_DISCARDED = "been redriven or discarded in the meantime"
_NOT_REDRIVEN = f"{_NOT_DISCARDED}, or lost the idempotency key to another task"


@click.group(cls=Group)
def failed() -> None:
    """List, redrive or discard dead letters.

    A dead letter is a task that has failed permanently and will not be retried.
    """


@failed.command("list")
@number_option("--limit", help="Maximum number of dead letters.", most=10_000, default=50)
@database_options
@filtered(*OF_DEAD_LETTERS)
def list_failed(store: Store, limit: int, wanted: dict[str, Any]) -> None:
    """List dead letters, newest first.

    The last column marks each dead letter that holds its partition key. Later tasks with that key wait until the
    dead letter is redriven or discarded.
    """
    head = ("failed", "id", "task", "queue", "key", "attempt", "error", "holds its key")
    found = store.dead_letters.list(limit=limit, **wanted)
    rows = []
    for one in found:
        identity = (one.failed_at, one.id, one.task_name, one.queue, one.partition_key)
        rows.append((*identity, one.attempt, one.last_error, "yes" if one.holds_key else ""))
    show(head, rows, records=found, spare=("attempt", "queue", "key", "holds its key", "failed", "error", "task"))
    if not found:
        ensure_known(store, wanted)


@failed.command()
@number_option("--limit", help="Maximum number of groups.", most=1000, default=20)
@database_options
@filtered(*OF_DEAD_LETTERS)
def summary(store: Store, limit: int, wanted: dict[str, Any]) -> None:
    """Group dead letters by task, exception and message.

    The largest group comes first. Only the newest 10,000 dead letters are grouped. To use a group in `list`, `redrive`
    or `discard`, pass its id with --group.
    """
    found = store.dead_letters.groups(limit=limit, **wanted)
    head = ("count", "task", "exception", "message", "first", "last", "newest id", "group", "versions")
    names = ("count", "task_name", "exception", "message", "first_failed_at", "last_failed_at", "newest", "id", "blame")
    rows = [attrgetter(*names)(one) for one in found.groups]
    spare = ("first", "exception", "newest id", "versions", "last", "task")
    show(head, rows, records=found, spare=spare, whole=("group",))
    if not found.groups:
        ensure_known(store, wanted)
    if not found.is_complete:
        shown = f"the largest {len(found.groups)} {plural(len(found.groups), 'group is', 'groups are')} shown"
        click.echo(
            f"there are more: only the newest {grouped(found.looked_at)} dead letters were read, and {shown}", err=True
        )


def _add_bulk_command(verb: Verb, sentence: str, done: str, others: str) -> None:
    """Add the command that applies a verb to one or more dead letters."""
    more = "Give task ids, or filters, or --all. A single id needs no confirmation."

    @failed.command(verb.name, help=f"{sentence}\n\n{more}")
    @click.argument("task_ids", nargs=-1, type=TASK_ID)
    @choosing(
        verb,
        OF_DEAD_LETTERS,
        everything="Select all dead letters. Required if neither ids nor filters are given.",
        most="Maximum number of dead letters, oldest first.",
        database=database_options_after_ids,
    )
    def act(store: Store, *, task_ids: tuple[str, ...], chosen: Chosen, **values: Any) -> None:
        chosen.check(task_ids)
        if task_ids:
            act = partial(verb.do, store, operator=present_operator(), reason=chosen.reason, **values)
            _each(store, task_ids, act, done, chosen)
            return
        if values.get("take_key_back"):
            raise click.UsageError("--take-key-back works only with task ids, so that a person checks each task first")

        change_all(
            store,
            verb,
            chosen,
            act=getattr(store.dead_letters, f"{verb.key}_all"),
            count=store.dead_letters.count,
            first=lambda number: [_line(one) for one in store.dead_letters.oldest(limit=number, **chosen.wanted)],
            noun="dead letters",
            happened="that failed",
            done=done,
            others=others,
        )


_add_bulk_command(REDRIVE, "Run dead letters again, from their first attempt.", "redriven", _NOT_REDRIVEN)
_add_bulk_command(DISCARD, "Discard dead letters. Their status becomes Cancelled.", "discarded", _NOT_DISCARDED)


def _each(store: Store, given: tuple[str, ...], act: Callable[[UUID], object], done: str, chosen: Chosen) -> None:
    """Act on these dead letters. Ask for confirmation first if there are several ids."""
    ids = list(dict.fromkeys(store.find(one) for one in given))
    count = Exactly(number=len(ids))
    yes, dry_run = chosen.yes or len(ids) == 1, chosen.dry_run
    found = [store.get(one) for one in ids] if dry_run or len(ids) > 1 else []
    for one in found:
        if one.status is not TaskStatus.FAILED:  # checked before any task is changed
            raise InvalidTransition(f"task {one.id} is {one.status} and cannot be {done}")
    first = [_line(one) for one in found]
    what = f"{plural(len(ids), 'task')} {', '.join(map(str, ids))}"
    if not confirmed(count, what, yes=yes, dry_run=dry_run, done=done, first=lambda: first):
        return
    with progress(done, len(ids), stoppable=True) as on_progress:
        for number, task_id in enumerate(ids, 1):
            if on_progress.stop():
                break
            act(task_id)
            on_progress(number)
    tell(f"{on_progress.number} {done}", changed(done, on_progress.number, count))


def _line(failed: TaskExecution | DeadLetter) -> str:
    return f"{failed.id}  {failed.task_name}  {failed.last_error or ''}".rstrip()


_SHOWN = 20
"""The maximum number of tasks that `batch show` lists."""


@click.group(cls=Group)
def batch() -> None:
    """List, show or cancel batches and chains."""


@batch.command("list")
@flag("--open", "only_open", help="Only unfinished batches.")
@number_option("--limit", help="Maximum number of batches.", most=10_000, default=50)
@database_options
def list_batches(store: Store, only_open: bool, limit: int) -> None:
    """List the newest batches and chains."""
    found = store.batches.list(limit=limit, only_open=only_open)
    numbers = attrgetter("size", "pending", "completed", "failed", "cancelled")
    rows = [(one.id, one.kind, one.name, one.status, *numbers(one), one.created_at) for one in found]
    head = ("batch", "kind", "name", "status", "tasks", "not ended", "completed", "failed", "cancelled", "created")
    show(head, rows, records=[_record(one) for one in found])
    if unclosed := [one.id for one in found if one.status is BatchStatus.UNCLOSED]:
        command = front_end("batch list").typed(("batch", "cancel", str(unclosed[0])))
        number = f"{len(unclosed)} {plural(len(unclosed), 'batch is', 'batches are')} not closed, so no task follows"
        click.echo(plain(f"{number}; to cancel the {plural(len(unclosed), 'batch', 'newest')}: {command}"), err=True)


@batch.command("show")
@click.argument("batch_id", type=click.UUID)
@database_options
def show_batch(store: Store, batch_id: UUID) -> None:
    """Show the counts of a batch, and the tasks that have not completed."""
    found = store.batches.get(batch_id)
    statuses = {str(status): number for status, number in store.batches.statuses(batch_id).items()}
    listed = store.batches.not_completed(batch_id, limit=_SHOWN)
    omitted = max(0, sum(statuses.values()) - statuses.get(TaskStatus.COMPLETED, 0) - len(listed))
    if wants_json():
        tasks = [merged(one, without=("result",)) for one in listed]
        beside = {"statuses": statuses, "not_completed": tasks, "not_completed_omitted": omitted}
        write_json({**_record(found), **beside})
        return
    card(("id", str(found.id)), _lines(found))
    typed = front_end("batch show").typed
    if found.status is BatchStatus.UNCLOSED:
        click.echo(plain(f"  to cancel it: {typed(('batch', 'cancel', str(found.id)))}"))
    if not listed:
        return
    if found.awaited and listed[0].status is TaskStatus.FAILED:
        for act in ("redrive", "discard"):
            click.echo(plain(f"  to {act} the first: {typed(('failed', act, str(listed[0].id)))}"))
    rows = [(one.id, one.task_name, one.status, one.error) for one in listed]
    add_table(("not completed", "task", "status", "error"), rows)
    if omitted:
        click.echo(f"{omitted} more: {typed(('task', 'list', '--batch', str(batch_id)))}", err=True)


def _lines(found: Batch) -> list[tuple[str, object]]:
    # The last task of a chain runs after the others and is not counted.
    before = " before the last" if found.kind is BatchKind.CHAIN else ""
    return [
        ("kind", found.kind),
        ("name", found.name),
        ("status", found.status),
        ("fault", UNCLOSED if found.status is BatchStatus.UNCLOSED else None),
        ("tasks", f"{found.size}{before}; {found.pending} {plural(found.pending, 'has', 'have')} not ended"),
        ("counts", f"{found.completed} completed, {found.failed} failed, {found.cancelled} cancelled"),
        ("on failed", found.on_failed),
        ("waits for", f"{found.awaited} {plural(found.awaited, 'dead letter')}" if found.awaited else None),
        ("created", in_utc(found.created_at)),
        ("ended", in_utc(found.completed_at)),
        *(
            ("then", f"{name} {task_id}{'' if place < found.stage else ' (not enqueued)'}")
            for place, (task_id, name) in enumerate(zip(found.then_ids, found.then_names, strict=True))
        ),
        ("then", None if found.then_is_readable else "the next tasks cannot be read: run `outboxq verify`"),
    ]


@batch.command("cancel", help=CANCEL_BATCH.help)
@click.argument("batch_id", type=click.UUID)
@with_fields(*CANCEL_BATCH.fields)
@confirmation_options
@database_options
def cancel_batch(store: Store, batch_id: UUID, *, reason: str, force: bool, yes: bool, dry_run: bool) -> None:
    from ..store.producing.batches import already_ended

    found = store.batches.get(batch_id)
    if found.completed_at is not None:
        raise already_ended(found)
    what = f"tasks of the {found.kind} {batch_id} that have not ended (and any that are added in the meantime)"
    count = Exactly(number=found.pending)
    if not confirmed(count, what, yes=yes, dry_run=dry_run, done="cancelled"):
        return
    outcome = CANCEL_BATCH.do(store, batch_id, operator=present_operator(), reason=reason, force=force)
    tell(outcome.sentence, changed("cancelled", outcome.record["changed"], count))


def _record(one: Batch) -> dict[str, Any]:
    return merged(one, {"pending": one.pending, "awaited": one.awaited, "status": one.status})
