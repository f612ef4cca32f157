"""One noun has one name: the SQL of a noun and the transactions that run it lie in files of the same name."""

from __future__ import annotations

import pkgutil

from outboxq import store
from outboxq.database import statements
from outboxq.store import Store

SHARED = {"channel", "clock", "effects", "grammar", "limits"}
"""Parts of several nouns' statements; `channel` is the worker's, which listens."""


def names(package) -> set[str]:
    return {name for _, name, _ in pkgutil.iter_modules(package.__path__)}


def test_statements_are_run_by_the_file_of_their_name():
    assert names(statements) - names(store) == SHARED


def test_a_store_has_its_verbs_by_name_and_not_by_inheritance():
    assert [one.__name__ for one in Store.__mro__] == ["Store", "Claiming", "Transactions", "object"]
