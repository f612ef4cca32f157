"""Write the proofs in docs/explanation/guarantees.md: python -m tests.docs.guarantees"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outboxq.store.verify import CHECKS
from tests.docs.tables import put_between

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "guarantees.md"


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The tests that attack a promise, and the checks of `outboxq verify` that monitor it in a running system."""

    tests: Sequence[str]
    checks: Sequence[str] = ()


PROOFS: Mapping[str, Proof] = {
    "A committed task runs": Proof(
        tests=(
            "faults/test_campaign.py::test_no_task_is_lost_or_runs_twice_when_processes_die_and_the_database_is_unavailable",
            "faults/test_campaign.py::test_fifty_mostly_idle_workers_run_each_task_once_despite_an_old_snapshot",
            "contract/test_leases.py::test_a_task_completes_even_if_its_worker_dies_at_any_point",
            "faults/test_server_crash.py::test_acknowledged_commits_survive_a_crash_and_only_asynchronous_ends_may_repeat",
        ),
        checks=("ready_without_entry", "running_without_lease", "events_without_task"),
    ),
    "A claim has one holder and one outcome": Proof(
        tests=(
            "contract/test_finish.py::test_a_worker_that_lost_its_lease_changes_nothing_and_does_not_disturb_the_next_holder",
            "contract/test_finish.py::test_one_of_two_simultaneous_ends_wins",
            "faults/test_processes.py::test_a_worker_frozen_past_its_lease_changes_nothing_when_it_continues",
        ),
        checks=("claimed_twice", "ended_twice", "end_without_claim", "recovered_early"),
    ),
    "A transactional task takes effect once": Proof(
        tests=(
            "contract/test_transactional.py::test_effects_happen_exactly_once_despite_random_failures",
            "contract/test_transactional.py::test_a_commit_that_is_not_confirmed_completes_the_task_once",
            "contract/test_transactional.py::test_a_handler_that_loses_its_lease_while_it_runs_changes_nothing",
        ),
    ),
    "Tasks with one partition key run in order": Proof(
        tests=(
            "contract/test_keys.py::test_two_workers_never_run_tasks_with_the_same_key_at_the_same_time",
            "contract/test_keys_model.py::test_tasks_with_keys_are_claimed_as_a_model_predicts",
            "contract/test_keys.py::test_a_recovered_task_stays_at_the_head_of_its_key",
        ),
        checks=("key_running_twice", "key_claimed_twice", "position_taken_twice"),
    ),
    "Every change is recorded": Proof(
        tests=(
            "contract/test_replay.py::test_replaying_events_reproduces_the_row_at_every_moment",
            "contract/test_finish.py::test_an_end_is_rolled_back_if_its_event_is_refused",
        ),
        checks=("status_differs_from_events", "counters_differ_from_events", "birth_not_recorded_once"),
    ),
    "A due task is noticed": Proof(
        tests=(
            "contract/test_distributor.py::test_no_wake_up_is_lost_in_60_rounds",
            "contract/test_distributor.py::test_a_task_committed_between_the_claim_and_the_wait_is_not_missed",
            "faults/test_listener.py::test_a_worker_is_woken_for_missed_tasks_when_it_listens_again",
        ),
        checks=("claimed_early",),
    ),
    "An idempotency key creates one task": Proof(
        tests=(
            "contract/test_idempotency.py::test_the_second_of_two_concurrent_transactions_with_the_same_key_waits_and_is_not_aborted",
            "contract/test_idempotency.py::test_fifty_callers_with_few_keys_leave_exactly_one_task_for_each_committed_key",
        ),
        checks=("key_lost", "key_differs_from_birth", "key_expiry_differs_from_birth"),
    ),
    "A completed step is not called again": Proof(
        tests=(
            "faults/test_steps.py::test_a_task_killed_between_any_two_statements_of_its_steps_repeats_no_completed_step",
            "faults/test_steps.py::test_a_long_task_killed_at_every_point_repeats_no_completed_step",
        ),
        checks=("step_lost",),
    ),
    "A batch enqueues its follow-up once": Proof(
        tests=(
            "contract/test_batch_races.py::test_simultaneous_ends_enqueue_the_then_task_once",
            "contract/test_batch_races.py::test_a_task_can_be_added_while_the_last_one_ends",
        ),
        checks=("batch_counts_differ", "batch_lost", "batch_completed_early"),
    ),
    "A committed event reaches the broker": Proof(
        tests=(
            "contract/test_broker_relays.py::test_order_is_kept_after_a_failure",
            "contract/test_broker_relays.py::test_a_late_commit_is_neither_lost_nor_overtaken",
            "contract/test_broker_relays.py::test_a_second_sender_takes_over_while_the_first_one_publishes",
            "contract/test_broker_relays.py::test_a_settlement_after_the_lease_is_lost_writes_nothing",
            "brokers/test_campaign.py::test_each_committed_event_takes_effect_once_and_in_order",
        ),
        checks=(
            "message_without_relay",
            "topic_without_relay",
            "shard_missing",
            "shard_lease_ends_too_late",
            "relay_waits_too_long",
        ),
    ),
    "A received message becomes one task": Proof(
        tests=(
            "contract/test_receivers.py::test_a_message_that_arrives_again_is_dropped_and_acknowledged",
            "contract/test_receivers.py::test_nothing_is_acknowledged_if_the_database_fails",
            "contract/test_receivers.py::test_a_message_and_its_task_are_stored_in_one_transaction",
            "contract/test_inbox.py::test_a_second_arrival_waits_for_the_first",
            "contract/test_webhook_sources.py::test_a_webhook_in_several_simultaneous_requests_becomes_one_task",
            "brokers/test_campaign.py::test_each_committed_event_takes_effect_once_and_in_order",
        ),
    ),
    "A tick becomes at most one task": Proof(
        tests=(
            "contract/test_planting.py::test_two_simultaneous_planters_create_one_task_for_a_tick",
            "contract/test_planting.py::test_each_tick_is_planted_only_once_if_the_schedule_is_paused_and_resumed",
        ),
        checks=("task_without_tick", "tick_differs_from_task"),
    ),
}
"""The promises, in the order of the page, each with its tests and checks."""


MEANINGS = {
    name: meaning for main, check in CHECKS.items() for name, meaning in {main: check.meaning, **check.also}.items()
}
"""The meaning of each check, including those that are made together with another one."""


def proofs() -> str:
    """Return a list for each promise: the tests, and the checks with their meanings."""
    lines = []
    for promise, proof in PROOFS.items():
        lines += [f"### {promise}", ""]
        for test in proof.tests:
            file, _, name = test.partition("::")
            sentence = name.removeprefix("test_").replace("_", " ")
            lines.append(f"* Test: {sentence} (`tests/{file}`)")
        lines += [f"* `outboxq verify`, `{name}`: {MEANINGS[name]}" for name in proof.checks]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    put_between(PAGE, "proofs", proofs())
