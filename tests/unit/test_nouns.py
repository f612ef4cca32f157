"""One noun has one name: the SQL of a noun and the transactions that run it lie in files of the same name."""

from __future__ import annotations

import pkgutil
from functools import cached_property

from outboxq import store
from outboxq.database import statements
from outboxq.store import Store

SHARED = {"channel", "grammar", "limits", "table_locks", "task_rows"}
"""Parts of several nouns' statements; `channel` is the worker's, which listens, and `table_locks` is for all that wait for a lock."""


def names(package) -> set[str]:
    return {name for _, name, _ in pkgutil.iter_modules(package.__path__)}


def test_statements_are_run_by_the_file_of_their_name():
    assert names(statements) - names(store) == SHARED


def test_a_store_has_its_verbs_by_name_and_not_by_inheritance():
    assert [one.__name__ for one in Store.__mro__] == ["Store", "Claiming", "Transactions", "object"]


def test_what_is_not_about_tasks_stands_by_its_noun():
    nouns = {name: one.func for name, one in vars(Store).items() if isinstance(one, cached_property)}
    assert {name: [verb for verb in vars(noun) if not verb.startswith("_")] for name, noun in nouns.items()} == {
        "batches": [
            "create",
            "close",
            "forbid_commit",
            "ensure_current",
            "get",
            "list",
            "statuses",
            "members",
            "completed",
            "cancel",
            "continue_cancelling",
            "prune",
        ],
        "dead_letters": ["list", "oldest", "groups", "count", "redrive_all", "discard_all"],
        "log": ["tail", "tail_from_now", "tail_since", "tail_last", "state_at"],
        "maintenance_jobs": ["take", "make", "done"],
        "metrics": ["record", "series", "sum_up"],
        "queues": ["pause", "resume", "limit", "order", "forget", "is_known", "settings", "list", "held_keys"],
        "samples": ["latest", "series", "by_queue", "look", "count", "record", "thin_out"],
        "schedules": [
            "put",
            "declare",
            "get",
            "list",
            "pause",
            "resume",
            "remove",
            "trigger",
            "backfill",
            "ticks",
            "upcoming",
            "plant",
        ],
        "steps": ["ensure_usable", "of_claim", "complete", "is_written", "rewind", "after", "list"],
        "sleeping_workers": ["compile", "announce", "horizon", "look", "withdraw", "forget", "forget_ended"],
        "subscriptions": ["replace", "remove", "list"],
        "time_partitions": ["make", "drop_before", "layout"],
        "workers": ["register", "seen", "describe", "unregister", "list", "presence", "taken_back"],
    }
