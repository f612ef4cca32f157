from __future__ import annotations

import itertools

import pytest

from tests.faults.workers import Worker


@pytest.fixture
def start(database, tmp_path):
    """Start worker processes on the test's database; none outlives the test."""
    started: list[Worker] = []
    numbers = itertools.count()

    def start_worker(*options: str) -> Worker:
        worker = Worker(database.url, tmp_path / f"worker-{next(numbers)}.log", *options)
        started.append(worker)
        return worker

    yield start_worker
    for worker in started:
        worker.end()
