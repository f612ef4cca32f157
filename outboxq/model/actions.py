"""The changes that people make, each with its operator, front end, target and reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from .uuid7 import uuid7


class Interface(StrEnum):
    """The front end with which a person makes a change. It is stored as one of these strings."""

    COMMAND_LINE = "command line"
    DASHBOARD = "dashboard"
    ADMIN = "admin"
    """Django's admin."""
    PROGRAM = "program"
    """The application's own code, such as a page for its support staff."""


class CommandAction(StrEnum):
    """The changes that people make with commands other than verbs, named after these commands."""

    ENQUEUE = "enqueue"
    """A task was enqueued in the dashboard. The command `outboxq enqueue` is not recorded, because programs use it too.
    """
    PRUNE = "prune"
    SCHEDULE_ADD = "schedule add"
    SCHEDULE_ADD_RETENTION = "schedule add-retention"
    SCHEDULE_BACKFILL = "schedule backfill"
    SUBSCRIPTION_REMOVE = "subscription remove"
    TASK_RERUN = "task rerun"


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """A person who makes a change."""

    interface: Interface
    name: str = ""
    """The person's name; "" if it is unknown."""

    @property
    def words(self) -> str:
        """The person and the front end, such as "by ann in the dashboard"."""
        return " ".join(filter(None, (f"by {self.name}" if self.name else "", _WHERE[self.interface])))

    def because(self, reason: str) -> str:
        """Return the reason to record in histories: the person's own words, followed by the person's name and the front
        end.
        """
        return f"{reason} ({self.words})" if reason else self.words


_WHERE = {
    Interface.COMMAND_LINE: "on the command line",
    Interface.DASHBOARD: "in the dashboard",
    Interface.ADMIN: "in the admin",
    Interface.PROGRAM: "in a program",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class NewAction:
    """A change that a person is about to make."""

    operator: Operator
    action: str
    """The words of the equivalent command, such as "queue pause"."""
    target: str | None = None
    """The id of the task or batch, or the name of the queue or schedule; None if the change applies to everything that
    matches the filters.
    """
    details: Mapping[str, Any] = field(default_factory=dict)
    """The values or the filters that the person gave, as they are shown to people."""
    reason: str = ""
    id: UUID = field(default_factory=uuid7)


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorAction:
    """A change that a person has made."""

    id: UUID
    at: datetime
    operator: str | None
    """The person's name; None if it is unknown."""
    interface: str
    """The front end: a value of `Interface`."""
    action: str
    """The words of the equivalent command, such as "queue pause"."""
    target: str | None
    """The id or the name of the changed object; None if the change applied to everything that matched the filters in
    `details`.
    """
    details: Mapping[str, Any]
    """The values or the filters that the person gave. The record of a resume keeps the reason for the pause as
    `pause_reason`.
    """
    reason: str | None
    changed: int
    """The number of changes. While a bulk change is running, only the changes committed so far are counted."""
