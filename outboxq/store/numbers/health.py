"""Find what needs attention, in the same way for the command line, the dashboard and Prometheus.

Each rule yields one problem for each cause, no matter how many queues it affects. A problem that is caused by another
problem is left out, such as late tasks in a queue without workers, or dead rows that an old snapshot keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from ...database.dialects import LOG_KEPT, Row
from ...model.batches import BatchKind
from ...model.relays import is_counted, task_of
from ...model.wording import MOST_LISTED, listed, plural, size
from ...model.workers import sources_of
from ..explain.reasons import Cure, Reason, cancel_of_batch, of_dead_letter, span_of
from ..tasks.dead_letter_groups import DeadLetterGroup
from .dead_rows import HeldSnapshot, HotTable
from .failing_workers import failing_workers
from .maintenance_jobs import PRUNE
from .problem import HELD, LOST, STORM_WITHIN, Facts, HealthLimits, Part, Problem, Rule, ranked
from .statistics import Statistics

ADD_RETENTION = Cure("delete tasks 90 days after they end", ("schedule", "add-retention", "90d"))
_SEE_TABLES = Cure("see the tables", ("db", "sizes"))
_OVER_AFTER = timedelta(minutes=2)
"""The time from the last failed attempt to the end of a retry storm, if no tasks are delayed."""
_TRANSACTIONS = 1_000_000
"""The age at which the snapshot of a slot or a standby counts as old. The server knows this age only as a number of
transactions.
"""
_LONG_AGO = timedelta(minutes=10)
"""If the last automatic vacuum was longer ago than this, vacuum is behind. Autovacuum looks for work once a minute."""
_LOG_LIMIT = 2 * LOG_KEPT
_PRUNED_WITHIN = timedelta(days=32)
"""If the last prune was longer ago than this, nothing seems to delete old tasks. Tasks are usually deleted at least
once a month.
"""


def problems(facts: Facts, limits: HealthLimits) -> list[Problem]:
    """Return the current problems, sorted by urgency. If only some queues are requested, only the rules about queues
    are evaluated.
    """
    rules = (*_OF_QUEUES, *(_OF_THE_REST if facts.wanted is None else ()))
    return ranked([problem for rule in rules for problem in rule(facts, limits)])


def failed_lately(facts: Facts, limits: HealthLimits) -> dict[str, int]:
    """Return the number of recent dead letters in each queue; empty if their total is within the limit."""
    found = {row["name"]: row["number"] for row in facts.rows("failed_lately")}
    return found if limits.failed is not None and sum(found.values()) > limits.failed else {}


def _no_worker(facts: Facts, limits: HealthLimits) -> Iterator[Problem]:
    found = _heaviest(filter(_is_unserved, facts.queues)) if limits.no_worker else []
    if not found:
        return
    tasks = sum(one.due for one in found)
    waiting = _due_or_delayed(found)
    if len(found) == 1:
        sentence = f"no live worker serves the queue {found[0].queue!r}, which has {waiting}"
    else:
        named = listed(f"{one.queue!r} ({one.due:,})" if one.due else f"{one.queue!r} (delayed)" for one in found)
        sentence = f"no live worker serves {len(found)} queues, which have {waiting}: {named}"
    served = [word for one in found for word in ("-q", one.queue)] if len(found) <= MOST_LISTED else []
    start = Cure("start a worker", ("worker", *served))
    if paused := [one for one in found if one.paused]:
        if len(found) == 1:
            sentence += f"; the queue has also been paused for {_paused_for(facts, paused[0])}"
        else:
            named = listed(f"{one.queue!r} (for {_paused_for(facts, one)})" for one in paused)
            sentence += f"; {len(paused)} of them {plural(len(paused), 'is', 'are')} also paused: {named}"
    yield _of_queues(Rule.NO_WORKER, found, sentence, start, *_resumes(paused, of=len(found)), tasks=tasks)


def _is_unserved(one: Statistics) -> bool:
    """Return whether tasks are waiting in a queue without workers. Delayed tasks count too, because a task that was
    released when no worker knew its name is delayed, and would otherwise wait unnoticed.
    """
    return bool(one.due or one.delayed or one.retrying) and not one.live_workers


def _due_or_delayed(found: Sequence[Statistics]) -> str:
    if due := sum(one.due for one in found):
        return f"{_number(due, 'task', at_least=any(one.due_at_least for one in found))} due"
    delayed = sum(one.delayed + one.retrying for one in found)
    return _number(delayed, "delayed task", at_least=any(one.delayed_at_least for one in found))


def _unknown_task(facts: Facts, limits: HealthLimits) -> Iterator[Problem]:
    if not (found := _heaviest(one for one in facts.queues if one.unknown and limits.unknown_task)):
        return
    names = sorted({each.task_name for one in found for each in one.unknown})
    modules = plural(len(names), "its module", "their modules")
    sentence = (
        f"no live worker on {_places([one.queue for one in found])} knows {listed(map(repr, names))}; "
        f"import {modules} where the worker starts"
    )
    # The number of waiting tasks with these names is not known; there is at least one for each name.
    yield _of_queues(Rule.UNKNOWN_TASK, found, sentence, tasks=len(names))


def _key_held(facts: Facts, limits: HealthLimits) -> Iterator[Problem]:
    rows = sorted((row for row in facts.held if facts.is_wanted(row["name"])), key=_oldest_first)
    if not rows or not limits.key_held:
        return
    queues = list(dict.fromkeys(row["name"] for row in rows))
    where, key, task_id = _places(queues), rows[0]["detail"], rows[0]["task_id"]
    if len(rows) == 1:
        sentence = f"tasks in {where} are waiting for the dead letter {task_id}, which holds their key {key!r}"
    else:
        some = f"{'at least ' if len(rows) >= HELD else ''}{_number(len(rows), 'dead letter')}"
        sentence = (
            f"tasks in {where} are waiting for {some} that hold their keys, such as {task_id}, which holds {key!r}"
        )
    cures, age = of_dead_letter(task_id, "it"), facts.age(rows[0]["at"])
    yield Problem.of(Rule.KEY_HELD, queues, sentence, *cures, tasks=len(rows), age=age)


def _failed(facts: Facts, limits: HealthLimits) -> Iterator[Problem]:
    lately = failed_lately(facts, limits)
    counts = ((number, queue) for queue, number in lately.items() if facts.is_wanted(queue))
    found = sorted(counts, key=lambda one: (-one[0], one[1]))
    if not found:
        return
    tasks, within = sum(number for number, _ in found), _period(limits.failed_within)
    # If not all of them were read, the others may belong to any queue.
    at_least = "at least " if sum(lately.values()) >= limits.most_failed else ""
    some, (_, first) = f"{at_least}{_number(tasks, 'task')}", found[0]
    if len(found) == 1:
        sentence = f"{some} in the queue {first!r} failed permanently in the last {within}"
        cure = Cure("see why", ("failed", "list", "-q", first))
    else:
        named = listed(f"{number:,} in {queue!r}" for number, queue in found)
        sentence = f"{some} failed permanently in the last {within}: {named}"
        cure = Cure("see why", ("failed", "summary"))
    age = facts.age(min(row["at"] for row in facts.rows("failed_lately") if facts.is_wanted(row["name"])))
    parts = tuple(_part_of(facts, one) for one in facts.groups if any(map(facts.is_wanted, one.queues)))
    yield Problem.of(Rule.FAILED, (queue for _, queue in found), sentence, cure, tasks=tasks, age=age, parts=parts)


def _part_of(facts: Facts, group: DeadLetterGroup) -> Part:
    error = group.message or group.exception or "its workers died"
    when = f"{span_of(facts.age(group.last_failed_at))} ago"
    if group.count > 1:
        when = f"the first of them {span_of(facts.age(group.first_failed_at))} ago, the last {when}"
    sentence = f"{group.count:,} × {group.task_name}: {error}; {when}"
    see = Cure("see them", ("failed", "list", "--group", group.id))
    if group.blame is None:
        return Part(sentence=sentence, cures=(see,))
    look = Cure("see which workers run this version", ("workers", "list"))
    return Part(sentence=f"{sentence}; {group.blame}", cures=(see, look))


def _period(value: timedelta) -> str:
    """Return the words after "in the last", such as "hour" or "10 min"."""
    return "hour" if value == timedelta(hours=1) else span_of(value)


def _retry_storm(facts: Facts, limits: HealthLimits) -> Iterator[Problem]:
    wanted = (row for row in facts.storms if facts.is_wanted(row["name"]) and not _is_over(facts, row))
    rows = sorted(wanted, key=lambda row: (-row["number"], row["name"], row["detail"]))
    if not rows or limits.retried is None:
        return
    number, within = sum(row["number"] for row in rows), _period(STORM_WITHIN)
    named = listed(_storm(row) for row in rows)
    sentence = f"{_number(number, 'attempt')} failed in the last {within} and will be retried: {named}"
    queue = rows[0]["name"]
    see = Cure("see them", ("task", "list", "--status", "retrying", "-q", queue))
    stop = Cure("stop the retries until the cause is fixed", ("queue", "pause", queue))
    is_paused = any(one.paused for one in facts.queues if one.queue == queue)
    cures, queues = (see,) if is_paused else (see, stop), dict.fromkeys(row["name"] for row in rows)
    yield Problem.of(Rule.RETRY_STORM, queues, sentence, *cures, tasks=number, age=STORM_WITHIN)


def _is_over(facts: Facts, storm: Row) -> bool:
    """Return whether no task in the queue is waiting for a retry: none is delayed, and no attempt has failed lately."""
    mine = [one for one in facts.queues if one.queue == storm["name"]]
    waits = any(one.delayed or one.retrying or (one.paused and one.due) for one in mine)
    return not waits and facts.age(storm["at"]) > _OVER_AFTER


def _storm(row: Row) -> str:
    exception = "" if row["exception"] is None else f" ({row['exception']})"
    return f"{row['number']:,} × {row['detail']}{exception}"


def _oldest(facts: Facts, limits: HealthLimits) -> Iterator[Problem]:
    """Yield one problem for the paused queues whose tasks have been due for too long, and one for the other late
    queues. Queues without workers are reported as a separate problem.
    """
    for paused in (False, True):
        if not (found := [one for one in late_queues(facts, limits) if one.paused is paused]):
            continue
        parts: tuple[Part, ...] = ()
        cures = _resumes(found) if paused else ()
        if len(found) == 1:
            sentence, cures = _due(facts, found[0]), cures or _look(facts, found[0].queue)
            if paused:
                sentence += f"; the queue has been paused for {_paused_for(facts, found[0])}"
        else:
            named = listed(
                f"{one.queue!r} ({_number(one.due, 'task', at_least=one.due_at_least)}, {span_of(_due_for(one))})"
                for one in found
            )
            longest = span_of(max(map(_due_for, found)))
            sentence = (
                f"tasks in {len(found)} {'paused ' if paused else ''}queues have been due for up to {longest}: {named}"
            )
            if not paused:
                parts = tuple(
                    Part(sentence=_due(facts, one), cures=_look(facts, one.queue)) for one in found[:MOST_LISTED]
                )
        tasks = sum(one.due for one in found)
        yield _of_queues(Rule.OLDEST, found, sentence, *cures, tasks=tasks, parts=parts)


def late_queues(facts: Facts, limits: HealthLimits) -> list[Statistics]:
    """Return the queues that have workers, but whose tasks have been due for too long, heaviest first."""
    if (most := limits.oldest) is None:
        return []
    return _heaviest(one for one in facts.queues if _due_for(one) > most and (one.live_workers or not limits.no_worker))


def _due(facts: Facts, one: Statistics) -> str:
    sentence = f"a task in the queue {one.queue!r} has been due for {span_of(_due_for(one))}"
    cause = facts.causes.get(one.queue)
    return sentence if cause is None or cause.reason is Reason.DUE else f"{sentence}: {cause.sentence}"


def _look(facts: Facts, queue: str) -> tuple[Cure, ...]:
    look = Cure("see which tasks are waiting", ("task", "list", "--status", "due", "-q", queue))
    cause = facts.causes.get(queue)
    # While a lost worker holds tasks, these may be the ones that use up the limit. If the limit were raised, too many
    # tasks would run.
    is_held = any(row["number"] for row in facts.rows("lost"))
    return (look,) if is_held or cause is None or cause.reason not in _LIMITS else (look, *cause.cures)


_LIMITS = frozenset({Reason.CONCURRENCY_LIMIT, Reason.RATE_LIMIT, Reason.KEY_LIMIT, Reason.KEY_RATE})


def _queue_paused(facts: Facts, limits: HealthLimits) -> Iterator[Problem]:
    """Yield a problem for the paused queues that neither `_no_worker` nor `_oldest` mentions."""
    if not limits.queue_paused:
        return

    def is_mentioned(one: Statistics) -> bool:
        is_late = limits.oldest is not None and _due_for(one) > limits.oldest
        return is_late or (limits.no_worker and _is_unserved(one))

    if not (found := _heaviest(one for one in facts.queues if one.paused and not is_mentioned(one))):
        return
    if len(found) == 1:
        sentence = f"the queue {found[0].queue!r} has been paused for {_paused_for(facts, found[0])}"
    else:
        named = listed(f"{one.queue!r} (for {_paused_for(facts, one)})" for one in found)
        sentence = f"{len(found)} queues are paused: {named}"
    # Someone paused the queues on purpose, so their tasks do not count.
    yield _of_queues(Rule.QUEUE_PAUSED, found, sentence, *_resumes(found), tasks=0)


def _paused_for(facts: Facts, one: Statistics) -> str:
    settings = facts.seen.settings[one.queue]
    span = span_of(facts.age(settings.paused_at))
    return f"{span}: {settings.pause_reason}" if settings.pause_reason else span


def _resumes(found: Sequence[Statistics], *, of: int = 1) -> tuple[Cure, ...]:
    """Return the cures for these paused queues. `of` is the number of queues that the problem's sentence covers."""
    if len(found) == of == 1:
        return (Cure("resume it", ("queue", "resume", found[0].queue)),)
    return tuple(Cure(f"resume {one.queue!r}", ("queue", "resume", one.queue)) for one in found[:MOST_LISTED])


def _worker_lost(facts: Facts, limits: HealthLimits) -> Iterator[Problem]:
    rows = [row for row in facts.rows("lost") if row["number"]] if limits.worker_lost else []
    found = sorted(rows, key=lambda row: (row["number"], row["at"]), reverse=True)[:LOST]
    found.sort(key=lambda row: (-row["number"], row["name"]))
    if not found:
        return
    tasks = sum(row["number"] for row in found)
    least = "at least " if len(rows) > LOST else ""
    counted = f"{least}{_number(tasks, 'running task')}"
    if len(found) == 1:
        who = f"the worker {found[0]['name']} fell silent {span_of(facts.age(found[0]['at']))} ago with {counted}"
    else:
        named = listed(f"{row['name']} ({row['number']:,})" for row in found)
        who = f"{least}{len(found)} workers fell silent with {counted}: {named}"
    sentence = f"{who}; {plural(tasks, 'it has', 'they have')} not been recovered yet"
    see = Cure("see its tasks", ("workers", "show", str(found[0]["task_id"])))
    names, age = [row["name"] for row in found], max(facts.age(row["at"]) for row in found)
    yield Problem.of(Rule.WORKER_LOST, names, sentence, see, tasks=tasks, age=age)


def _schedules(facts: Facts, limits: HealthLimits) -> Iterator[Problem]:
    start = Cure("start a worker", ("worker",))
    overdue = sorted(facts.rows("overdue"), key=_oldest_first) if limits.schedule_overdue is not None else []
    if overdue:
        names, since = [row["name"] for row in overdue], facts.age(overdue[0]["at"])
        which = f"schedule {names[0]!r}" if len(names) == 1 else f"{len(names)} schedules ({listed(map(repr, names))})"
        sentence = f"no tick of {which} has been planted in the last {span_of(since)}, because no live worker is planting ticks"
        yield Problem.of(Rule.SCHEDULE_OVERDUE, names, sentence, start, tasks=len(names), age=since)
    ahead = sorted(facts.rows("ahead"), key=lambda row: row["at"], reverse=True) if limits.schedule_ahead else []
    if ahead:
        names = [row["name"] for row in ahead]
        which = (
            f"the schedule {names[0]!r}" if len(names) == 1 else f"{len(names)} schedules ({listed(map(repr, names))})"
        )
        sentence = (
            f"because a clock was running fast, ticks of {which} were planted for the next "
            f"{span_of(ahead[0]['at'] - facts.now)}; within 15 seconds, a live worker will plant them again according to the current clock; "
            "if that does not happen, the current clock is slow"
        )
        yield Problem.of(Rule.SCHEDULE_AHEAD, names, sentence, start)


def _relays(facts: Facts, limits: HealthLimits) -> Iterator[Problem]:
    """Yield a separate problem for each relay whose oldest event has waited too long. Each relay has its own broker."""
    if limits.relay_late is None:
        return
    for one in facts.relays:
        age = facts.age(one.oldest_at)
        if one.oldest_at is None or age <= limits.relay_late:
            continue
        least = "" if is_counted(one.messages) else "at least "
        waits = f"{least}{_number(one.messages, 'event')} of the relay {one.name!r} {plural(one.messages, 'is', 'are')} waiting to be published"
        look = Cure("see its shards", ("relay", "list"))
        if one.paused_at is not None:
            why = f"the relay has been paused for {span_of(facts.age(one.paused_at))}"
            why += f": {one.pause_reason}" if one.pause_reason else ""
            look = Cure("resume it", ("relay", "resume", one.name))
        elif one.failing_since is not None:
            since = span_of(facts.age(one.failing_since))
            why = f"the broker has not confirmed any event for {since}: {one.last_error}"
        elif not one.is_sent:
            why = "not every shard has a worker"
            look = Cure("publish them", ("relay", "run"))
        elif one.dead_letters:
            why = "their keys are held by events that the broker refused, or the events are sent too slowly"
            look = Cure("see the refused events", ("failed", "list", "-q", task_of(one.name)))
        else:
            why = "the events are sent too slowly, or a producer's transaction has been open for a long time"
        sentence = f"{waits}, the oldest for {span_of(age)}: {why}"
        yield Problem.of(Rule.RELAY_LATE, [one.name], sentence, look, tasks=one.messages, age=age)


def _batches(facts: Facts, limits: HealthLimits) -> Iterator[Problem]:
    """Yield one problem for all unclosed batches, and one for all batches and chains that wait for dead letters. Each
    problem names the first of its batches.
    """
    if limits.batch_unclosed and (rows := sorted(facts.rows("unclosed"), key=lambda row: row["task_id"])):
        sentence = (
            f"{_batch(rows)}{_others(rows)} is not closed: its `with` block raised an error, but the transaction was committed, "
            "so no task will follow it"
        )
        yield _of_batches(Rule.BATCH_UNCLOSED, rows, sentence, *cancel_of_batch(rows[0]["task_id"]))
    if limits.batch_waits and (rows := sorted(facts.rows("batch_waits"), key=_oldest_first)):
        number, first = sum(row["number"] for row in rows), rows[0]
        ends = "ends the chain" if first["detail"] == BatchKind.CHAIN else "lets the batch continue without it"
        sentence = (
            f"{_batch(rows)}{_others(rows)} has been blocked only by dead letters for {span_of(facts.age(first['at']))}: "
            f"{_number(number, 'dead letter')} in all; redrive or discard {plural(number, 'it', 'them')}; discarding a dead letter {ends}"
        )
        show = Cure("see its dead letters", ("batch", "show", str(first["task_id"])))
        yield _of_batches(Rule.BATCH_WAITS, rows, sentence, show, tasks=number, age=facts.age(first["at"]))


def _batch(rows: Sequence[Row]) -> str:
    kind = rows[0]["detail"] or BatchKind.BATCH
    batch_id, name = rows[0]["task_id"], rows[0]["name"]
    return f"the {kind} {batch_id}" if name is None else f"the {kind} {name!r} ({batch_id})"


def _others(rows: Sequence[Row]) -> str:
    return f", like {len(rows) - 1} {plural(len(rows) - 1, 'other')}," if len(rows) > 1 else ""


def _of_batches(rule: Rule, rows: Sequence[Row], sentence: str, *cures: Cure, **fields: Any) -> Problem:
    return Problem.of(rule, (str(row["task_id"]) for row in rows), sentence, *cures, **fields)


def _dead_rows(facts: Facts, limits: HealthLimits) -> Iterator[Problem]:
    """Yield a problem about old snapshots, which cause dead rows, or else about tables that are not vacuumed."""
    found = facts.dead_rows
    if old := [one for one in found.snapshots if _is_old(one, limits.snapshot)]:
        yield _old_snapshot(old, found.tables)
    elif limits.dead_rows is not None:
        yield from _not_vacuumed(facts, limits.dead_rows)
    if limits.snapshot is not None and found.log is not None and found.log.size > _LOG_LIMIT:
        pids = ", ".join(map(str, found.log.readers))
        who = f"; these processes are reading the file: {pids}" if pids else ""
        sentence = (
            f"the log (-wal) of the SQLite file has grown to {size(found.log.size)}, because a long read transaction keeps it from "
            f"being shortened{who}; end that transaction; the log then shrinks at the next write"
        )
        yield Problem.of(Rule.OLD_SNAPSHOT, ["-wal"], sentence)


def _is_old(one: HeldSnapshot, limit: timedelta | None) -> bool:
    return limit is not None and (one.transactions > _TRANSACTIONS if one.age is None else one.age > limit)


def _old_snapshot(old: Sequence[HeldSnapshot], tables: Sequence[HotTable]) -> Problem:
    first, dead = old[0], [one for one in sorted(tables, key=lambda one: -one.dead_rows) if one.dead_rows]
    kept = listed(f"{one.dead_rows:,} in {one.name}" for one in dead)
    now = f" (dead rows: {kept})" if kept else ""
    sentence = f"{first} has kept its snapshot for {first.since}, so rows that have died during that time cannot be vacuumed{now}; {first.remedy}"
    parts = tuple(
        Part(sentence=f"{one}, for {one.since}; {one.remedy}", cures=_end_of(one)) for one in old[1 : 1 + MOST_LISTED]
    )
    names, age = [one.name or str(one.pid) for one in old], first.age or timedelta(0)
    return Problem.of(Rule.OLD_SNAPSHOT, names, sentence, *_end_of(first), _SEE_TABLES, age=age, parts=parts)


def _end_of(one: HeldSnapshot) -> tuple[Cure, ...]:
    return () if one.session is None else (Cure("end the session", ("db", "end-session", one.session)),)


def _not_vacuumed(facts: Facts, limit: int) -> Iterator[Problem]:
    """Yield one problem for all tables with too many dead rows. Vacuum is behind if its last run was long ago. If a
    table has never been vacuumed, the time of the first event counts instead.
    """
    begin = min((row["at"] for row in facts.rows("first_event")), default=facts.now)
    full = [one for one in facts.dead_rows.tables if one.dead_rows > limit and one.dead_rows > one.rows]
    full = [one for one in full if not one.autovacuum or facts.age(one.last_vacuumed_at or begin) > _LONG_AGO]
    if not full:
        return
    full.sort(key=lambda one: -one.dead_rows)
    counted = listed(f"{one.name} has {one.dead_rows:,} dead rows but only {one.rows:,} live rows" for one in full)
    names = ", ".join(one.name for one in full)
    if all(one.autovacuum for one in full):
        last = full[0].last_vacuumed_at
        when = f"{span_of(facts.age(last))} ago" if last else "never"
        why = f"autovacuum is behind (last vacuum: {when}); run VACUUM {names}, and give autovacuum more workers or a shorter delay"
    else:
        why = f"autovacuum is off; turn it on (autovacuum, track_counts, or autovacuum_enabled of the table), and run VACUUM {names}"
    sentence = f"dead rows slow down every claim: {counted}; {why}"
    yield Problem.of(Rule.DEAD_ROWS, [one.name for one in full], sentence, _SEE_TABLES)


def _no_retention(facts: Facts, limits: HealthLimits) -> Iterator[Problem]:
    if limits.history is None or is_pruned(facts.rows("retention"), facts.now):
        return
    reaches = max((facts.age(row["at"]) for row in facts.rows("first_event")), default=timedelta(0))
    if reaches > limits.history:
        sentence = f"nothing deletes old tasks: the history reaches back {span_of(reaches)} and keeps growing"
        yield Problem.of(Rule.NO_RETENTION, [PRUNE], sentence, ADD_RETENTION)


def is_pruned(rows: Iterable[Row], now: datetime) -> bool:
    """Return whether old tasks are deleted, as shown by a schedule (a row without a time) or by a recent prune."""
    return any(row["at"] is None or now - row["at"] < _PRUNED_WITHIN for row in rows)


def _receivers(facts: Facts, limits: HealthLimits) -> Iterator[Problem]:
    """Yield a separate problem for each source whose receivers are failing. Each source has its own broker."""
    if limits.receiver_failing is None:
        return
    for one in sources_of(state for worker in facts.seen.workers for state in worker.receivers):
        if one.failing_since is None or (age := facts.age(one.failing_since)) <= limits.receiver_failing:
            continue
        several = "" if one.workers == 1 else f" in {one.failing} of {one.workers} workers"
        sentence = f"the receiver of {one.source}{several} has been failing for {span_of(age)}: {one.last_error}"
        yield Problem.of(
            Rule.RECEIVER_FAILING, [one.source], sentence, Cure("see its workers", ("workers", "list")), age=age
        )


_Evaluation = Callable[[Facts, HealthLimits], Iterator[Problem]]
_OF_QUEUES: tuple[_Evaluation, ...] = (
    _no_worker,
    _unknown_task,
    _key_held,
    _failed,
    _retry_storm,
    _oldest,
    _queue_paused,
)
_OF_THE_REST: tuple[_Evaluation, ...] = (
    failing_workers,
    _worker_lost,
    _schedules,
    _relays,
    _receivers,
    _batches,
    _dead_rows,
    _no_retention,
)


def _of_queues(rule: Rule, found: Sequence[Statistics], sentence: str, *cures: Cure, **others: Any) -> Problem:
    age = max(map(_due_for, found))
    return Problem.of(rule, (one.queue for one in found), sentence, *cures, age=age, **others)


def _heaviest(found: Iterable[Statistics]) -> list[Statistics]:
    """Return the queues, sorted by the number of due tasks multiplied by the age of the oldest task, then by the number
    of due tasks, then by name.
    """
    return sorted(found, key=lambda one: (-one.due * _due_for(one).total_seconds(), -one.due, one.queue))


def _due_for(one: Statistics) -> timedelta:
    return one.oldest_due_age or timedelta(0)


def _oldest_first(row: Row) -> tuple[bool, datetime | None, str]:
    return row["at"] is None, row["at"], row["name"] or ""


def _places(queues: Sequence[str]) -> str:
    if len(queues) == 1:
        return f"the queue {queues[0]!r}"
    return f"the queues {listed(map(repr, queues))}"


def _number(number: int, noun: str, *, at_least: bool = False) -> str:
    return f"{'more than ' if at_least else ''}{number:,} {plural(number, noun)}"
