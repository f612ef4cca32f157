"""Threads that use an Outbox for the first time simultaneously."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from outboxq import Outbox

THREADS, ROUNDS = 8, 50


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    """Switch threads so often that several of them are inside any function at once."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_that_create_the_store_simultaneously_share_it(tmp_path):
    for _ in range(ROUNDS):
        outbox, barrier = Outbox(f"sqlite:///{tmp_path}/outbox.db"), threading.Barrier(THREADS)

        def store(_: int, outbox: Outbox = outbox, barrier: threading.Barrier = barrier) -> int:
            barrier.wait(60)
            return id(outbox.store)

        with ThreadPoolExecutor(THREADS) as pool:
            assert set(pool.map(store, range(THREADS))) == {id(outbox.store)}
