"""Threads that compile their first statements at the same time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from outboxq.database.dialects.postgresql_grammar import PostgresGrammar
from outboxq.database.dialects.sqlite_grammar import SqliteGrammar

THREADS, ROUNDS = 8, 100


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    """Switch threads so often that several of them are inside any function at once."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("grammar_class", [PostgresGrammar, SqliteGrammar])
def test_threads_that_compile_statements_first_share_one_topics_relation(grammar_class):
    for _ in range(ROUNDS):
        grammar, barrier = grammar_class(None), threading.Barrier(THREADS)

        def topics(_: int, grammar=grammar, barrier=barrier) -> int:
            barrier.wait(60)
            return id(grammar.topics)

        with ThreadPoolExecutor(THREADS) as pool:
            assert len(set(pool.map(topics, range(THREADS)))) == 1
