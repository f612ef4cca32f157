"""A campaign: a shop publishes events to a broker and a billing service receives them, while processes and the broker are killed."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from outboxq import Outbox
from tests.brokers.benches import Bench, write_place
from tests.brokers.faulty import is_refused
from tests.brokers.relaying import shop
from tests.conftest import Database
from tests.fleet import Fleet, Member, figures, of_relays, of_tasks, unsettled
from tests.waiting import until

AT_ONCE = 25
"""The number of events in one transaction."""
LOST = "another worker has shard"
"""The log message of a process that has lost its lease."""
OPEN = """
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
"""
"""The transactions of other sessions of this database."""
EACH_ROLLED_BACK = 12
"""The number of transactions of which one is rolled back."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The size of a campaign."""

    events: int
    keys: int
    kills: int
    crashes: int
    patience: float = 1800.0
    """The maximum number of seconds until the last effect."""

    def key_of(self, number: int) -> str:
        return f"key-{number % self.keys}"


@dataclass(frozen=True)
class Attempt:
    """An attempt to publish an event."""

    at: float
    """The time at which it started."""
    pid: int
    number: int
    outcome: str | None
    """The outcome, or None if the process was killed before the answer."""


@dataclass(eq=False)
class Campaign:
    """A campaign that runs as planned and records the outcome."""

    plan: Plan
    bench: Bench
    database: Database
    theirs: Database
    """The billing service's database."""
    folder: Path
    committed: set[int] = field(default_factory=set)
    transactions: int = 0
    crashes: int = 0
    _unsettled: dict[int, set[int]] = field(default_factory=dict)
    """For each killed process, the events that were not yet published and deleted when it was killed."""

    def run(self) -> None:
        write_place(self.folder / "transport", self.bench.routed())
        write_place(self.folder / "source", self.bench.source())
        auto = "BIGSERIAL" if self.theirs.name == "postgresql" else "INTEGER"
        self.theirs.run(f"CREATE TABLE effects (id {auto} PRIMARY KEY, number INTEGER NOT NULL)")
        relays, billing = self._fleets()
        self.relays = relays
        with billing, relays:
            [service] = billing.members
            until(lambda: self.theirs.rows("SELECT id FROM workers"))  # if frozen while it connects, it gives up
            for step in range(self.plan.kills):
                if step % 2 == 0:  # so that the messages then arrive in large batches, including repetitions
                    until(lambda: self._is_frozen(service))
                self._strike(step)
                if step % 2 == 1:
                    service.process.send_signal(signal.SIGCONT)
            with suppress(AssertionError):
                until(lambda: not self._waiting(), seconds=self.plan.patience, every=0.1)
            service.process.send_signal(signal.SIGCONT)
            with suppress(AssertionError):  # `check` reports missing effects
                until(self._is_over, seconds=self.plan.patience, every=0.1)
            for one in (*relays.members, *billing.members):
                assert one.process.poll() is None, one.log.read_text()

    def check(self) -> None:
        """Compare the effects with the committed events."""
        expected = self.committed - self.refused
        assert Counter(self.effects) - Counter(expected) == Counter(), (
            "an event had a second effect or was not committed"
        )
        assert expected - {*self.effects} == set(), (
            f"effects of events are missing, and {self._waiting()} events are waiting"
        )
        for key in range(self.plan.keys):
            mine = [number for number in self.effects if number % self.plan.keys == key]
            assert mine == sorted(mine), f"first deliveries of key-{key} are out of order: {mine}"
        letters = self.database.store.dead_letters.list(limit=self.plan.events)
        assert len(letters) == len(self.refused), {one.last_error for one in letters}
        assert set(self.attempts) <= self.committed, "an event of a rolled-back transaction was published"
        for number, attempts in self.attempts.items():
            for earlier in attempts[:-1]:
                assert self._is_excused(earlier), f"event {number} was published again without a fault: {attempts}"
            assert self.stored[number] <= len(attempts), f"the broker has event {number} {self.stored[number]} times"
        for one in (self.database, self.theirs):
            assert one.store.verify() == []

    def figures(self) -> str:
        again = sum(count - 1 for count in self.stored.values() if count > 1)
        dropped = sum(self.delivered.values()) - len(self.effects)
        known = figures(self.plan.events, self.committed, self.refused, self.relays)
        return (
            f"{type(self.bench).__name__} on {self.database.name}: {known}, {self.crashes} crashes of the broker, "
            f"{again} stored again, {dropped} dropped by the inbox, {len(self.effects)} effects"
        )

    @property
    def refused(self) -> set[int]:
        return {number for number in self.committed if is_refused(number)}

    @cached_property
    def effects(self) -> list[int]:
        """The numbers of the events, in the order of their effects."""
        return [int(str(number)) for (number,) in self.theirs.rows("SELECT number FROM effects ORDER BY id")]

    @cached_property
    def stored(self) -> Counter[int]:
        """The number of copies of each event in the broker."""
        return Counter(json.loads(body)["data"]["number"] for body in self.bench.stored())

    @property
    def delivered(self) -> Counter[int]:
        """The number of times that the billing service has received each event."""
        paths = self.folder.glob("delivered-*")
        return Counter(number for path in paths for _, numbers in _lines(path) for number in numbers)

    @cached_property
    def attempts(self) -> dict[int, list[Attempt]]:
        """The attempts to publish each event, in order."""
        found: defaultdict[int, list[Attempt]] = defaultdict(list)
        for path in self.folder.glob("published-*"):
            pid, calls = _pid(path), list(_lines(path))
            for (at, (kind, sent)), (_, (following, told)) in pairwise([*calls, (0.0, ("end", ()))]):
                outcomes = told if following == "told" else {}
                for number in sent if kind == "sent" else ():
                    found[number].append(Attempt(at, pid, number, outcomes.get(str(number))))
        return {number: sorted(attempts, key=lambda one: one.at) for number, attempts in found.items()}

    def _is_excused(self, attempt: Attempt) -> bool:
        """Return whether the event had to be published again: it was not confirmed, or its process could no longer delete it."""
        if attempt.outcome in {None, "Unsure"} or attempt.number in self._unsettled.get(attempt.pid, ()):
            return True
        # On a busy machine, a process may have paused for longer than its lease.
        return any(LOST in one.log.read_text() for one in self.relays.all if one.pid == attempt.pid)

    def _fleets(self) -> tuple[Fleet, Fleet]:
        outbox = shop(self.bench.transport())
        self.database.store.relays.declare([outbox.tasks.relays["orders"].declared])
        self.database.store.subscriptions.replace(outbox.subscriptions)
        self.sender, self.chance = Outbox(self.database.host), random.Random(self.plan.events)
        folder = str(self.folder)
        command = ["relay", "run", "tests.brokers.relaying:outbox"]
        relays = Fleet(self.database, self.folder, command, let_leases_run_out=self._bury, CAMPAIGN=folder)
        command = ["worker", "tests.brokers.billing:outbox", "--concurrency", "4"]
        return relays, Fleet(self.theirs, self.folder, command, size=1, let_leases_run_out=of_tasks, CAMPAIGN=folder)

    def _is_frozen(self, service: Member) -> bool:
        """Freeze the billing service, and return whether it is between two transactions. If it is not, let it run again.

        Both services' databases are on one server, so the relays would wait until the frozen transaction has ended.
        """
        service.process.send_signal(signal.SIGSTOP)
        if self.theirs.name == "postgresql" and self.theirs.rows(OPEN):
            service.process.send_signal(signal.SIGCONT)
            return False
        return True

    def _bury(self, database: Database, gone: Member) -> None:
        """Remember the events that a killed process may have published but not deleted, before other processes get its shards."""
        self._unsettled[gone.pid] = unsettled(database)
        of_relays(database, gone)

    def _strike(self, step: int) -> None:
        """Commit events, and kill a relay process while it publishes them. Sometimes, crash the broker too."""
        plan = self.plan
        first, end = plan.events * step // plan.kills, plan.events * (step + 1) // plan.kills
        for number in range(first, end, AT_ONCE):
            self._emit(range(number, min(number + AT_ONCE, end)))
        until(lambda: self._waiting() <= end - first, seconds=plan.patience)
        written = self._written()
        until(lambda: self._written() > written or not self._waiting(), seconds=plan.patience)
        time.sleep(self.chance.uniform(0, 0.05))  # a random moment in its work
        self.relays.kill(max(self.relays.members, key=lambda one: self._last_write(one.pid)))
        every = max(1, plan.kills // plan.crashes)
        if step % every == every // 2 and self.crashes < plan.crashes:
            self.bench.server.crash()
            self.crashes += 1

    def _emit(self, numbers: range) -> None:
        """Emit the events in one transaction, and commit it or roll it back."""
        with Session(self.database.host) as session:
            for number in numbers:
                key = self.plan.key_of(number)
                self.sender.emit("order.paid", {"number": number}, using=session, partition_key=key)
            self.transactions += 1
            if self.transactions % EACH_ROLLED_BACK == EACH_ROLLED_BACK // 2:
                session.rollback()
            else:
                session.commit()
                self.committed.update(numbers)

    def _waiting(self) -> int:
        return int(str(self.database.rows("SELECT count(*) FROM relay_messages")[0][0]))

    def _is_over(self) -> bool:
        """Return whether the broker has every event and the billing service has received all of them and has no tasks left."""
        if self._waiting():
            return False
        counts = "SELECT (SELECT count(*) FROM effects), (SELECT count(*) FROM task_outbox) + (SELECT count(*) FROM task_leases)"
        [(done, left)] = self.theirs.rows(counts)
        if left or int(str(done)) < len(self.committed - self.refused):
            return False
        return self.delivered.total() >= self.stored.total()

    def _written(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("published-*"))

    def _last_write(self, pid: int) -> float:
        path = self.folder / f"published-{pid}"
        return path.stat().st_mtime if path.exists() else 0.0


def _lines(path: Path) -> Iterator[tuple[float, Any]]:
    """Yield the time and the value of each line."""
    return map(json.loads, path.read_text().splitlines())


def _pid(path: Path) -> int:
    return int(path.name.rpartition("-")[2])
