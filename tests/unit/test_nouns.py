"""The modules of nouns: a noun's SQL is in the file of the transactions that run it, or in a file beside it. The store exposes the noun's
verbs by name.
"""

from __future__ import annotations

import ast
from functools import cached_property
from pathlib import Path

from outboxq import store
from outboxq.store import Store
from tests import sources
from tests.builders import MODULES, of_module

ROOMS = {module.__name__: module for module in MODULES if module.__name__.startswith(f"{store.__name__}.")}

RUN_ABOVE = {"ended_by", "make_due", "unclosed", "waiting_for_dead_letters"}
"""Statements that are run in a package above: how a claim ended, entries that become due again, and batches that need attention."""


def test_every_sql_module_has_a_module_with_its_transactions():
    alone = [name for name in ROOMS if name.endswith("_sql")]
    assert alone
    assert [name for name in alone if name.removesuffix("_sql") not in ROOMS] == []


def test_each_statement_is_run_in_its_package():
    texts: dict[str, set[str]] = {}
    for name, module in ROOMS.items():
        texts.setdefault(name.rpartition(".")[0], set()).update(names_read(Path(module.__file__)))
    built = {name: [one.__name__ for _, one in of_module(module)] for name, module in ROOMS.items()}
    assert sum(map(len, built.values())) > 100
    elsewhere = [
        one for name, builders in built.items() for one in builders if one not in texts[name.rpartition(".")[0]]
    ]
    assert set(elsewhere) == RUN_ABOVE


def names_read(path: Path) -> set[str]:
    """Return the names and attributes that a module reads."""
    tree = sources.tree(path)
    names = {one.id for one in sources.of_kind(tree, ast.Name) if isinstance(one.ctx, ast.Load)}
    return names | {one.attr for one in sources.of_kind(tree, ast.Attribute)}


def test_the_order_of_the_declarations_in_a_store_does_not_matter():
    [body] = [one.body for one in ast.parse(Path(store.__file__).read_text()).body if isinstance(one, ast.ClassDef)]
    lines = [line for line in body if isinstance(line, ast.Assign)]
    declared = {target.id for line in lines for target in line.targets if isinstance(target, ast.Name)}
    read = {one.id for line in lines for one in ast.walk(line.value) if isinstance(one, ast.Name)}
    assert declared & read == set()


def test_a_store_names_its_verbs_instead_of_inheriting_them():
    assert [one.__name__ for one in Store.__mro__] == ["Store", "Answering", "Claiming", "Transactions", "object"]


def test_verbs_that_are_not_about_tasks_are_under_their_noun():
    nouns = {name: one.func for name, one in vars(Store).items() if isinstance(one, cached_property)}
    assert {name: [verb for verb in vars(noun) if not verb.startswith("_")] for name, noun in nouns.items()} == {
        "actions": ["record", "adding", "adding_to", "begin", "get", "list", "prune"],
        "batches": [
            "create",
            "close",
            "forbid_commit",
            "get",
            "list",
            "statuses",
            "members",
            "not_completed",
            "named",
            "completed",
            "cancel",
            "continue_cancelling",
            "prune",
        ],
        "dead_letters": ["list", "oldest", "groups", "blamed_versions", "count", "parts", "redrive_all", "discard_all"],
        "inbox": ["accept", "receive", "prune"],
        "relays": [
            *(
                "declare",
                "list",
                "show",
                "pause",
                "resume",
                "remove",
                "take",
                "renew",
                "give_up",
                "sleep",
                "wake",
                "look",
                "settle",
            ),
        ],
        "log": ["tail", "tail_from_now", "tail_since", "tail_last", "state_at"],
        "maintenance_jobs": ["take", "make", "done"],
        "metrics": ["record", "series", "by_task", "of_worker", "sum_up"],
        "queues": [
            "pause",
            "resume",
            "limit",
            "order",
            "forget",
            "is_known",
            "settings",
            "list",
            "unused",
            "held_keys",
        ],
        "samples": ["latest", "series", "by_queue", "look", "count", "record", "thin_out"],
        "schedules": [
            "put",
            "edit",
            "declare",
            "get",
            "list",
            "pause",
            "resume",
            "remove",
            "trigger",
            "backfill",
            "ticks",
            "runs",
            "upcoming",
            "plant",
            "has_ticks_to_plant",
        ],
        "steps": ["of_claim", "complete", "is_written", "rewind", "after", "list"],
        "sleeping_workers": [
            "compile",
            "announce",
            "horizon",
            "look",
            "withdraw",
            "pass_on",
            "answer",
            "forget",
            "forget_ended",
        ],
        "subscriptions": ["replace", "remove", "list"],
        "time_partitions": ["make", "drop_before", "layout"],
        "worker_orders": ["give", "ask_for_stacks", "answer", "stacks", "find"],
        "workers": [
            "register",
            "seen",
            "describe",
            "unregister",
            "forget",
            "get",
            "silence",
            "list",
            "presence",
            "recovered",
        ],
    }
