"""List, group, count, redrive and discard dead letters."""

from __future__ import annotations

import builtins
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, TypedDict, Unpack
from uuid import UUID

import sqlalchemy as sa

from ...database.column_types import Instant
from ...database.dialects import Begin, Row
from ...database.grammar import ONE, Grammar, limit
from ...database.tables import dead_letters, partition_claims, task_executions
from ...database.target import Target
from ...errors import DuplicateTask, InvalidTransition, OutboxqError
from ...model import EventType, TaskStatus
from ...model.display import HEAD
from ...model.unknown_options import Answering
from ..arguments import aware, identifier, parameters, positive, refuse_unknown, storable
from ..task_rows import IDS, pack_ids
from ..transactions import Noun
from . import cancelling
from .cancelling import Bulk, Part, change_all, with_numbers
from .chains import futile_redrives
from .dead_letter_groups import (
    DeadLetterGroup,
    DeadLetterGroups,
    group_id,
    grouped,
    members_of,
    read_at_work,
    version_of,
)
from .event_log import Count, Snapshot, counted_to, had_failed
from .idempotency import regain_keys
from .operations import OnChange

log = logging.getLogger("outboxq.store")

LOOKED_AT = 10_000
"""Maximum number of dead letters that are grouped, newest first."""
_LOOKS = (500, 2_500, LOOKED_AT - 3_000)
"""The numbers of dead letters that successive rounds search for members of a group."""
_BLAMED, _BLAMED_WITHIN = 2_000, timedelta(hours=1)
"""Maximum number of recent dead letters that are searched for a version at fault."""
_NAMED = 10
"""Maximum number of skipped dead letters that the warning names."""
Place = tuple[datetime, UUID]
_FIRST = (datetime.min.replace(tzinfo=UTC), UUID(int=0))
_LAST = (datetime.max.replace(tzinfo=UTC), UUID(int=2**128 - 1))
_LEFT_OUT = {
    DuplicateTask: "other tasks now have their idempotency keys",
    InvalidTransition: "the tasks before them in their chains were deleted",
}
"""Maps each error that `redrive` raises to the reason why a dead letter is not redriven."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """A Failed task that has not yet been redriven or discarded."""

    id: UUID
    task_name: str
    queue: str
    topic: str | None
    partition_key: str | None
    exception: str | None
    """Module and name of the exception's class; None if the task failed without an exception, for example because its
    workers died.
    """
    failed_at: datetime
    last_error: str | None
    attempt: int
    recovery_attempts: int
    holds_key: bool
    """True if other tasks with the same key wait until this dead letter is redriven or discarded."""

    @property
    def place(self) -> tuple[datetime, UUID]:
        """Position in the list, for `list(after=…)`."""
        return self.failed_at, self.id


class Wanted(TypedDict, total=False):
    """Filters for dead letters. All given filters must match; without filters, all dead letters match."""

    queue: str | None
    task: str | None
    """Name of the task."""
    topic: str | None
    partition_key: str | None
    exception: str | None
    """Class of the exception: its full dotted name, or the last part of it."""
    since: datetime | None
    """The earliest time of the failure, as an aware datetime."""
    until: datetime | None
    """The time before which the task failed, as an aware datetime."""
    group: str | None
    """Id of a DeadLetterGroup. This filter is applied last, to one error at a time."""


class DeadLetters(Noun, Answering):
    """The dead letters: pages for people to read, and changes to all matching dead letters."""

    _noun = "outbox.store.dead_letters"

    def list(
        self,
        *,
        limit: int = 100,
        after: tuple[datetime, UUID] | None = None,
        using: object = None,
        **wanted: Unpack[Wanted],
    ) -> builtins.list[DeadLetter]:
        """Return up to `limit` matching dead letters (see Wanted), newest first. `after` is the `place` of the last
        dead letter on the previous page.

        Raises InvalidArgument.
        """
        failed_at, last = _LAST if after is None else after
        values = _filters(wanted) | {"limit": positive(limit)}
        values |= _after_place((aware(failed_at, "after"), identifier(last)))
        if (group := group_id(wanted.get("group"))) is None:
            return [DeadLetter(**row) for row in self._store.run_one(newest, **values, using=using)]

        def work(target: Target) -> builtins.list[DeadLetter]:
            ids, given = builtins.list[UUID](), dict(values)
            for given["limit"] in _LOOKS:
                rows = target.run(newest_with_errors, given)
                ids += [row["id"] for row in members_of(group, rows)]
                if len(rows) < given["limit"] or len(ids) >= limit:
                    break
                given |= _after_place((rows[-1]["failed_at"], rows[-1]["id"]))
            return _read(target, ids[:limit])

        return self._store.run(work, using=using, begin=Begin.READ)

    def oldest(self, *, limit: int = 100, using: object = None, **wanted: Unpack[Wanted]) -> builtins.list[DeadLetter]:
        """Return up to `limit` matching dead letters, oldest first, in the order in which `redrive_all` and
        `discard_all` change them.

        With `group`, only the oldest 10,000 dead letters that match the other filters are searched. Raises
        InvalidArgument.
        """
        group, values = group_id(wanted.get("group")), _filters(wanted)
        values, most = values | _after_place(_FIRST), positive(limit)

        def work(target: Target) -> builtins.list[DeadLetter]:
            if group is None:
                rows = target.run(oldest, {**values, "limit": most})
            else:
                rows = members_of(group, target.run(oldest_with_errors, {**values, "limit": LOOKED_AT}))[:most]
            return _read(target, [row["id"] for row in rows])[::-1]

        return self._store.run(work, using=using, begin=Begin.READ)

    def groups(
        self, *, limit: int = 100, most: int = LOOKED_AT, using: object = None, **wanted: Unpack[Wanted]
    ) -> DeadLetterGroups:
        """Return up to `limit` groups of the newest `most` matching dead letters, largest group first. Raises
        InvalidArgument.

        Reading and grouping 2,000 dead letters takes about 20 ms, and 10,000 about 100 ms.
        """
        group, values = group_id(wanted.get("group")), _filters(wanted)
        positive(limit)
        positive(most, "most")

        def work(target: Target) -> DeadLetterGroups:
            rows = target.run(newest_with_versions, values | _from_the_newest(most + 1))
            found = [one for one in grouped(rows[:most], read_at_work(target, rows)) if group in {None, one.id}]
            is_complete = len(rows) <= most and len(found) <= limit
            return DeadLetterGroups(groups=found[:limit], looked_at=min(len(rows), most), is_complete=is_complete)

        return self._store.run(work, using=using, begin=Begin.READ)

    def blamed_versions(self, *, using: object = None) -> Mapping[str, frozenset[str]]:
        """Return the application versions that are blamed for dead letters from the last hour, each with the queues of
        these dead letters. A version is blamed if it produced nearly all dead letters of a group while workers of
        another version knew the task too.
        """

        def work(target: Target) -> Mapping[str, frozenset[str]]:
            since = self._store.now_in(target) - _BLAMED_WITHIN
            blamed: dict[str, frozenset[str]] = {}
            for one in newest_groups(target, [None], limit=_BLAMED, most=_BLAMED, since=since):
                if (version := one.blamed_version) is not None:
                    blamed[version] = blamed.get(version, frozenset()).union(one.queues)
            return blamed

        return self._store.run(work, using=using, begin=Begin.READ)

    def count(
        self,
        *,
        most: int = 100_000,
        snapshot: Snapshot | None = None,
        using: object = None,
        **wanted: Unpack[Wanted],
    ) -> Count:
        """Count the matching dead letters, up to `most`; with `group`, only among the newest `most`.

        Pass the `snapshot` of the count to `redrive_all` or `discard_all`, which then change only dead letters that
        were counted. With `snapshot`, this counts how many dead letters from an earlier count are still dead letters.
        Raises InvalidArgument.
        """
        group, values = group_id(wanted.get("group")), _filters(wanted) | {"limit": positive(most, "most") + 1}
        values |= {} if snapshot is None else snapshot.values

        def work(target: Target) -> Count:
            # The snapshot is taken before the count: a dead letter that becomes visible to the caller's transaction in
            # between is counted, but not changed.
            now = Snapshot.take(target) if snapshot is None else snapshot
            if group is None:
                return counted_to(most, target.run(count, values)[0]["tasks"], snapshot=now)
            rows = target.run(newest_with_errors, {**values, **_from_the_newest(most + 1)})
            return counted_to(most, len(members_of(group, rows[:most])), cut=len(rows) > most, snapshot=now)

        return self._store.run(work, using=using, begin=Begin.SNAPSHOT)

    def parts(
        self,
        *,
        snapshot: Snapshot,
        limit: int | None = None,
        most: int = LOOKED_AT,
        using: object = None,
        **wanted: Unpack[Wanted],
    ) -> builtins.list[Part]:
        """Count the dead letters that `count` counted in this snapshot, grouped by task, queue and exception, largest
        count first. With `group`, the newest `most` dead letters are read; otherwise, `most` dead letters are read in
        no particular order. With `limit`, the oldest `most` are read, and only the first `limit` that match are
        counted.
        """
        group, values = group_id(wanted.get("group")), {**_filters(wanted), **snapshot.values, "limit": positive(most)}
        if limit is not None:
            values |= {"limit": most if group is not None else min(positive(limit), most)}
            rows = self._store.run_one(oldest_with_errors, **{**values, **_after_place(_FIRST)}, using=using)
            found = Counter(map(_part, members_of(group, rows)[:limit]))
        elif group is None:
            rows = self._store.run_one(count_by_task, **values, using=using)
            found = Counter({_part(row): row["number"] for row in rows})
        else:
            rows = self._store.run_one(newest_with_errors, **{**values, **_from_the_newest(most)}, using=using)
            found = Counter(map(_part, members_of(group, rows)))
        return with_numbers(found)

    def redrive_all(
        self,
        *,
        reason: str = "",
        snapshot: Snapshot | None = None,
        limit: int | None = None,
        on_progress: Callable[[int], None] | None = None,
        stop: Callable[[], bool] | None = None,
        on_change: OnChange | None = None,
        using: object = None,
        **wanted: Unpack[Wanted],
    ) -> int:
        """Redrive up to `limit` of the matching dead letters, oldest first, and return the number of dead letters
        redriven. A queue or task that does not exist matches no dead letters, so the number is 0; the command line
        refuses such names.

        Dead letters that `redrive` refuses are skipped: those whose idempotency key now belongs to another task, and
        those whose previous task in the chain was deleted. A warning states how many were skipped. With the `snapshot`
        of a count, tasks that have failed since then, even if not for the first time, are left alone. Without
        `snapshot`, a new snapshot is taken at the beginning. Each batch of 500 dead letters is a separate transaction
        (with `using`, all batches belong to the caller's transaction). Dead letters that another session changes in the
        meantime are not counted. `on_progress` is called after each batch with the number of tasks changed so far,
        `stop` before each batch, and `on_change` in each transaction with the number of tasks that the transaction
        changes.
        """
        bulk = Bulk(reason=reason, limit=limit, on_progress=on_progress, stop=stop, on_change=on_change, using=using)
        return self._change_all(EventType.REQUEUED, wanted, snapshot, bulk)

    def discard_all(
        self,
        *,
        reason: str = "",
        snapshot: Snapshot | None = None,
        limit: int | None = None,
        on_progress: Callable[[int], None] | None = None,
        stop: Callable[[], bool] | None = None,
        on_change: OnChange | None = None,
        using: object = None,
        **wanted: Unpack[Wanted],
    ) -> int:
        """Discard the matching dead letters in the same way as `redrive_all` redrives them, and return their number."""
        bulk = Bulk(reason=reason, limit=limit, on_progress=on_progress, stop=stop, on_change=on_change, using=using)
        return self._change_all(EventType.DISCARDED, wanted, snapshot, bulk)

    def _change_all(self, event_type: EventType, wanted: Wanted, snapshot: Snapshot | None, bulk: Bulk) -> int:
        group, values = group_id(wanted.get("group")), _filters(wanted)
        left_out: dict[UUID, OutboxqError] = {}
        values |= (snapshot or self._store.run(Snapshot.take, using=bulk.using, begin=Begin.READ)).values

        def look(target: Target, *, after: Place, most: int) -> tuple[builtins.list[UUID], Place | None]:
            given = {**values, **_after_place(after)}
            if group is None:
                rows = found = target.run(oldest, {**given, "limit": most})
            else:
                rows = target.run(oldest_with_errors, {**given, "limit": cancelling.BATCH})
                mine = members_of(group, rows)
                found = mine[:most]
                if len(found) < len(mine):  # some of these may be left out, so the next ones are read again
                    rows = found
            return [row["id"] for row in found], (rows[-1]["failed_at"], rows[-1]["id"]) if rows else None

        def change(ids: builtins.list[UUID]) -> int:
            if event_type is EventType.DISCARDED:
                return change_all(self._store, ids, event_type, {TaskStatus.FAILED}, bulk)
            refused = partial(self._refused, ids, left_out)
            return change_all(self._store, ids, event_type, {TaskStatus.FAILED}, bulk, attempt=1, refused=refused)

        moved = cancelling.in_batches(self._store, [look], _FIRST, change, bulk)
        for kind, why in _LEFT_OUT.items():
            if several := sorted(one for one, error in left_out.items() if isinstance(error, kind)):
                ids = ", ".join(map(str, several[:_NAMED])) + (", …" if len(several) > _NAMED else "")
                log.warning("skipped %d of the dead letters, because %s: %s", len(several), why, ids)
        return moved

    def _refused(self, ids: Collection[UUID], left_out: dict[UUID, OutboxqError], target: Target) -> Collection[UUID]:
        """Return which of these dead letters cannot be redriven, and record why. The other dead letters get their
        idempotency keys back.
        """
        refused: dict[UUID, OutboxqError] = dict(futile_redrives(target, ids))
        if free := set(ids) - refused.keys():
            refused |= regain_keys(self._store, target, free)
        left_out.update(refused)
        return refused.keys()


def _from_the_newest(limit: int) -> dict[str, Any]:
    return {"limit": limit, **_after_place(_LAST)}


def _part(row: Row) -> Part:
    return Part(status=TaskStatus.FAILED, number=0, **{name: row[name] for name in _ALIKE})


def _after_place(place: Place) -> dict[str, Any]:
    return {"after_failed_at": place[0], "after_id": place[1]}


def _filters(wanted: Wanted) -> dict[str, Any]:
    refuse_unknown(wanted, Wanted)
    exception = storable(wanted.get("exception"), "exception")
    since, until = wanted.get("since"), wanted.get("until")
    return {
        **{name: storable(wanted.get(name), name) for name in ("queue", "topic", "partition_key")},
        "task_name": storable(wanted.get("task"), "task"),
        "exception": exception,
        "exception_end": None if exception is None else f".{exception}",
        "since": _FIRST[0] if since is None else aware(since, "since"),
        "until": _LAST[0] if until is None else aware(until, "until"),
    }


def _read(target: Target, ids: Iterable[UUID]) -> list[DeadLetter]:
    """Return these dead letters, newest first."""
    return [DeadLetter(**row) for row in target.run(select_given, pack_ids(target, "chosen", ids))]


def newest_groups(
    target: Target, queues: Iterable[str | None], *, limit: int, most: int, since: datetime
) -> list[DeadLetterGroup]:
    """Return up to `limit` groups of the newest `most` dead letters that have failed in these queues since a given
    time, largest group first. The queue None stands for all queues.
    """
    newest = _from_the_newest(most)
    found = (target.run(newest_with_versions, _filters({"queue": queue, "since": since}) | newest) for queue in queues)
    rows = sorted(chain.from_iterable(found), key=lambda row: (row["failed_at"], row["id"]), reverse=True)
    return grouped(rows[:most], read_at_work(target, rows))[:limit]


_dead_letter = dead_letters.c
_SAME = {
    name: sa.bindparam(name, type_=sa.Text, required=True) for name in ("queue", "task_name", "topic", "partition_key")
}
"""Filters: columns and their values. NULL matches any value."""
_exception, _exception_end = parameters(sa.Text, "exception", "exception_end")
_since, _until = parameters(Instant, "since", "until")
_one, _head_length = (sa.literal_column(str(number), sa.Integer) for number in (1, HEAD))
_ALIKE = ("queue", "task_name", "exception")
_after = sa.tuple_(*parameters(Instant, "after_failed_at"), *parameters(sa.Uuid, "after_id"))


def newest(g: Grammar) -> sa.Select[Any]:
    """Select a page of the matching dead letters, newest first, after (:after_failed_at, :after_id)."""
    return _listed(g, _next(sa.select(dead_letters), up=False))


def _next(selected: sa.Select[Any], *where: sa.ColumnElement[bool], up: bool) -> sa.Select[Any]:
    """Select up to :limit matching dead letters after (:after_failed_at, :after_id). With `up`, these are the next ones
    in order of time; otherwise, the previous ones, newest first.
    """
    place = sa.tuple_(_dead_letter.failed_at, _dead_letter.task_execution_id)
    found = selected.where(_matches(), *where, place > _after if up else place < _after)
    return found.order_by(*_order(_dead_letter, up=up)).limit(limit)


def _order(rows: Any, *, up: bool) -> tuple[Any, Any]:
    return (rows.failed_at, rows.task_execution_id) if up else (rows.failed_at.desc(), rows.task_execution_id.desc())


def _listed(g: Grammar, some: sa.Select[Any]) -> sa.Select[Any]:
    """Select these dead letters with their tasks' data, newest first."""
    execution, claim, page = task_executions.c, partition_claims.c, some.cte("page").prefix_with("MATERIALIZED")
    held = sa.select(claim.task_execution_id).where(claim.task_execution_id == page.c.task_execution_id, claim.held)
    return (
        sa.select(
            page.c.task_execution_id.label("id"),
            *(page.c[name] for name in ("task_name", "queue", "topic", "partition_key", "exception", "failed_at")),
            execution.last_error,
            execution.attempt,
            execution.recovery_attempts,
            held.correlate(page).exists().label("holds_key"),
        )
        .join_from(page, task_executions, execution.id == page.c.task_execution_id)
        .where(g.among(execution.id, page.c.task_execution_id))
        .order_by(*_order(page.c, up=False))
    )


def oldest(g: Grammar) -> sa.Select[Any]:
    """Select the next matching dead letters after (:after_failed_at, :after_id) in the snapshot :head, :open, oldest
    first.

    This statement does not lock the dead letters. The lock on the execution protects the change, and is taken before
    the lock on the dead letter.
    """
    columns = (_dead_letter.task_execution_id.label("id"), _dead_letter.failed_at)
    return _next(sa.select(*columns), _counted(g), up=True)


def oldest_with_errors(g: Grammar) -> sa.Select[Any]:
    """Select the rows of `oldest`, with the queue, the task's name, the exception and the beginning of the error."""
    return _with_errors(g, up=True)


def newest_with_errors(g: Grammar) -> sa.Select[Any]:
    """Select the same columns as `oldest_with_errors`, but for the dead letters before (:after_failed_at, :after_id),
    newest first.
    """
    return _with_errors(g)


def newest_with_versions(g: Grammar) -> sa.Select[Any]:
    """Select the rows of `newest_with_errors` with the workers' versions."""
    return _with_errors(g, with_versions=True)


def _with_errors(g: Grammar, *, up: bool = False, with_versions: bool = False) -> sa.Select[Any]:
    page = _next(sa.select(dead_letters), _counted(g), up=up).subquery("page")
    columns = (page.c.task_execution_id.label("id"), page.c.failed_at, *(page.c[name] for name in _ALIKE))
    versions = [version_of(page).label("version")] if with_versions else []
    return sa.select(*columns, _head(page).label("head"), *versions).order_by(*_order(page.c, up=up))


def select_given(g: Grammar) -> sa.Select[Any]:
    """Select the dead letters in the batch :chosen, newest first."""
    ids = g.rows("chosen", IDS).c.id
    return _listed(g, sa.select(dead_letters).where(g.among(_dead_letter.task_execution_id, ids)))


def count(g: Grammar) -> sa.Select[Any]:
    """Count the matching dead letters in the snapshot :head, :open, up to :limit."""
    some: sa.Select[Any] = sa.select(ONE.label("one")).where(_matches(), _counted(g)).limit(limit)
    return sa.select(sa.func.count().label("tasks")).select_from(some.subquery("some"))


def count_by_task(g: Grammar) -> sa.Select[Any]:
    """Count up to :limit matching dead letters in the snapshot :head, :open by task, queue and exception."""
    some = sa.select(*(_dead_letter[name] for name in _ALIKE)).where(_matches(), _counted(g)).limit(limit)
    found = some.subquery("some")
    return sa.select(*found.c, sa.func.count().label("number")).group_by(*found.c)


def _head(dead_letter: Any) -> sa.ColumnElement[str]:
    """Return the beginning of the task's error, which is looked up in the execution."""
    error: sa.ColumnElement[str] = sa.func.substr(task_executions.c.last_error, _one, _head_length, type_=sa.Text)
    found = sa.select(error).where(task_executions.c.id == dead_letter.c.task_execution_id)
    return found.correlate(dead_letter).scalar_subquery()


def _counted(g: Grammar) -> sa.ColumnElement[bool]:
    return had_failed(g, dead_letters, _dead_letter.task_execution_id)


def _matches() -> sa.ColumnElement[bool]:
    """Return the filter conditions. There are few dead letters, so all conditions except the times are checked row by
    row.
    """
    same = [sa.or_(wanted.is_(None), _dead_letter[name] == wanted) for name, wanted in _SAME.items()]
    # This matches the last part of the exception's name. A name that is not longer than :exception never equals
    # :exception_end.
    ending = sa.func.substr(
        _dead_letter.exception, sa.func.length(_dead_letter.exception) - sa.func.length(_exception), type_=sa.Text
    )
    kind = sa.or_(_exception.is_(None), _dead_letter.exception == _exception, ending == _exception_end)
    return sa.and_(_dead_letter.failed_at >= _since, _dead_letter.failed_at < _until, *same, kind)
