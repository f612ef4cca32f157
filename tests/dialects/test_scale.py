"""The cost of a call on PostgreSQL as other things grow, in pages and commands. This is the short form of `nox -s bench_scale`.

Pages and commands are counts, so other processes on the machine do not affect them. Other tests count claims beside dead entries
(`test_floors.py`), the statements of each call (`test_statement_count.py`), and waiting tasks by the size of their arguments
(`tests/contract/test_worker_throughput.py`).
"""

from __future__ import annotations

import pytest

from benchmarks import scale
from outboxq.model.periods import Every
from outboxq.store.claims import floors

FEW, MANY = 20, 100


@pytest.mark.parametrize("kind", ["plain", "keyed", "limited"])
def test_many_queues_add_few_pages_to_a_claim_or_a_check(new_url, monkeypatch, kind):
    """The bounds apply between two readings of all queues, which happen at most once a second. On a slow machine, each claim would read
    them.
    """
    for name in ("_LEAST", "_LONGEST"):
        monkeypatch.setattr(floors, name, 600.0)
    one, few, many = (scale.many_queues(new_url(), number, kind) for number in (1, FEW, MANY))
    assert many["claim"][0] <= 2 * one["claim"][0], (one, many)
    for name in ("empty claim", "announce", "look"):
        assert many[name][0] - few[name][0] < (MANY - FEW) / 2, (name, few, many)
        assert many[name][1] <= few[name][1], (name, few, many)


def test_the_cost_of_an_enqueue_does_not_depend_on_the_number_of_waiting_tasks(postgresql_url):
    alone, crowded = (scale.enqueued(postgresql_url, waiting) for waiting in (0, 2_000))
    assert alone[1] == crowded[1]
    assert crowded[0] <= 1.5 * alone[0] + 5, (alone, crowded)


def test_a_prune_takes_a_few_commands_for_each_batch(postgresql_url):
    small, large = (scale.pruned(postgresql_url, 1_000, batch) for batch in (50, 500))
    assert large[1] < small[1] / 2, (small, large)
    assert large[0] <= 1.2 * small[0], (small, large)


def test_dead_entries_add_few_pages_to_a_claim_of_many_tasks(cluster):
    clean, dead = (scale.in_batches(cluster.create_database(), dead=number) for number in (0, 4_000))
    assert dead["claim 100"][0] <= 1.2 * clean["claim 100"][0], (clean, dead)
    assert dead["claim 100"][1] <= clean["claim 100"][1]


def test_monthly_partitions_add_few_pages_to_a_claim_and_an_end(cluster):
    plain, months = (
        scale.in_batches(cluster.create_database(), past=1_000, every=every) for every in (None, Every.MONTH)
    )
    for name in ("claim 1", "claim 100", "end 100", "look-up"):
        assert months[name][0] - plain[name][0] <= 10, (name, plain, months)  # two for each of five partitions
        assert months[name][1] <= plain[name][1], (name, plain, months)


def test_verify_reads_a_few_pages_for_each_past_task(cluster):
    small, large = (scale.verified(cluster.create_database(), past) for past in (500, 2_000))
    assert large[0] <= 1.5 * small[0], (small, large)
    assert large[1] < small[1]
