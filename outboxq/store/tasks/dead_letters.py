"""List, group, count, redrive and discard dead letters."""

from __future__ import annotations

import builtins
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, TypedDict, Unpack
from uuid import UUID

import sqlalchemy as sa

from ...database.column_types import Instant
from ...database.dialects import Begin
from ...database.grammar import ONE, Grammar, limit
from ...database.tables import dead_letters, partition_claims, task_executions
from ...database.target import Target
from ...errors import DuplicateTask, InvalidArgument, InvalidTransition, OutboxqError
from ...model import EventType, TaskStatus
from ...model.display import HEAD
from ...model.unknown_options import Answering
from ..arguments import aware, identifier, parameters, positive, storable
from ..task_rows import IDS, pack_ids
from ..transactions import Noun
from .cancelling import Part
from .chains import futile_redrives
from .dead_letter_groups import (
    DeadLetterGroup,
    DeadLetterGroups,
    group_id,
    grouped,
    read_at_work,
    version_of,
    with_groups,
)
from .event_log import Count, Snapshot, counted_to, had_failed
from .idempotency import regain_keys
from .operations import OnChange, change_all

log = logging.getLogger("outboxq.store")

LOOKED_AT = 10_000
"""Maximum number of dead letters that are grouped, newest first."""
_BATCH = 500
_LOOKS = (500, 2_500, LOOKED_AT - 3_000)
"""The numbers of dead letters that successive rounds search for members of a group."""
_BLAMED, _BLAMED_WITHIN = 2_000, timedelta(hours=1)
"""Maximum number of recent dead letters that are searched for a version at fault."""
_NAMED = 10
"""Maximum number of skipped dead letters that the warning names."""
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
        values = _filters(wanted) | {
            "limit": positive(limit),
            "after_failed_at": aware(failed_at, "after"),
            "after_id": identifier(last),
        }
        if (group := group_id(wanted.get("group"))) is not None:
            return self._of_group(group, values, using)
        return [DeadLetter(**row) for row in self._store.run_one(newest, **values, using=using)]

    def _of_group(self, group: str, values: dict[str, Any], using: object) -> builtins.list[DeadLetter]:
        """Return the members of a group among the next 10,000 dead letters."""

        def work(target: Target) -> builtins.list[DeadLetter]:
            wanted, ids, given = values["limit"], builtins.list[UUID](), dict(values)
            for given["limit"] in _LOOKS:
                rows = target.run(newest_with_errors, given)
                ids += [row["id"] for row, mine in with_groups(rows) if mine == group]
                if len(rows) < given["limit"] or len(ids) >= wanted:
                    break
                given["after_failed_at"], given["after_id"] = rows[-1]["failed_at"], rows[-1]["id"]
            packed = pack_ids(target, "chosen", ids[:wanted])
            return [DeadLetter(**row) for row in target.run(select_given, packed)]

        return self._store.run(work, using=using, begin=Begin.READ)

    def oldest(self, *, limit: int = 100, using: object = None, **wanted: Unpack[Wanted]) -> builtins.list[DeadLetter]:
        """Return up to `limit` matching dead letters, oldest first, in the order in which `redrive_all` and
        `discard_all` change them.

        With `group`, only the oldest 10,000 dead letters that match the other filters are searched. Raises
        InvalidArgument.
        """
        group, values = group_id(wanted.get("group")), _filters(wanted)
        (values["after_failed_at"], values["after_id"]), most = _FIRST, positive(limit)

        def work(target: Target) -> builtins.list[DeadLetter]:
            if group is None:
                ids = [row["id"] for row in target.run(oldest, {**values, "limit": most})]
            else:
                rows = target.run(oldest_with_errors, {**values, "limit": LOOKED_AT})
                ids = [row["id"] for row, mine in with_groups(rows) if mine == group][:most]
            packed = pack_ids(target, "chosen", ids)
            return [DeadLetter(**row) for row in reversed(target.run(select_given, packed))]

        return self._store.run(work, using=using, begin=Begin.READ)

    def groups(
        self, *, limit: int = 100, most: int = LOOKED_AT, using: object = None, **wanted: Unpack[Wanted]
    ) -> DeadLetterGroups:
        """Return up to `limit` groups of the newest `most` matching dead letters, largest group first. Raises
        InvalidArgument.

        Reading and grouping 2,000 dead letters takes about 20 ms, and 10,000 about 100 ms.
        """
        read = partial(groups_in, limit=positive(limit), most=positive(most, "most"), **wanted)
        return self._store.run(read, using=using, begin=Begin.READ)

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
            found = sum(mine == group for _, mine in with_groups(rows[:most]))
            return counted_to(most, found, cut=len(rows) > most, snapshot=now)

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
            values |= {"after_failed_at": _FIRST[0], "after_id": _FIRST[1]}
            listed = self._store.run_one(oldest_with_errors, **values, using=using)
            mine = [row for row, other in with_groups(listed) if group in {None, other}][:limit]
            found = Counter((row["task_name"], row["queue"], row["exception"]) for row in mine)
        elif group is None:
            rows = self._store.run_one(count_by_task, **values, using=using)
            found = Counter({(row["task_name"], row["queue"], row["exception"]): row["number"] for row in rows})
        else:
            listed = self._store.run_one(newest_with_errors, **{**values, **_from_the_newest(most)}, using=using)
            found = Counter(
                (row["task_name"], row["queue"], row["exception"]) for row, mine in with_groups(listed) if mine == group
            )
        made = (
            Part(task_name=name, queue=queue, status=TaskStatus.FAILED, number=number, exception=exception)
            for (name, queue, exception), number in found.items()
        )
        return sorted(made, key=lambda part: (-part.number, part.task_name, part.queue, part.exception or ""))

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
        change = partial(self._change_all, EventType.REQUEUED, 1, reason, snapshot=snapshot, limit=limit)
        return change(on_progress=on_progress, stop=stop, on_change=on_change, using=using, wanted=wanted)

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
        change = partial(self._change_all, EventType.DISCARDED, None, reason, snapshot=snapshot, limit=limit)
        return change(on_progress=on_progress, stop=stop, on_change=on_change, using=using, wanted=wanted)

    def _change_all(
        self,
        event_type: EventType,
        attempt: int | None,
        reason: str,
        *,
        snapshot: Snapshot | None,
        limit: int | None,
        on_progress: Callable[[int], None] | None,
        stop: Callable[[], bool] | None,
        on_change: OnChange | None,
        using: object,
        wanted: Wanted,
    ) -> int:
        left = None if limit is None else positive(limit)
        group, values = group_id(wanted.get("group")), _filters(wanted)
        left_out: dict[UUID, OutboxqError] = {}
        values |= (snapshot or self._store.run(Snapshot.take, using=using, begin=Begin.READ)).values
        (values["after_failed_at"], values["after_id"]), moved = _FIRST, 0
        read = oldest if group is None else oldest_with_errors
        while (left is None or moved < left) and not (stop is not None and stop()):
            values["limit"] = _BATCH if left is None or group is not None else min(_BATCH, left - moved)
            found = self._store.run_one(read, **values, using=using)
            if not found:
                break
            values["after_failed_at"], values["after_id"] = found[-1]["failed_at"], found[-1]["id"]
            if group is not None:
                mine = [row for row, other in with_groups(found) if other == group]
                found = mine[: None if left is None else left - moved]
                if not found:
                    continue
                if len(found) < len(mine):  # some of these may be left out, so the next ones are read again
                    values["after_failed_at"], values["after_id"] = found[-1]["failed_at"], found[-1]["id"]
            chosen = {row["id"] for row in found}
            refused = partial(self._refused, chosen, left_out) if event_type is EventType.REQUEUED else lambda _: ()
            moved += change_all(
                self._store,
                chosen,
                event_type,
                attempt=attempt,
                reason=reason,
                refused=refused,
                on_change=on_change,
                using=using,
                from_ready=False,
                from_running=False,
                from_failed=True,
            )
            if on_progress is not None:
                on_progress(moved)
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
    return {"limit": limit, "after_failed_at": _LAST[0], "after_id": _LAST[1]}


def _filters(wanted: Wanted) -> dict[str, Any]:
    if unknown := wanted.keys() - Wanted.__annotations__.keys():
        raise InvalidArgument(
            f"unknown filter {', '.join(sorted(unknown))}; the filters are {', '.join(Wanted.__annotations__)}"
        )
    exception = storable(wanted.get("exception"), "exception")
    since, until = wanted.get("since"), wanted.get("until")
    return {
        "queue": storable(wanted.get("queue"), "queue"),
        "task_name": storable(wanted.get("task"), "task"),
        "topic": storable(wanted.get("topic"), "topic"),
        "partition_key": storable(wanted.get("partition_key"), "partition_key"),
        "exception": exception,
        "exception_end": None if exception is None else f".{exception}",
        "since": _FIRST[0] if since is None else aware(since, "since"),
        "until": _LAST[0] if until is None else aware(until, "until"),
    }


def groups_in(target: Target, *, limit: int, most: int, **wanted: Unpack[Wanted]) -> DeadLetterGroups:
    """Read the result of `DeadLetters.groups` in this transaction."""
    group = group_id(wanted.get("group"))
    rows = target.run(newest_with_versions, _filters(wanted) | _from_the_newest(most + 1))
    found = [one for one in grouped(rows[:most], read_at_work(target, rows)) if group in {None, one.id}]
    is_complete = len(rows) <= most and len(found) <= limit
    return DeadLetterGroups(groups=found[:limit], looked_at=min(len(rows), most), is_complete=is_complete)


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
_after = sa.tuple_(
    sa.bindparam("after_failed_at", type_=Instant, required=True),
    sa.bindparam("after_id", type_=sa.Uuid, required=True),
)


def newest(g: Grammar) -> sa.Select[Any]:
    """Select a page of the matching dead letters, newest first, after (:after_failed_at, :after_id)."""
    page = (
        sa.select(dead_letters)
        .where(_matches(), sa.tuple_(_dead_letter.failed_at, _dead_letter.task_execution_id) < _after)
        .order_by(_dead_letter.failed_at.desc(), _dead_letter.task_execution_id.desc())
        .limit(limit)
        .cte("page")
        .prefix_with("MATERIALIZED")
    )
    return _listed(g, page)


def _listed(g: Grammar, page: Any) -> sa.Select[Any]:
    """Select these dead letters with their tasks' data, newest first."""
    execution, claim = task_executions.c, partition_claims.c
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
        .order_by(page.c.failed_at.desc(), page.c.task_execution_id.desc())
    )


def oldest(g: Grammar) -> sa.Select[Any]:
    """Select the next matching dead letters after (:after_failed_at, :after_id) in the snapshot :head, :open, oldest
    first.

    This statement does not lock the dead letters. The lock on the execution protects the change, and is taken before
    the lock on the dead letter.
    """
    return (
        sa.select(_dead_letter.task_execution_id.label("id"), _dead_letter.failed_at)
        .where(_matches(), _counted(g), sa.tuple_(_dead_letter.failed_at, _dead_letter.task_execution_id) > _after)
        .order_by(_dead_letter.failed_at, _dead_letter.task_execution_id)
        .limit(limit)
    )


def oldest_with_errors(g: Grammar) -> sa.Select[Any]:
    """Select the rows of `oldest`, with the queue, the task's name, the exception and the beginning of the error."""
    after = sa.tuple_(_dead_letter.failed_at, _dead_letter.task_execution_id) > _after
    return _with_errors(g, after, (_dead_letter.failed_at, _dead_letter.task_execution_id))


def newest_with_errors(g: Grammar) -> sa.Select[Any]:
    """Select the same columns as `oldest_with_errors`, but for the dead letters before (:after_failed_at, :after_id),
    newest first.
    """
    return _newest(g, with_versions=False)


def newest_with_versions(g: Grammar) -> sa.Select[Any]:
    """Select the rows of `newest_with_errors` with the workers' versions."""
    return _newest(g, with_versions=True)


def _newest(g: Grammar, *, with_versions: bool) -> sa.Select[Any]:
    before = sa.tuple_(_dead_letter.failed_at, _dead_letter.task_execution_id) < _after
    order = (_dead_letter.failed_at.desc(), _dead_letter.task_execution_id.desc())
    return _with_errors(g, before, order, with_versions=with_versions)


def _with_errors(
    g: Grammar, where: sa.ColumnElement[bool], order: Sequence[Any], *, with_versions: bool = False
) -> sa.Select[Any]:
    page = sa.select(dead_letters).where(_matches(), _counted(g), where).order_by(*order).limit(limit).subquery("page")
    columns = (page.c.task_execution_id.label("id"), page.c.failed_at, *(page.c[name] for name in _ALIKE))
    found = sa.select(*columns, _head(page).label("head"))
    found = found.add_columns(version_of(page).label("version")) if with_versions else found
    down = order[0] is not _dead_letter.failed_at
    by = (page.c.failed_at, page.c.task_execution_id)
    return found.order_by(*(column.desc() if down else column for column in by))


def select_given(g: Grammar) -> sa.Select[Any]:
    """Select the dead letters in the batch :chosen, newest first."""
    ids = g.rows("chosen", IDS).c.id
    page = (
        sa.select(dead_letters)
        .where(g.among(_dead_letter.task_execution_id, ids))
        .cte("page")
        .prefix_with("MATERIALIZED")
    )
    return _listed(g, page)


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
