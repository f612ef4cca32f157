"""Break the code on purpose and see the tests notice: `nox -s mutants`.

Each mutant is one mistake that a queue is known to be written with. It is made in a copy of the repository; at least one of
the named tests must fail there. A mutant that survives, or whose text is no longer found, fails the run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")


@dataclass(frozen=True)
class Mutant:
    mistake: str
    file: str
    changes: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        "a command that deletes is suggested for a word that only resembles its name",
        "outboxq/cli/guesses.py",
        (("if one not in _DESTRUCTIVE or", "if True or"),),
        ("tests/unit/test_guesses.py",),
    ),
    Mutant(
        "an event of a relay is published before the answer to an earlier one of its key",
        "outboxq/worker/relays/publishing.py",
        (("if key is None or key not in seen:", "if True:"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a relay publishes the later events of a key after an unsure one",
        "outboxq/worker/relays/publishing.py",
        (("one.id in report.unsure or (holds", "False or (holds"),),
        ("tests/unit/test_publishing.py",),
    ),
    Mutant(
        "a relay publishes the later events of a batch after a refused one that holds its key",
        "outboxq/worker/relays/publishing.py",
        (("(holds and one.id in report.refused)", "False"),),
        ("tests/unit/test_publishing.py",),
    ),
    Mutant(
        "an event is refused because the broker went away",
        "outboxq/worker/relays/publishing.py",
        (("if len(report.confirmed) == confirmed_before:", "if False:"),),
        ("tests/unit/test_publishing.py",),
    ),
    Mutant(
        "an event with which every call raises an error stops its relay",
        "outboxq/worker/relays/sender.py",
        (("self.care = Care.SEARCH if self.has_raised else Care.NONE", "self.care = Care.NONE"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a relay reads events above the horizon",
        "outboxq/store/messages/relays_sql.py",
        (("_m.id <= _settled, has_lease]", "has_lease]"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a sender that has lost its lease settles",
        "outboxq/store/messages/relays_sql.py",
        (
            (
                "return sa.select(_s.shard).where(_MINE).with_for_update()",
                "return sa.select(_s.shard).where(_s.relay == _relay, _s.shard == _shard).with_for_update()",
            ),
        ),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a shard is leased while another worker has it",
        "outboxq/store/messages/relays_sql.py",
        (
            (
                "is_free = sa.or_(shard.c.lease_expires_at.is_(None), shard.c.lease_expires_at <= g.now)",
                "is_free = sa.true()",
            ),
        ),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a refused event does not hold its key",
        "outboxq/store/messages/relays_sql.py",
        (("    if holds:\n        for table", "    if False:\n        for table"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "the later events of a held key overtake a redriven one",
        "outboxq/store/messages/relays_sql.py",
        (("for table in (partition_claims, task_outbox):", "for table in (partition_claims,):"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "new shards are sent while the leases of the old ones are valid",
        "outboxq/store/messages/relays.py",
        (("[(relay, shard, token, free_at) for shard", "[(relay, shard, token, None) for shard"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a relay tries a broker that is away without a pause",
        "outboxq/store/messages/relays.py",
        (('waits = seen["paused"] or (seen["try_in"] is not None and seen["try_in"] > 0)', 'waits = seen["paused"]'),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "the lease of a transport that never returns is extended for ever",
        "outboxq/worker/relays/sender.py",
        (("and now > end + _OVERTIME]", "and False]"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "shards with connections of their own take turns",
        "outboxq/worker/relays/sender.py",
        (("looks = _at_once(self._work, shards)", "looks = [self._work(one) for one in shards]"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "shards that share a transport use it at the same time",
        "outboxq/worker/relays/sender.py",
        (("if len(shards) == 1 or not all(one.connection.is_own for one in shards):", "if len(shards) == 1:"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a shard whose thread fails is passed over",
        "outboxq/worker/relays/sender.py",
        (("if one.error is not None:", "if False:"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a sender sleeps although an earlier transaction may still emit",
        "outboxq/worker/relays/sender.py",
        (("is_complete = is_complete and all(one.is_proven for one in self._shards.values())", "pass"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a relay gets a second event for an idempotency key",
        "outboxq/store/producing/fanout.py",
        (
            (
                '"message": lambda r: _message(g, r["accepted"]), ',
                '"message": lambda r: _message(g, r["subscriber"], _is_relay(r)), ',
            ),
        ),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a relay that is removed keeps the idempotency keys of its events",
        "outboxq/store/messages/relays_sql.py",
        (("accepted.consumer == task_name, accepted.source", "accepted.consumer == '', accepted.source"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "an event that a relay has already had is said to go there again",
        "outboxq/store/producing/fanout.py",
        (('if row["accepted_by"] is not None]', "]"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "an event that waits for an open transaction is said to be due",
        "outboxq/store/explain/relays.py",
        (("    if not target.dialect.one_writer:\n", "    if False:\n"),),
        ("tests/contract/test_relay_reasons.py",),
    ),
    Mutant(
        "a receiver waits on after its broker is back",
        "outboxq/worker/receiver.py",
        (("            if not messages:\n                self._works()\n", ""),),
        ("tests/contract/test_receivers.py",),
    ),
    Mutant(
        "a webhook goes to the network inside if one address of its host is public",
        "outboxq/webhooks.py",
        (
            (
                "        for *_, address in found:\n            self._check(",
                "        for *_, address in found[:1]:\n            self._check(",
            ),
        ),
        ("tests/unit/test_webhooks.py",),
    ),
    Mutant(
        "an IPv6 address that stands for an inner IPv4 address counts as public",
        "outboxq/webhooks.py",
        (('_inner(ip_address(text.partition("%")[0]))', 'ip_address(text.partition("%")[0])'),),
        ("tests/unit/test_webhooks.py",),
    ),
    Mutant(
        "an old webhook with a right signature is accepted again",
        "outboxq/webhooks.py",
        (("    if abs(age) > duration(", "    if age < -duration("),),
        ("tests/unit/test_webhooks.py",),
    ),
    Mutant(
        "an endpoint that answers one byte at a time keeps its handler",
        "outboxq/webhooks.py",
        (("    timer.start()\n", ""),),
        ("tests/unit/test_webhooks.py",),
    ),
    Mutant(
        "the number in a payload is read and printed again on its way to an endpoint",
        "outboxq/task/relays.py",
        (
            (
                'data=stored.rpartition("}")[0].strip()',
                'data=__import__("json").dumps(__import__("json").loads(claim.args)["payload"])',
            ),
        ),
        ("tests/contract/test_relays.py",),
    ),
    Mutant(
        "a message is acknowledged before its task is committed",
        "outboxq/worker/receiver.py",
        (
            (
                (
                    "            self._store.inbox.receive([one for message in messages for one in self._reader.read(message)])\n"
                    "            self._acknowledge(messages)\n"
                ),
                (
                    "            self._acknowledge(messages)\n"
                    "            self._store.inbox.receive([one for message in messages for one in self._reader.read(message)])\n"
                ),
            ),
        ),
        ("tests/contract/test_receivers.py",),
    ),
    Mutant(
        "a webhook that nobody signed becomes a task",
        "outboxq/webhooks.py",
        (
            (
                "found = verify_webhook(headers, body, self.secret, tolerance=self.tolerance)",
                'found = ReceivedWebhook(id=headers.get("webhook-id", ""), timestamp=datetime.now(UTC), body=body)',
            ),
        ),
        ("tests/contract/test_webhook_sources.py",),
    ),
    Mutant(
        "a webhook is identified by headers that are not signed",
        "outboxq/webhooks.py",
        (
            (
                "for name, value in headers.items() if name.lower() in _TRACE}\n        return",
                "for name, value in headers.items()}\n        return",
            ),
        ),
        ("tests/contract/test_webhook_sources.py",),
    ),
    Mutant(
        "a message that arrives again becomes a second task",
        "outboxq/store/messages/inbox.py",
        (("if one.key in new and first[one.key] is one]", "if one.key in first]"),),
        ("tests/contract/test_receivers.py",),
    ),
    Mutant(
        "the tasks of one key are enqueued in the order of the ids of their messages",
        "outboxq/store/messages/inbox.py",
        (("[one.task for one in arrivals if", "[one.task for _, one in sorted(first.items()) if"),),
        ("tests/contract/test_receivers.py",),
    ),
    Mutant(
        "a message that arrives twice at once takes the place of its last arrival",
        "outboxq/store/messages/inbox.py",
        (("for one in reversed(arrivals)}", "for one in arrivals}"),),
        ("tests/contract/test_receivers.py",),
    ),
    Mutant(
        "the numbers in the payload of a message are read and printed again",
        "outboxq/model/cloud_events.py",
        (('_member(text, "data")', 'json.dumps(value["data"])'),),
        ("tests/unit/test_brokers.py",),
    ),
    Mutant(
        "an event overtakes an earlier one of its key that SQS did not store",
        "outboxq/brokers/aws.py",
        (("[letter for letter in turn if _group(letter) not in unsure]", "list(turn)"),),
        ("tests/unit/test_brokers.py",),
    ),
    Mutant(
        "a receiver of SQS collects messages beyond its deadline",
        "outboxq/brokers/aws.py",
        (("if not arrived or time.monotonic() >= deadline:", "if not arrived:"),),
        ("tests/unit/test_brokers.py",),
    ),
    Mutant(
        "an event that Kafka refused because of another one in its batch is a dead letter",
        "outboxq/brokers/kafka.py",
        (("            self._one_by_one = True\n", "            return\n"),),
        ("tests/unit/test_brokers.py",),
    ),
    Mutant(
        "the inbox forgets a message before its time is over",
        "outboxq/store/messages/inbox.py",
        ((".where(_message.expires_at <= g.now)", ".where(_message.expires_at.is_not(None))"),),
        ("tests/contract/test_inbox.py",),
    ),
    Mutant(
        "two receivers of the same messages wait for each other",
        "outboxq/store/messages/inbox.py",
        (("            .order_by(given.consumer, given.source, given.message_id)\n", ""),),
        ("tests/contract/test_receivers.py",),
    ),
    Mutant(
        "a message counts as accepted although the consumer had it",
        "outboxq/store/messages/inbox.py",
        (
            (
                "lambda target: bool(target.run(accept, self._store.values(target, **given)))",
                "lambda target: target.run(accept, self._store.values(target, **given)) is not None",
            ),
        ),
        ("tests/contract/test_inbox.py",),
    ),
    Mutant(
        "a task that was claimed ahead begins although a crash of the server took its claim back",
        "outboxq/worker/task_runner.py",
        (("if self.leases.broke_at > active.sent and", "if False and"),),
        ("tests/faults/test_claims_after_crash.py",),
    ),
    Mutant(
        "a worker starts a task again that it still runs, since a crash took its claim back",
        "outboxq/worker/claim_loop.py",
        (("            claims = self.leases.not_held(claims, sent=sent)\n", "            pass\n"),),
        ("tests/faults/test_claims_after_crash.py",),
    ),
    Mutant(
        "what the database said of a claim before the worker claimed the task again takes that from its handler",
        "outboxq/worker/leases.py",
        (
            (
                "if one.claimed_again_at > asked:\n                return False",
                "if False:\n                return False",
            ),
        ),
        ("tests/unit/test_claimed_again.py",),
    ),
    Mutant(
        "a handler that has stopped half-way for its lost lease is believed once its worker has the claim again",
        "outboxq/worker/leases.py",
        (("return context.was_lost and self.broke_at > -math.inf", "return False"),),
        ("tests/unit/test_claimed_again.py", "tests/contract/test_claimed_again.py"),
    ),
    Mutant(
        "a lost connection is not noted that the pool's own test has replaced",
        "outboxq/worker/assembly.py",
        (('"invalidate", lambda *_broken: on_loss()', '"invalidate", lambda *_broken: None'),),
        ("tests/dialects/test_lost_connections.py",),
    ),
    Mutant(
        "a task that has slept for a week has used up the time for its attempts",
        "outboxq/worker/executor.py",
        ((" and task.retry_policy.has_stop and context.step_runner is not None:", " and False:"),),
        ("tests/contract/test_steps.py",),
    ),
    Mutant(
        "the time that a task slept before its first attempt counts as part of its attempts",
        "outboxq/model/running.py",
        (("max(begun, since), min(due, until)", "begun, min(due, until)"),),
        ("tests/unit/test_sleeps.py",),
    ),
    Mutant(
        "a child process is sent the signal for its stacks though it would die of that",
        "outboxq/worker/isolation/fork_server.py",
        ((" and pid in self._children and survives(pid)", " and pid in self._children"),),
        ("tests/contract/test_worker_stacks.py",),
    ),
    Mutant(
        "no child process is asked for the stacks that a person waits for",
        "outboxq/worker/isolation/runner.py",
        (("            self.children.pass_on_question(child)\n", ""),),
        ("tests/contract/test_worker_orders.py",),
    ),
    Mutant(
        "a worker of Flask dies of a stop signal while its application is imported",
        "outboxq/contrib/flask.py",
        (("        if _starts_worker(sys.argv[1:]):\n", "        if False:\n"),),
        ("tests/integrations/test_starting_workers.py",),
    ),
    Mutant(
        "the stacks of a child process wait until its C code ends",
        "outboxq/worker/isolation/child.py",
        (("        print_in_child()\n", ""),),
        ("tests/contract/test_worker_stacks.py",),
    ),
    Mutant(
        "a worker that stops takes away the keeper that another one needs",
        "outboxq/worker/handler_log.py",
        (("                    if not one.places:\n", "                    if True:\n"),),
        ("tests/contract/test_handler_log.py",),
    ),
    Mutant(
        "the end of a child that died is in no trace",
        "outboxq/worker/isolation/runner.py",
        (("        context.has_died = True\n", ""),),
        ("tests/integrations/tracing/test_killed_attempts.py",),
    ),
    Mutant(
        "a repair counts the ends of a batch that it does not see yet",
        "outboxq/store/verify/repairs.py",
        (('    "batch_counts_differ": partial(batches.locked, wrong=batches.counts_differ),\n', ""),),
        ("tests/contract/test_batch_races.py",),
    ),
    Mutant(
        "a batch waits for a dead letter that is not there any more",
        "outboxq/store/producing/batches.py",
        (('missing_dead_letters, {"limit": _PRUNED_AT_ONCE}', 'missing_dead_letters, {"limit": 0}'),),
        ("tests/contract/test_batches.py",),
    ),
    Mutant(
        "the results of a batch are pruned though the task behind it may still read them",
        "outboxq/database/history.py",
        (("batch.completed_at >= before, _may_be_read(g)", "batch.completed_at >= before"),),
        ("tests/contract/test_batch_tasks.py",),
    ),
    Mutant(
        "a batch whose block has failed is committed without an error",
        "outboxq/store/producing/batches.py",
        (("        target.forbid_commit(reason)\n", ""),),
        ("tests/contract/test_unclosed_batches.py",),
    ),
    Mutant(
        "each end of a locked batch waits for its row",
        "outboxq/worker/completer.py",
        (("                elif _needs_batch(outcome):", "                elif False:"),),
        ("tests/unit/test_completer.py",),
    ),
    Mutant(
        "the ends of a locked batch are tried one by one, in front of all others",
        "outboxq/worker/completer.py",
        (
            (
                "one.claim.id: _batch_of(one) for one in outcomes if _needs_batch(one)",
                "one.claim.id: None for one in ()",
            ),
        ),
        ("tests/unit/test_completer.py",),
    ),
    Mutant(
        "one task that would end in a locked batch stops all recoveries",
        "outboxq/store/claims/recovery.py",
        (("if using is not None or not store.is_locked_out(error):", "if True:"),),
        (
            "tests/dialects/test_locked_batches.py::test_a_recovery_passes_over_the_tasks_that_would_end_in_a_locked_batch",
        ),
    ),
    Mutant(
        "a worker runs tasks of a locked batch without end",
        "outboxq/worker/completer.py",
        (("        if waiting < _MOST_LOCKED:", "        if True:"),),
        ("tests/unit/test_completer.py",),
    ),
    Mutant(
        "one expired task of a locked batch stops all claims",
        "outboxq/store/claims/claim.py",
        (('moved = cancel_expired(store, self.options["worker_id"])', "moved = 0"),),
        ("tests/dialects/test_locked_batches.py::test_an_expired_task_of_a_locked_batch_stops_no_claim",),
    ),
    Mutant(
        "of many queues with limits, only the first get turns",
        "outboxq/store/claims/claim.py",
        (('cursor.others_after = [row["queue"] for row in group if row["queue"] in served][-1]', "pass"),),
        ("tests/contract/test_many_queues.py::test_queues_take_turns_in_claims_of_one_task",),
    ),
    Mutant(
        "a claim finds no task in the queues with limits that it does not read at once",
        "outboxq/store/claims/claim.py",
        (("            if rounds == 2 or (is_end and not began):\n", "            if True:\n"),),
        ("tests/contract/test_many_queues.py::test_queues_that_cannot_start_a_task_hide_no_other",),
    ),
    Mutant(
        "a claim among many queues returns too few tasks although others are due",
        "outboxq/store/claims/claim.py",
        (("            elif not are_new:\n", "            elif not found and not are_new:\n"),),
        ("tests/dialects/test_heads.py::test_a_claim_that_is_not_full_has_read_all_queues",),
    ),
    Mutant(
        "a better task among many queues waits for the end of a backlog",
        "outboxq/store/claims/heads.py",
        (("        return self._readings.is_due\n", "        return not self._heap\n"),),
        ("tests/dialects/test_heads.py::test_a_better_task_is_claimed_within_the_bound_while_claims_are_full",),
    ),
    Mutant(
        "among many queues, a task comes before one of a higher priority",
        "outboxq/store/claims/claim.py",
        (("least=heads.least)", "least=None)"),),
        ("tests/dialects/test_heads.py::test_no_task_comes_before_one_of_a_higher_priority",),
    ),
    Mutant(
        "a claim drops the queues from which it took all that it could",
        "outboxq/store/claims/claim.py",
        (("        if len(taken) == limit:\n", "        if len(taken) != limit:\n"),),
        ("tests/dialects/test_heads.py::test_all_tasks_are_claimed_about_in_the_order_of_their_due_times",),
    ),
    Mutant(
        "a claim among many queues holds tasks while it cancels all expired ones",
        "outboxq/store/claims/claim.py",
        (("if found and len(rows) < len(taken):", "if False:"),),
        ("tests/dialects/test_heads.py::test_a_claim_with_a_task_does_not_go_on_through_expired_ones",),
    ),
    Mutant(
        "tasks beyond the heads that are kept are never claimed",
        "outboxq/store/claims/claim.py",
        (("elif found or heads.are_all:", "elif True:"),),
        ("tests/dialects/test_heads.py::test_tasks_beyond_the_heads_that_are_kept_are_claimed",),
    ),
    Mutant(
        "a statement of a claim among many queues is committed alone",
        "outboxq/store/claims/claim.py",
        (("self._best_queues), Begin.ASYNCHRONOUS", "self._best_queues), Begin.SINGLE_ASYNCHRONOUS"),),
        ("tests/dialects/test_heads.py::test_a_claim_that_fails_after_its_first_statement_keeps_no_task",),
    ),
    Mutant(
        "a claim from some queues begins with the heads of others",
        "outboxq/store/claims/heads.py",
        (("        return self._scope == (queues, topics)\n", "        return self._scope is not None\n"),),
        ("tests/dialects/test_heads.py::test_queues_and_topics_have_heads_of_their_own",),
    ),
    Mutant(
        "a claimer never returns to reading all queues",
        "outboxq/store/claims/heads.py",
        (("            self._scope = None", "            pass"),),
        ("tests/dialects/test_heads.py::test_the_claimer_returns_to_reading_all_queues",),
    ),
    Mutant(
        "a floor hides a late task although the heads were read",
        "outboxq/store/claims/claim.py",
        (("        self.cursor.floors.read(rows, seconds)\n", ""),),
        ("tests/dialects/test_heads.py::test_a_late_task_behind_a_floor_is_claimed_within_the_bound",),
    ),
    Mutant(
        "a claim from a few queues moves the floors of all",
        "outboxq/store/claims/claim.py",
        (("is_full=True, seconds=", "is_full=False, seconds="),),
        ("tests/dialects/test_heads.py::test_a_claim_from_a_few_queues_leaves_the_other_floors",),
    ),
    Mutant(
        "tasks without a key wait until many limited queues are empty",
        "outboxq/store/claims/claim.py",
        (
            (
                "cursor.others_first or not cursor.plain_turns.is_due",
                "cursor.others_first or cursor.plain_turns.left > -math.inf",
            ),
        ),
        ("tests/dialects/test_heads.py::test_tasks_without_a_key_wait_briefly_for_those_of_many_limited_queues",),
    ),
    Mutant(
        "sixteen queues with keys are read three at a time",
        "outboxq/store/claims/claim.py",
        (("else _OTHERS + 1, limit)", "else _OTHERS, limit)"),),
        ("tests/contract/test_many_queues.py::test_sixteen_queues_are_not_many",),
    ),
    Mutant(
        "a claim that finds nothing behind the floors never looks before them",
        "outboxq/store/claims/floors.py",
        (("(again or claims.were_full) and", "claims.were_full and"),),
        ("tests/dialects/test_floors.py::test_a_late_task_is_claimed_within_the_bound",),
    ),
    Mutant(
        "a backlog hides a task that is committed late for as long as it lasts",
        "outboxq/store/claims/floors.py",
        (("(again or claims.were_full) and", "again and"),),
        ("tests/dialects/test_floors.py::test_a_late_task_is_claimed_within_the_bound_while_claims_are_full",),
    ),
    Mutant(
        "a worker that finds few tasks at each claim never looks before the floors",
        "outboxq/store/claims/floors.py",
        (("        elif taken and not is_full and claims.turns.is_due:", "        elif False:"),),
        ("tests/dialects/test_floors.py::test_a_late_task_is_claimed_within_the_bound_while_each_claim_finds_a_task",),
    ),
    Mutant(
        "a worker sleeps on a look that has not read before the floors",
        "outboxq/store/claims/floors.py",
        (("            return self._looks.left\n", "            return math.inf\n"),),
        ("tests/dialects/test_floors.py::test_a_look_behind_the_floors_proves_nothing_for_longer_than_the_bound",),
    ),
    Mutant(
        "a worker that has taken no task has no floors",
        "outboxq/store/claims/floors.py",
        (("self._since or self._likely", "self._since"),),
        ("tests/dialects/test_floors.py::test_a_worker_that_has_taken_no_task_reads_dead_entries_once",),
    ),
    Mutant(
        "a look passes the tasks of a queue at its limit",
        "outboxq/store/claims/sleeping_workers.py",
        (("sa.not_(queue_order.any_limited())", "sa.true()"),),
        ("tests/dialects/test_floors.py::test_a_look_passes_no_task_that_waits_for_a_slot",),
    ),
    Mutant(
        "a look that finds nothing leaves the floors behind",
        "outboxq/store/claims/floors.py",
        (("if crowded_at is not None:", "if crowded_at is not None and not self._since:"),),
        ("tests/dialects/test_floors.py::test_a_look_from_the_front_that_finds_nothing_moves_the_floors",),
    ),
    Mutant(
        "the floors of a worker that has taken no task begin at its look",
        "outboxq/store/claims/floors.py",
        (("timedelta(seconds=crowded_at) - _MARGIN", "timedelta(seconds=crowded_at)"),),
        (
            "tests/dialects/test_floors.py::test_a_task_that_is_committed_soon_is_found_at_once_although_the_worker_has_taken_no_task",
        ),
    ),
    Mutant(
        "a worker that has taken no task has floors although few entries are dead",
        "outboxq/store/claims/sleeping_workers.py",
        (('found["now"] if found["crowded"] else None', 'found["now"]'),),
        ("tests/dialects/test_floors.py::test_there_are_no_floors_while_few_entries_are_dead",),
    ),
    Mutant(
        "the claim after a look from the front begins behind the floors",
        "outboxq/store/claims/floors.py",
        (("        if found:\n            self.expect()\n", "        if found:\n            pass\n"),),
        ("tests/dialects/test_floors.py::test_a_look_behind_the_floors_proves_nothing_for_longer_than_the_bound",),
    ),
    Mutant(
        "a floor passes tasks whose transactions are about to be committed",
        "outboxq/store/claims/floors.py",
        (("timedelta(seconds=moment) - _MARGIN", "timedelta(seconds=moment)"),),
        ("tests/dialects/test_floors.py::test_a_floor_is_never_younger_than_usual_transactions_are_long",),
    ),
    Mutant(
        "the floors stay ahead of a clock that was set back",
        "outboxq/store/claims/floors.py",
        (("min(since, latest) if is_full else latest", "max(since, latest)"),),
        ("tests/dialects/test_floors.py::test_a_clock_that_is_set_back_delays_tasks_by_the_bound",),
    ),
    Mutant(
        "a priority above the floors is found by a claim from the front only",
        "outboxq/store/claims/floors.py",
        (("[TOP, *sorted(floors, reverse=True)]", "sorted(floors, reverse=True)"),),
        ("tests/dialects/test_floors.py::test_a_task_of_another_priority_is_found_at_once",),
    ),
    Mutant(
        "a queue behind the floors is found by a claim from the front only",
        "outboxq/database/queue_order.py",
        (
            (
                "select(following, found.c.upto).where(found.c.queue.is_not(None))",
                "select(following, found.c.upto).where(found.c.queue.is_(None))",
            ),
        ),
        ("tests/dialects/test_floors.py::test_a_task_of_another_queue_is_found_at_once",),
    ),
    Mutant(
        "claims of other queues move the floors of a limited queue",
        "outboxq/store/claims/floors.py",
        (
            (
                "if (pair[0] in self._limited) if limited is None else (pair[0] != limited):",
                "if pair[0] != (limited or pair[0]):",
            ),
        ),
        ("tests/dialects/test_floors.py::test_tasks_that_wait_for_a_slot_are_not_passed_by_a_floor",),
    ),
    Mutant(
        "a queue that gets a limit keeps the floors that other claims have moved",
        "outboxq/store/claims/floors.py",
        (("            self._forget(limited)\n            self._limited[", "            self._limited["),),
        ("tests/dialects/test_floors.py::test_a_queue_that_gets_a_limit_is_read_from_the_front",),
    ),
    Mutant(
        "a look from the front does not send the claims of a limited queue there",
        "outboxq/store/claims/floors.py",
        (("for claims in (self._claims, *self._limited.values()):", "for claims in (self._claims,):"),),
        ("tests/dialects/test_floors.py::test_a_look_from_the_front_sends_the_next_claim_of_a_limited_queue_there",),
    ),
    Mutant(
        "a queue without a limit counts as limited for ever",
        "outboxq/store/claims/floors.py",
        (('self._limited.pop(row["queue"], None)', "pass"),),
        ("tests/dialects/test_floors.py::test_a_queue_whose_limit_is_removed_keeps_its_floor",),
    ),
    Mutant(
        "the search for limited queues reads the dead entries of those in the floors",
        "outboxq/database/queue_order.py",
        (("before = _next_queue(bounded.c.queue, bounded.c.upto)", "before = _next_queue(bounded.c.queue)"),),
        ("tests/dialects/test_floors.py::test_dead_entries_of_a_limited_queue_are_not_read[all]",),
    ),
    Mutant(
        "a claim from given queues reads the dead entries of a limited one",
        "outboxq/store/claims/partition_keys.py",
        (("has_plain = sa.case((has_floor, sa.true()), else_=has_plain)", "has_plain = sa.or_(has_plain, has_floor)"),),
        ("tests/dialects/test_floors.py::test_dead_entries_of_a_limited_queue_are_not_read[one]",),
    ),
    Mutant(
        "a burst ends although a task is due before the floors",
        "outboxq/worker/claim_loop.py",
        (("            self.cursor.floors.expect()\n", "            pass\n"),),
        ("tests/dialects/test_floors.py::test_a_burst_ends_only_after_a_claim_from_the_front",),
    ),
    Mutant(
        "a claimer waits in full each time for the batch of expired tasks",
        "outboxq/store/claims/claim.py",
        (("if time.monotonic() < cursor.brief_until:", "if False:"),),
        ("tests/dialects/test_locked_batches.py::test_an_expired_task_of_a_locked_batch_stops_no_claim",),
    ),
    Mutant(
        "the expired tasks of all batches wait for the one whose row is locked",
        "outboxq/store/claims/broken_entries.py",
        (('setdefault(row["batch_id"], [])', "setdefault(worker_id, [])"),),
        ("tests/dialects/test_locked_batches.py::test_an_expired_task_of_a_locked_batch_stops_no_claim",),
    ),
    Mutant(
        "two workers cancel the same tasks of a batch to the last",
        "outboxq/store/producing/batches.py",
        (("if shares and not number:", "if False:"),),
        ("tests/contract/test_batches.py",),
    ),
    Mutant(
        "a look for what is left to cancel reads the whole batch",
        "outboxq/store/producing/batches.py",
        (('if batch["waiting"] or (batch["failed"] and _discards(batch)):', "if True:"),),
        ("tests/dialects/test_plans.py::test_postgresql_reads_what_runs_and_not_the_whole_batch_that_is_cancelled",),
    ),
    Mutant(
        "a cancelled batch is kept open by its dead letters",
        "outboxq/store/producing/batches.py",
        (('return OnFailed(batch["on_failed"]) is OnFailed.WAIT', "return False"),),
        ("tests/contract/test_batches.py",),
    ),
    Mutant(
        "a prune deletes results that a batch still needs",
        "outboxq/database/history.py",
        (("batch.completed_at.is_(None), batch.completed_at >= before", "batch.completed_at.is_(None)"),),
        ("tests/contract/test_batches.py",),
    ),
    Mutant(
        "a step waits for the lock of its own handler for ever",
        "outboxq/worker/steps.py",
        (("if hint and is_busy and time.monotonic() >= context.deadline:", "if False:"),),
        (
            "tests/contract/test_steps.py::test_a_step_inside_a_transaction_of_the_handler_ends_with_the_lease_on_sqlite",
        ),
    ),
    Mutant(
        "a batch that has ended is said to be cancelled",
        "outboxq/store/producing/batches.py",
        (("            raise already_ended(self.get(batch_id, using=using))", "            return 0"),),
        ("tests/contract/test_batches.py",),
    ),
    Mutant(
        "a page of the tasks of a batch reads through all newer tasks",
        "outboxq/store/tasks/task_pages.py",
        (('_members().cte("mine").prefix_with("MATERIALIZED")', '_members().subquery("mine")'),),
        ("tests/dialects/test_plans.py::test_a_page_reads_no_more_than_its_look_on_postgresql",),
    ),
    Mutant(
        "a batch is said to wait for a dead letter that it goes on without",
        "outboxq/model/batches.py",
        (("self.failed if self.on_failed is OnFailed.WAIT and", "self.failed if"),),
        ("tests/contract/test_links.py",),
    ),
    Mutant(
        "a task that was enqueued behind a batch and pruned is said to be not enqueued yet",
        "outboxq/store/explain/explain.py",
        (("found.then_ids[found.stage :]", "found.then_ids"),),
        ("tests/contract/test_links.py",),
    ),
    Mutant(
        "a dead letter that a batch goes on without is named as what keeps it open",
        "outboxq/store/explain/explain.py",
        ((" if batch.on_failed is OnFailed.WAIT else None", ""),),
        ("tests/contract/test_links.py",),
    ),
    Mutant(
        "verify does not look at the functions of triggers after a schema was renamed",
        "outboxq/database/dialects/catalogue.py",
        (("sa.or_(beside, _function.c.oid.in_(fired))", "beside"),),
        ("tests/contract/test_renamed_schema.py",),
    ),
    Mutant(
        "tables of an unreleased version are worked on",
        "outboxq/database/revisions.py",
        (("    if fingerprint != FINGERPRINT:\n", "    if False:\n"),),
        ("tests/contract/test_migrations.py",),
    ),
    Mutant(
        "a key that runs as many tasks as it may starts one more",
        "outboxq/store/claims/limits_sql.py",
        (("tasks < queues.c.key_concurrency", "tasks <= queues.c.key_concurrency"),),
        ("tests/contract/test_key_limits.py",),
    ),
    Mutant(
        "what a key has used of its rate is not written",
        "outboxq/store/claims/limits.py",
        (("            if place.key in starts\n", "            if False\n"),),
        ("tests/contract/test_key_limits.py",),
    ),
    Mutant(
        "a claim takes from a queue that limits its keys without counting them",
        "outboxq/database/queue_order.py",
        (("settings.c.rate_limit.is_not(None), limits_keys(settings))", "settings.c.rate_limit.is_not(None))"),),
        ("tests/contract/test_key_limits.py",),
    ),
    Mutant(
        "a worker does not sleep while every key of a queue has reached its limit",
        "outboxq/database/queue_order.py",
        (("or_(_is_paused(mine), limits_keys(mine), full,", "or_(_is_paused(mine), full,"),),
        ("tests/contract/test_key_limits.py",),
    ),
    Mutant(
        "a new rate per key begins with what was used of the old one",
        "outboxq/store/numbers/queues.py",
        (("        if different & {", "        if False and different & {"),),
        ("tests/contract/test_key_limits.py",),
    ),
    Mutant(
        "the longest due tasks of a key at its limit hide the keys behind them",
        "outboxq/store/claims/limits.py",
        (("            if self._rotate(budget) or self.found:\n", "            if True:\n"),),
        ("tests/contract/test_key_limits.py",),
    ),
    Mutant(
        "a worker is not woken when a key may start again",
        "outboxq/store/claims/due.py",
        (
            (
                "next_moment(g, plain, with_keys, limits_sql.next_start(g, limited))",
                "next_moment(g, plain, with_keys)",
            ),
        ),
        ("tests/contract/test_key_limits.py",),
    ),
    Mutant(
        "two transactions that end tasks of two batches lock them in their own orders",
        "alembic/versions/0001_tables.py",
        (("DEFERRABLE INITIALLY DEFERRED", "DEFERRABLE INITIALLY IMMEDIATE"),),
        ("tests/contract/test_batch_races.py",),
    ),
    Mutant(
        "what follows a batch comes with the last end but one",
        "alembic/versions/0001_tables.py",
        (("NEW.closed AND NEW.size <= NEW.completed", "NEW.closed AND NEW.size - 1 <= NEW.completed"),),
        ("tests/contract/test_batches.py",),
    ),
    Mutant(
        "a dead letter that is redriven counts as ended",
        "alembic/versions/0001_tables.py",
        (
            (" - (OLD.status = 'Failed')::integer", ""),
            (" - (OLD.status = 'Failed'),", ","),
        ),
        ("tests/contract/test_batches.py",),
    ),
    Mutant(
        "a redrive opens a batch again that has completed",
        "alembic/versions/0001_tables.py",
        (
            ("WHERE batch.id = change.batch_id AND batch.completed_at IS NULL;", "WHERE batch.id = change.batch_id;"),
            ("WHERE id = OLD.pipeline_execution_id AND completed_at IS NULL;", "WHERE id = OLD.pipeline_execution_id;"),
        ),
        ("tests/contract/test_batches.py",),
    ),
    Mutant(
        "a task joins a batch that is being cancelled",
        "outboxq/store/producing/batches_sql.py",
        (("_batch.completed_at.is_(None), takes)", "_batch.completed_at.is_(None))"),),
        ("tests/contract/test_batches.py",),
    ),
    Mutant(
        "a request to the admin changes more rows than its limit",
        "outboxq/contrib/django/admin.py",
        (("for row in chosen[:AT_ONCE]:", "for row in chosen:"),),
        ("tests/integrations/django_admin/test_django_admin.py",),
    ),
    Mutant(
        "a user who may view tasks in the admin may cancel them",
        "outboxq/contrib/django/admin.py",
        (("if not request.user.has_perm(permission_of(verb))", "if not verb.key"),),
        ("tests/integrations/django_admin/test_django_admin.py",),
    ),
    Mutant(
        "a worker says that a task failed where a person cancelled the batch",
        "outboxq/store/producing/batches.py",
        (('if row["runs_then"] else "its batch was cancelled"', 'if row["id"] else "its batch was cancelled"'),),
        ("tests/contract/test_batches.py",),
    ),
    Mutant(
        "the partitions of the history do not count the ends of batches",
        "outboxq/database/dialects/partitioning.py",
        (('            execute(trigger["statement"].replace("%", "%%"), {})', "            pass"),),
        ("tests/dialects/test_partitions.py",),
    ),
    Mutant(
        "a progress that the database refuses costs the leases of all tasks",
        "outboxq/worker/leases.py",
        (("if self.store.may_pass(error) or self.store.cannot_write_now(error):\n                raise\n", "raise\n"),),
        ("tests/contract/test_progress.py",),
    ),
    Mutant(
        "each heartbeat writes progress though nothing is new",
        "outboxq/worker/leases.py",
        (
            (
                "        if all(reported[one.claim.id] is one.written for one in held):\n",
                "        if not any(reported.values()):\n",
            ),
        ),
        ("tests/contract/test_progress.py",),
    ),
    Mutant(
        "a progress counts as written though the lease was locked",
        "outboxq/worker/leases.py",
        (
            (
                "            if beat is not None and beat.lease_expires_at is not None:",
                "            if beat is not None:",
            ),
        ),
        ("tests/contract/test_progress.py",),
    ),
    Mutant(
        "a worker's keeper is the only handler of the root logger, and Python prints warnings no more",
        "outboxq/worker/handler_log.py",
        (("if not keepers and handlers:", "if not keepers:"),),
        ("tests/contract/test_handler_log.py",),
    ),
    Mutant(
        "a worker does not hear what a handler in its child reports",
        "outboxq/worker/isolation/child.py",
        (("                    self._connection.send(notes)\n", "                    pass\n"),),
        ("tests/contract/test_handler_log.py",),
    ),
    Mutant(
        "a task that is released loses what it logged",
        "outboxq/worker/completer.py",
        (("with_notes(released(one.claim, STOPPED), one.context)", "released(one.claim, STOPPED)"),),
        ("tests/contract/test_handler_log.py",),
    ),
    Mutant(
        "a late handler's exception waits in its thread for the next handler",
        "outboxq/worker/timeouts.py",
        (("        if self._has_sent:\n            self._empty_slot()\n", ""),),
        ("tests/unit/test_timeouts.py",),
    ),
    Mutant(
        "a limit that comes during a look waits for the next one",
        "outboxq/worker/timeouts.py",
        (("self._next = math.inf  # a limit", "self._next = -math.inf  # a limit"),),
        ("tests/unit/test_timeouts.py",),
    ),
    Mutant(
        "a handler ends while an exception for it is being sent, which the next one gets",
        "outboxq/worker/timeouts.py",
        (("        while self._is_raising:\n", "        while False:\n"),),
        ("tests/unit/test_timeouts.py",),
    ),
    Mutant(
        "an exception in the midst of a handler's end costs its result",
        "outboxq/worker/timeouts.py",
        (
            (
                (
                    "                except TaskTimeout:\n                    try:\n                        self._settle()\n"
                    "                    except TaskTimeout:\n                        self._settle()\n"
                ),
                "                except TaskTimeout:\n                    raise\n",
            ),
        ),
        ("tests/unit/test_timeouts.py",),
    ),
    Mutant(
        "a transactional handler that does not end keeps its own attempt from being ended",
        "outboxq/worker/task_runner.py",
        (("            unit.abandon()\n", "            pass\n"),),
        ("tests/contract/test_timeouts.py::test_a_handler_that_does_not_end_is_ended_without_it",),
    ),
    Mutant(
        "what a killed handler writes later is committed, by itself",
        "outboxq/database/dialects/sqlite.py",
        (
            (
                '            raw.execute("PRAGMA query_only = ON")  # otherwise, the handler\'s next write would be a separate transaction\n',
                "",
            ),
        ),
        (
            "tests/contract/test_timeouts.py::test_a_handler_that_does_not_end_is_ended_without_it",
            "tests/contract/test_timeouts.py::test_what_a_killed_handler_writes_later_in_a_step_is_rolled_back",
        ),
    ),
    Mutant(
        "the connection of a killed handler refuses the writes of the next one",
        "outboxq/store/claims/units_of_work.py",
        (("            self.connection.invalidate()\n        for", "            pass\n        for"),),
        ("tests/contract/test_timeouts.py::test_a_handler_that_does_not_end_is_ended_without_it",),
    ),
    Mutant(
        "an exception parts a step's function that has returned from its result",
        "outboxq/worker/timeouts.py",
        (("            if self._is_held_back:\n", "            if False:\n"),),
        ("tests/contract/test_timeouts.py::test_an_exception_waits_until_a_result_of_a_step_is_stored",),
    ),
    Mutant(
        "what a handler has started outlives it",
        "outboxq/worker/isolation/fork_server.py",
        (("                os.killpg(pid, signal.SIGKILL)\n", "                os.kill(pid, signal.SIGKILL)\n"),),
        ("tests/contract/test_isolation.py::test_only_the_child_of_a_handler_that_does_not_end_is_killed",),
    ),
    Mutant(
        "a process that had to end with its handler is replaced later each time",
        "outboxq/cli/serving/supervisor.py",
        ((" or code == EXIT_KILLED\n", "\n"),),
        ("tests/unit/test_supervisor.py",),
    ),
    Mutant(
        "a worker that has lost its claim still writes the results of steps",
        "outboxq/store/tasks/steps.py",
        (("_lease.lease_token == _lease_token, _lease.worker_id == worker_id)", "True)"),),
        ("tests/contract/test_steps.py",),
    ),
    Mutant(
        "the steps of a task are read only after a failed attempt",
        "outboxq/worker/steps.py",
        (("if claim.lease_token > 1 else []", "if claim.attempt > 1 else []"),),
        ("tests/contract/test_steps.py",),
    ),
    Mutant(
        "a transactional step is stored in a transaction of its own",
        "outboxq/worker/steps.py",
        (
            (
                "if self.rows.complete(claim, new, using=unit.target) is None:",
                "if self.rows.complete(claim, new) is None:",
            ),
        ),
        ("tests/contract/test_steps.py", "tests/faults/test_steps.py"),
    ),
    Mutant(
        "a step whose COMMIT was not answered is taken for undone",
        "outboxq/store/tasks/steps.py",
        (("            return target.run(written, given) or None\n", "            return None\n"),),
        ("tests/contract/test_steps.py",),
    ),
    Mutant(
        "a sleep begins again with each run",
        "outboxq/worker/steps.py",
        (("until > self._until_answered(context, self.own.now)", "until"),),
        ("tests/contract/test_steps.py",),
    ),
    Mutant(
        "a rewind leaves the steps after the first one",
        "outboxq/store/tasks/steps.py",
        (("_step.number >= _number)", "_step.number == _number)"),),
        ("tests/contract/test_steps.py",),
    ),
    Mutant(
        "the name of a queue controls the terminal as the head of a table",
        "outboxq/cli/console.py",
        (('plain(f"{name} UTC" if is_time else name)', '(f"{name} UTC" if is_time else name)'),),
        ("tests/contract/test_cli_terminal.py",),
    ),
    Mutant(
        "a caller that comes during a look is taken for one whose task is missing",
        "outboxq/task/waiting.py",
        (("[wait for wait in self._waits if not wait.is_new]", "list(self._waits)"),),
        ("tests/contract/test_results.py",),
    ),
    Mutant(
        "a caller that was polled a moment ago misses the one change of SQLite's file",
        "outboxq/task/waiting.py",
        (("again(self._known())", "again([wait for wait in self._known() if wait not in new])"),),
        ("tests/contract/test_results.py",),
    ),
    Mutant(
        "a task that is pruned while SQLite's file rests is waited for without end",
        "outboxq/task/waiting.py",
        (("        self._unchecked |= has_changed\n", "        self._unchecked = has_changed\n"),),
        ("tests/contract/test_results.py",),
    ),
    Mutant(
        "a handler waits for a task that only its own thread could run",
        "outboxq/task/results.py",
        (("if running is not None and not running.has_ended:", "if running is not None and running.has_ended:"),),
        ("tests/contract/test_results.py",),
    ),
    Mutant(
        "a task whose transaction was rolled back is waited for without end",
        "outboxq/task/waiting.py",
        (("        else:\n            self._was_over = True\n", ""),),
        ("tests/contract/test_results.py",),
    ),
    Mutant(
        "a task that follows others is taken for one that does not exist",
        "outboxq/task/waiting.py",
        (("if self.link is not None and not self.is_ahead and not self.is_found:", "if self.link is self.batch:"),),
        ("tests/contract/test_batch_results.py",),
    ),
    Mutant(
        "a wait for a chain does not name the task that stopped it",
        "outboxq/store/tasks/results.py",
        (("is_broken = self.kind is BatchKind.CHAIN and", "is_broken = self.kind is BatchKind.BATCH and"),),
        ("tests/contract/test_batch_results.py",),
    ),
    Mutant(
        "a wait for what follows a cancelled batch goes on as long as the batch keeps a dead letter",
        "outboxq/store/tasks/results.py",
        (("waits and (self.runs_then or not has_cancelled)", "waits and self.runs_then"),),
        ("tests/contract/test_batch_results.py",),
    ),
    Mutant(
        "each look reads all tasks of a batch that is being cancelled",
        "outboxq/store/tasks/results.py",
        (("if has_cancelled and not goes_on else None", "if not goes_on else None"),),
        ("tests/contract/test_batch_results.py",),
    ),
    Mutant(
        "a place that no task has is waited for as the batch itself",
        "outboxq/model/batches.py",
        (("number=number) if number else None\n", "number=number)\n"),),
        ("tests/contract/test_batch_results.py",),
    ),
    Mutant(
        "a role that may not read batches ends the waits of all callers",
        "outboxq/task/waiting.py",
        (("                    wait.fail(error)\n", "                    raise\n"),),
        ("tests/roles/test_rights.py",),
    ),
    Mutant(
        "inline() of the harness runs the tasks of a batch before it is whole, and nothing of what follows",
        "outboxq/testing/harness.py",
        (('_temporarily(self, "_is_inline", False)', '_temporarily(self, "_is_inline", self._is_inline)'),),
        ("tests/integrations/testing_helpers/test_harness_batches.py",),
    ),
    Mutant(
        "a forked child waits for a thread that its parent has",
        "outboxq/task/waiting.py",
        (("process, key = os.getpid(), (os.getpid(), id(store))", "process, key = 0, (0, id(store))"),),
        ("tests/contract/test_results.py",),
    ),
    Mutant(
        "looks for results may take a whole core",
        "outboxq/task/waiting.py",
        (("        return max(0.0, -self._credit / SHARE)\n", "        return 0.0\n"),),
        ("tests/contract/test_results.py",),
    ),
    Mutant(
        "the error of a rollback takes the place of Ctrl-C, and the transaction is run again",
        "outboxq/store/transactions.py",
        (("                raise stop from None", "                raise"),),
        ("tests/dialects/test_stopped_statements.py",),
    ),
    Mutant(
        "a connection on which Ctrl-C left a statement without its answer is used again",
        "outboxq/database/dialects/postgresql.py",
        (
            ("notifies = stops_midway = has_roles", "notifies = has_roles"),
            ("reads_before_writing = one_writer = False", "reads_before_writing = one_writer = stops_midway = False"),
        ),
        ("tests/dialects/test_stopped_statements.py",),
    ),
    Mutant(
        "a look for a page of tasks begins one task too late after a look that was ended",
        "outboxq/store/tasks/task_pages.py",
        (('{"from_id": last}', '{"from_id": next_id(last)}'),),
        ("tests/contract/test_task_pages.py",),
    ),
    Mutant(
        "cancelling all tasks also takes those that are enqueued meanwhile",
        "outboxq/store/tasks/event_log.py",
        (("since = sa.or_(_event.sequence_num > _head, g", "since = sa.or_(_event.sequence_num.is_(None), g"),),
        ("tests/contract/test_cancel_all.py", "tests/contract/test_counted.py"),
    ),
    Mutant(
        "a change of many also takes what a transaction commits that was open at the count",
        "outboxq/database/dialects/postgresql_grammar.py",
        (
            (
                'return number.op("<@", return_type=sa.Boolean())(sa.cast(ids, INT8MULTIRANGE))',
                "return sa.literal_column('false', sa.Boolean)",
            ),
        ),
        (
            "tests/contract/test_counted.py::test_a_task_of_an_open_transaction_stays_though_its_number_is_not_the_newest",
        ),
    ),
    Mutant(
        "a change of waiting tasks also takes a task that ran when they were counted",
        "outboxq/store/tasks/cancelling.py",
        (('"only_ready": status is TaskStatus.READY', '"only_ready": False'),),
        ("tests/contract/test_counted.py",),
    ),
    Mutant(
        "the mark of change overlooks an event that is committed after a later one",
        "outboxq/store/numbers/overview.py",
        (('sa.cast(seen.c.sum, sa.Text).label("events"), ', ""),),
        ("tests/contract/test_overview.py",),
    ),
    Mutant(
        "a late queue is explained by its newest due task instead of its oldest",
        "outboxq/store/numbers/overview.py",
        (('key=lambda row: row["available_at"], reverse=True)', 'key=lambda row: row["available_at"])'),),
        ("tests/contract/test_problems.py::test_the_oldest_of_the_late_tasks_tells_the_cause",),
    ),
    Mutant(
        "the limits of keys are not read for late queues",
        "outboxq/store/explain/explain.py",
        (("for task in tasks if limits_keys(rows[task.id])]\n    facts", "for task in ()]\n    facts"),),
        ("tests/contract/test_problems.py::test_a_late_task_is_told_with_the_limit_of_its_key",),
    ),
    Mutant(
        "a deliberate pause turns the tile of the oldest task red",
        "outboxq/web/pages/watching.py",
        (("{one.queue for one in queues if not one.paused}", "{one.queue for one in queues}"),),
        ("tests/integrations/dashboard/test_tiles.py",),
    ),
    Mutant(
        "groups of failures are cut before they are joined by exception",
        "outboxq/web/pages/failures.py",
        (("limit = most if chosen else _GROUPS", "limit = _GROUPS"),),
        ("tests/integrations/dashboard/test_failures_by_exception.py",),
    ),
    Mutant(
        "a button acts on the queue whose name has no spaces around it",
        "outboxq/web/pages/actions.py",
        (('else request.query.get(key, "")', 'else request.query.get(key, "").strip()'),),
        ("tests/integrations/dashboard/test_watch_pages.py::test_a_hostile_name_is_shown_and_acted_on_as_it_is",),
    ),
    Mutant(
        "a system whose tasks have all ended is shown as a new one",
        "outboxq/web/pages/watching.py",
        (("found.live_workers or request.store.tasks(limit=1))", "found.live_workers)"),),
        (
            "tests/integrations/dashboard/test_watch_pages.py::test_an_idle_system_is_neither_new_nor_calm_without_a_worker",
        ),
    ),
    Mutant(
        "queues with problems are not in the order of urgency",
        "outboxq/web/pages/watching.py",
        (("worst.get(one.queue, len(problems)), ", ""),),
        (
            "tests/integrations/dashboard/test_watch_pages.py::test_queues_come_in_the_order_of_their_most_urgent_problem",
        ),
    ),
    Mutant(
        "a problem of one task comes before one of many",
        "outboxq/store/numbers/problem.py",
        (("(-one.weight, _RANK", "(_RANK"),),
        ("tests/contract/test_problems.py::test_the_problem_with_the_most_tasks_and_time_comes_first",),
    ),
    Mutant(
        "a transaction that has written is not known to keep dead rows",
        "outboxq/database/dialects/catalogue.py",
        (
            (
                "sa.or_(session.backend_xid.is_not(None), session.backend_xmin.is_not(None))",
                "session.backend_xmin.is_not(None)",
            ),
        ),
        ("tests/dialects/test_dead_rows.py::test_a_transaction_that_has_written_holds_rows_without_a_snapshot",),
    ),
    Mutant(
        "a batch whose other tasks are running is said to wait for its dead letter",
        "outboxq/store/producing/batches_sql.py",
        (("        ended >= first.c.size,\n", ""),),
        ("tests/contract/test_problems.py::test_a_batch_that_waits_for_nothing_but_dead_letters_is_a_problem",),
    ),
    Mutant(
        "a dry run of a prune counts as a retention",
        "outboxq/store/retention.py",
        (("    if dry_run:\n", "    if dry_run:\n        record_prune(store, using=using)\n"),),
        ("tests/contract/test_problems.py::test_a_history_that_nothing_deletes_is_a_problem_after_a_week",),
    ),
    Mutant(
        "a chart draws a line over the time of which nothing is known",
        "outboxq/web/charts.py",
        (("is_open = alone = False\n        else", "alone = False\n        else"),),
        ("tests/unit/test_charts.py",),
    ),
    Mutant(
        "the form of a schedule stores the asterisks of a hidden argument",
        "outboxq/web/pages/schedules.py",
        (("shown == redacted(schedule.args, None) == request.redact(shown)", "True"),),
        ("tests/integrations/dashboard/test_edited_schedules.py::test_arguments_that_cannot_be_shown_are_kept",),
    ),
    Mutant(
        "a schedule is moved into a queue in which its viewer may not edit",
        "outboxq/web/pages/schedules.py",
        ((" and request.viewer.may(EDIT.recorded_as, queue)", ""),),
        (
            "tests/integrations/dashboard/test_edited_schedules.py::test_a_schedule_is_moved_by_those_who_may_in_both_queues",
        ),
    ),
    Mutant(
        "a confirmation that is sent twice enqueues two tasks",
        "outboxq/web/pages/enqueueing.py",
        (("if self.key is None:", "if False:"),),
        ("tests/integrations/dashboard/test_enqueueing.py::test_a_form_that_is_sent_twice_enqueues_one_task",),
    ),
    Mutant(
        "a released savepoint counts as the commit of its tasks",
        "outboxq/integration/uncommitted.py",
        ((" and not session.in_nested_transaction()", ""),),
        ("tests/integrations/sqlalchemy_session/test_uncommitted.py",),
    ),
    Mutant(
        "an exception that closes a Session is followed by a warning about its tasks",
        "outboxq/integration/uncommitted.py",
        (("sys.exception() is None and ", ""),),
        ("tests/integrations/sqlalchemy_session/test_uncommitted.py",),
    ),
    Mutant(
        "a refused request of Flask is followed by a warning about its tasks",
        "outboxq/contrib/flask.py",
        (("response.status_code < 400", "response.status_code < 600"),),
        ("tests/integrations/flask_app/test_flask_outboxq.py",),
    ),
    Mutant(
        "a TestCase that hides the setUp of OutboxTests is accepted",
        "outboxq/testing/unittest_case.py",
        (("order.index(unittest.TestCase) < order.index(OutboxTests)", "False"),),
        ("tests/integrations/testing_helpers/test_harness_targets.py",),
    ),
    Mutant(
        "the dashboard logs the arguments that a person types",
        "outboxq/web/dashboard.py",
        ((" and name not in PAYLOAD", ""),),
        (
            "tests/integrations/dashboard/test_enqueueing.py::test_a_secret_argument_is_neither_shown_nor_logged_nor_recorded",
        ),
    ),
    Mutant(
        "a schedule that no worker plants looks active",
        "outboxq/web/pages/schedules.py",
        (("if missed is not None and missed < now - _OVERDUE:", "if missed is None:"),),
        ("tests/integrations/dashboard/test_watch_pages.py::test_an_overdue_schedule_comes_first_and_says_what_helps",),
    ),
    Mutant(
        "a change of many also takes what failed after the question",
        "outboxq/task/built_in.py",
        (('"reason": reason, "snapshot": self.snapshot, "limit"', '"reason": reason, "limit"'),),
        ("tests/integrations/dashboard/test_bulk.py",),
    ),
    Mutant(
        "a snapshot misses the open transactions that PostgreSQL does not list",
        "outboxq/store/tasks/event_log.py",
        (('begun=range(int(beyond), row["next_transaction"])', "begun=range(0)"),),
        (
            "tests/contract/test_counted.py::test_a_task_of_an_open_transaction_stays_though_its_number_is_not_the_newest",
        ),
    ),
    Mutant(
        "a change of many goes on without the filter that was lost on the way",
        "outboxq/web/pages/bulk.py",
        (("if empty := sorted(name for name, value in given.items() if not value):", "if empty := []:"),),
        ("tests/integrations/dashboard/test_bulk.py",),
    ),
    Mutant(
        "a filter of a change of many loses the spaces of a name",
        "outboxq/web/pages/bulk.py",
        (("name: value if name in _NAMES else value.strip()", "name: value.strip()"),),
        ("tests/integrations/dashboard/test_bulk.py",),
    ),
    Mutant(
        "each request tries for 30 s to reach a database that is away",
        "outboxq/web/dashboard.py",
        (
            (
                "            with patience(_PATIENCE), statement_timeout(_LONGEST_STATEMENT):\n                response",
                "            if True:\n                response",
            ),
        ),
        ("tests/integrations/dashboard/test_databases.py",),
    ),
    Mutant(
        "a change whose commit was not answered is made twice by a person's command",
        "outboxq/store/actions.py",
        (('return bool(target.run(is_written, {"id": action.id}))', "return False"),),
        ("tests/contract/test_actions.py",),
    ),
    Mutant(
        "a bulk change is recorded outside its transactions, after its first batch only",
        "outboxq/store/tasks/operations.py",
        (("if on_change is not None and (moved or asked):", "if on_change is not None and asked:"),),
        ("tests/contract/test_actions.py",),
    ),
    Mutant(
        "retention deletes the records of recent changes by people",
        "outboxq/store/actions.py",
        (
            (
                "is_old = sa.and_(_action.at < _older, _action.at < g.later(g.now, _least))",
                "is_old = _action.at < _older",
            ),
        ),
        ("tests/contract/test_actions.py",),
    ),
    Mutant(
        "the link of a cure loses the filters of its command",
        "outboxq/web/pages/actions.py",
        (("return {str(name): value for name, value in zip(names, values, strict=True)}", "return {}"),),
        ("tests/integrations/dashboard/test_links_of_cures.py",),
    ),
    Mutant(
        "a quiet worker claims once more before it waits",
        "outboxq/worker/claim_loop.py",
        (
            (
                "        if self._quiet_order.is_set():\n            self._wait_quietly()",
                "        if self.burst:\n            self._wait_quietly()",
            ),
        ),
        ("tests/contract/test_worker_orders.py",),
    ),
    Mutant(
        "an order to resume withdraws a stop",
        "outboxq/store/claims/worker_orders.py",
        (
            (
                "order.is_distinct_from(_asked_to), order.is_distinct_from(WorkerOrder.STOP.value)",
                "order.is_distinct_from(_asked_to)",
            ),
        ),
        ("tests/contract/test_worker_orders.py",),
    ),
    Mutant(
        "a worker that has ended counts as live",
        "outboxq/store/claims/workers.py",
        (("return workers.c.ended_at.is_(None)", "return workers.c.id.is_not(None)"),),
        ("tests/contract/test_registry.py",),
    ),
    Mutant(
        "each run of a bulk change takes the whole limit again",
        "outboxq/task/built_in.py",
        (("            limit=left,", "            limit=wanted.limit,"),),
        ("tests/integrations/dashboard/test_bulk.py",),
    ),
    Mutant(
        "a list of retrying tasks contains those that are due",
        "outboxq/store/tasks/task_pages.py",
        (("(available_at <= g.now, text_literal(Waiting.DUE)),\n", ""),),
        ("tests/contract/test_task_pages.py",),
    ),
    Mutant(
        "a second click starts a second task that changes many",
        "outboxq/web/pages/bulk.py",
        (("using(target, idempotency_key=wanted.digest)", "using(target)"),),
        ("tests/integrations/dashboard/test_bulk.py",),
    ),
    Mutant(
        "a dead letter is redriven with a key that another task has, though no box was ticked",
        "outboxq/operating/fields.py",
        (('return texts == ["yes"]', "return True"),),
        ("tests/integrations/dashboard/test_task_pages.py",),
    ),
    Mutant(
        "a pause of a queue that somebody else has paused counts as a change",
        "outboxq/store/numbers/queues.py",
        (("if differs and on_change is not None:", "if on_change is not None:"),),
        ("tests/contract/test_actions.py",),
    ),
    Mutant(
        "an action is carried out for a viewer without a permission, if the form is sent all the same",
        "outboxq/web/pages/actions.py",
        (("if not may(request, verb, target):", "if False:"),),
        ("tests/integrations/dashboard/test_permissions.py",),
    ),
    Mutant(
        "what handlers wrote is shown without asking the function that removes what is private",
        "outboxq/web/rendering.py",
        (('"" if value is None else redact(str(value))', '"" if value is None else str(value)'),),
        ("tests/integrations/dashboard/test_redacting.py",),
    ),
    Mutant(
        "values of secret names are hidden at the top level only",
        "outboxq/model/display.py",
        (("return _written(value, hidden, newline)", "return _written(value, None, newline)"),),
        ("tests/unit/test_redaction.py",),
    ),
    Mutant(
        "the dashboard takes a form whose token is of another browser or person",
        "outboxq/web/browser.py",
        (("    if not browser.accepts(request.form):\n", "    if FIELD not in request.form:\n"),),
        ("tests/integrations/dashboard/test_security.py",),
    ),
    Mutant(
        "the dashboard takes a form from a neighbouring host",
        "outboxq/web/browser.py",
        (('return site == "same-origin"', 'return site in {"same-origin", "same-site"}'),),
        ("tests/integrations/dashboard/test_security.py",),
    ),
    Mutant(
        "a proxy on the machine opens the dashboard to everyone",
        "outboxq/web/browser.py",
        (
            ("any(request.headers.get(name) for name in _FORWARDED)", "request.headers.get('Forwarded')"),
            (
                '            and not any(name.startswith("HTTP_X_FORWARDED") and value for name, value in environ.items())\n',
                "",
            ),
        ),
        ("tests/integrations/dashboard/test_security.py",),
    ),
    Mutant(
        "tokens that are tried at once are counted when they turn out to be wrong",
        "outboxq/web/access.py",
        (
            (
                "            self._tries.append((now, address))\n",
                "            threading.Timer(0.05, self._tries.append, [(now, address)]).start()\n",
            ),
        ),
        ("tests/integrations/dashboard/test_security.py",),
    ),
    Mutant(
        "a login leads to the host that a link names",
        "outboxq/web/answers.py",
        (
            ('wanted.startswith(("//", "/\\\\"))', 'wanted.startswith("/\\\\")'),
            ('"/" if parts.scheme or parts.netloc else wanted', "wanted"),
        ),
        ("tests/integrations/dashboard/test_security.py",),
    ),
    Mutant(
        "a viewer gets the page of another one who has more rights",
        "outboxq/web/answers.py",
        (("            grant.viewer,\n", ""), ("visit.request.root_path, viewer)", "visit.request.root_path)")),
        ("tests/integrations/dashboard/test_freshness.py",),
    ),
    Mutant(
        "those who waited for the database in vain try again one after another",
        "outboxq/web/freshness.py",
        (("            making.error = error\n", ""),),
        ("tests/integrations/dashboard/test_freshness.py",),
    ),
    Mutant(
        "a page that was read before an action is kept after it",
        "outboxq/web/freshness.py",
        (("            if changes == self._changes:  #", "            if True:  #"),),
        ("tests/integrations/dashboard/test_freshness.py",),
    ),
    Mutant(
        "a command that changes many reads its answer from a pipe",
        "outboxq/cli/changes.py",
        (("    return _is_terminal(sys.stdin) and _is_terminal(sys.stderr)", "    return True"),),
        ("tests/contract/test_cli_questions.py", "tests/unit/test_confirmation.py"),
    ),
    Mutant(
        "a question that is answered by return goes on",
        "outboxq/cli/changes.py",
        (('line.strip().lower() in {"y", "yes"}', 'line.strip().lower() in {"", "y", "yes"}'),),
        ("tests/contract/test_cli_questions.py", "tests/unit/test_confirmation.py"),
    ),
    Mutant(
        "a worker that shows a sign of life loses its tasks to a person",
        "outboxq/store/claims/lost_workers.py",
        (("    if signs and not is_lost(last := max(signs), now):", "    if (last := now) and not signs:"),),
        ("tests/contract/test_lost_workers.py",),
    ),
    Mutant(
        "what is enqueued while the question is read is run now with the others",
        "outboxq/store/tasks/running_now.py",
        (("bound = bound_to(snapshot or ", "bound = bound_to("),),
        ("tests/contract/test_cli_cancel.py", "tests/integrations/dashboard/test_bulk.py"),
    ),
    Mutant(
        "what a transaction returned whose commit was not answered is forgotten",
        "outboxq/store/transactions.py",
        (("unanswered and committed(target, unanswered[0])", "False"),),
        ("tests/contract/test_lost_answers.py",),
    ),
    Mutant(
        "tasks that were made due before the answer was lost are not counted",
        "outboxq/store/tasks/running_now.py",
        (("return number > 0 and any(was_done", "return number < 0 and any(was_done"),),
        ("tests/contract/test_lost_answers.py",),
    ),
    Mutant(
        "what fails while the question is read is discarded with the others",
        "outboxq/cli/bulk.py",
        (("snapshot=counted().snapshot, on_progress", "on_progress"),),
        ("tests/contract/test_cli_questions.py",),
    ),
    Mutant(
        "Ctrl-C ends a command in the middle of a batch, and nobody learns how far it came",
        "outboxq/cli/changes.py",
        (
            (
                "        if not state.ask_to_stop(stop):\n            raise stop",
                "        raise SystemExit(130)",
            ),
        ),
        ("tests/contract/test_cli_questions.py", "tests/unit/test_confirmation.py"),
    ),
    Mutant(
        "an upgrade waits for its locks without a bound, and every producer waits behind it",
        "outboxq/database/table_locks.py",
        (
            (
                "        limit(dialect, execute, lock_timeout, lock_timeout)\n",
                '        limit(dialect, execute, "0", "0")\n',
            ),
        ),
        (
            "tests/dialects/test_upgrade_locks.py::test_producers_go_on_while_an_upgrade_waits_for_an_open_transaction[outboxq upgrade]",
        ),
    ),
    Mutant(
        "an upgrade locks each table when a script needs it, and keeps the others locked meanwhile",
        "alembic/env.py",
        (("    if steps:\n", "    if False:\n"),),
        ("tests/dialects/test_upgrade_locks.py::test_in_a_callers_transaction_a_round_gives_back_what_it_locked",),
    ),
    Mutant(
        "an upgrade stops everybody while it waits for a vacuum",
        "outboxq/database/table_locks.py",
        (('        _lock(dialect, execute, places, "SHARE UPDATE EXCLUSIVE")\n', ""),),
        ("tests/dialects/test_upgrade_locks.py::test_an_upgrade_waits_for_a_vacuum_without_stopping_anybody",),
    ),
    Mutant(
        "SIGTERM ends a command and leaves its statement running on the server",
        "outboxq/cli/groups.py",
        (("        signal.signal(number, terminate)\n", "        pass\n"),),
        ("tests/dialects/test_stopped_statements.py",),
    ),
    Mutant(
        "a statement goes on for hours after its client was killed",
        "outboxq/database/dialects/postgresql_session.py",
        (("client_connection_check_interval', '1s'", "client_connection_check_interval', '0'"),),
        ("tests/dialects/test_stopped_statements.py::test_a_statement_does_not_outlive_its_killed_client",),
    ),
    Mutant(
        "a probe of the dashboard queues behind pages that wait for a lock",
        "outboxq/cli/serving/web.py",
        (("is_health = request.path == HEALTH and not request.query", "is_health = False"),),
        ("tests/contract/test_cli_web.py::test_healthz_does_not_queue_behind_pages_that_wait_for_a_lock",),
    ),
    Mutant(
        "the arguments of a task are in its JSON though nobody asked for them",
        "outboxq/cli/task_report.py",
        (("        hidden = () if show_args else PAYLOAD\n", "        hidden = ()\n"),),
        ("tests/contract/test_cli_json.py",),
    ),
    Mutant(
        "Ctrl-C is an exception in the midst of a statement, and the log is followed for ever",
        "outboxq/cli/groups.py",
        (("        if self._waits:\n            raise _Woken\n", "        raise _Woken\n"),),
        ("tests/contract/test_cli_log.py",),
    ),
    Mutant(
        "rescheduling takes a running task away from its worker",
        "outboxq/store/tasks/operations.py",
        (
            (
                "_move(store, task_id, EventType.RESCHEDULED, using, retry_at=at, reason=reason)",
                "_move(store, task_id, EventType.RETRY_SCHEDULED, using, attempt=1, retry_at=at, reason=reason)",
            ),
        ),
        ("tests/contract/test_cli_log.py",),
    ),
    Mutant(
        "a worker process that still imports dies of the signal that asks for its stacks",
        "outboxq/cli/serving/supervisor.py",
        ((" and child.lifeline.listens()", ""),),
        ("tests/contract/test_worker_stacks.py",),
    ),
    Mutant(
        "a check that found a problem ends as if all were well",
        "outboxq/cli/status.py",
        (("sys.exit(EXIT_PROBLEM if found else 0)", "sys.exit(0)"),),
        ("tests/contract/test_cli_inspecting.py",),
    ),
    Mutant(
        "a dry run of an enqueue enqueues",
        "outboxq/cli/enqueue.py",
        (("    if not dry_run:\n        handle", "    if bound:\n        handle"),),
        ("tests/contract/test_cli_enqueue.py",),
    ),
    Mutant(
        "a bucket of a histogram for Prometheus has only what no smaller one has",
        "outboxq/worker/prometheus.py",
        (("sum(numbers[: at + 1])", "numbers[at]"),),
        ("tests/contract/test_prometheus.py",),
    ),
    Mutant(
        "each scrape reads the database",
        "outboxq/worker/prometheus.py",
        (("            if self._clock() - self._at < FRESH_FOR:\n", "            if self._clock() < self._at:\n"),),
        ("tests/contract/test_prometheus.py",),
    ),
    Mutant(
        "the next tick is never in the past, so no alert tells that nobody plants",
        "outboxq/worker/prometheus.py",
        ((".after(min(one.planted_until, now))", ".after(now)"),),
        ("tests/contract/test_prometheus.py",),
    ),
    Mutant(
        "another attempt at a tick's task counts as a late tick",
        "outboxq/worker/meter.py",
        (("claim.started_at == claim.first_started_at", "claim.started_at >= claim.first_started_at"),),
        ("tests/contract/test_prometheus.py",),
    ),
    Mutant(
        "all processes of a supervisor take the same port for their metrics",
        "outboxq/cli/serving/worker.py",
        (("first + number - 1 if first else first", "first"),),
        ("tests/contract/test_prometheus.py",),
    ),
    Mutant(
        "an autoscaler hears the age of the lowest priority only",
        "alembic/versions/0001_tables.py",
        (
            (
                "                oldest := least(oldest, due_since);\n            END LOOP;\n",
                "                oldest := coalesce(oldest, due_since);\n            END LOOP;\n",
            ),
        ),
        ("tests/dialects/test_backlog.py",),
    ),
    Mutant(
        "an autoscaler hears the starts of all queues",
        "alembic/versions/0001_tables.py",
        (("newest.created_at >= since AND queue = (", "newest.created_at >= since AND '' <> ("),),
        ("tests/dialects/test_backlog.py",),
    ),
    Mutant(
        "a moment of a schedule without an offset is read in UTC",
        "outboxq/cli/schedules.py",
        (("moment.replace(tzinfo=zone_of(tz))", "moment.replace(tzinfo=UTC)"),),
        ("tests/contract/test_cli_schedules.py",),
    ),
    Mutant(
        "a schedule added with its application is not checked against the task",
        "outboxq/cli/schedules.py",
        (("    if (outbox := present_outbox()) is None:", "    if (outbox := present_outbox()) is None or outbox:"),),
        ("tests/contract/test_cli_schedules.py",),
    ),
    Mutant(
        "a list of the admin reads the whole table",
        "outboxq/contrib/django/admin.py",
        (("flat=True)[NEWEST - 1 : NEWEST]", "flat=True)[:0]"),),
        ("tests/integrations/django_admin/test_django_admin.py",),
    ),
    Mutant(
        "verify reads the whole log for each dead letter",
        "outboxq/store/verify/check.py",
        (
            (
                ".where(EVENT_OF_TASK, one, *conditions)\n            .correlate",
                ".where(EVENT_OF_TASK, *conditions)\n            .correlate",
            ),
        ),
        ("tests/dialects/test_check_plans.py",),
    ),
    Mutant(
        "verify stops at a check for which the database cannot read a row",
        "outboxq/store/verify/__init__.py",
        (("            if not waiting or not store.dialect", "            if waiting or not store.dialect"),),
        ("tests/contract/test_verify.py",),
    ),
    Mutant(
        "verify leaves out the checks after one for which the database cannot read a row",
        "outboxq/store/verify/__init__.py",
        (("    while waiting:\n        try:", "    if waiting:\n        try:"),),
        ("tests/contract/test_verify.py",),
    ),
    Mutant(
        "verify asks whether a key's holder asked for any key",
        "outboxq/store/verify/keys.py",
        (("    rightful = rightful.correlate(idempotency_keys, birth.event)\n", ""),),
        ("tests/contract/test_corruptions.py",),
    ),
    Mutant(
        "a repair gives a task without a worker a lease",
        "outboxq/store/verify/repairs.py",
        (("RUNNING, EXECUTION.worker_id.is_not(None), ~rows", "RUNNING, ~rows"),),
        ("tests/contract/test_corruptions.py",),
    ),
    Mutant(
        "a record about a task says nothing of it",
        "outboxq/worker/leases.py",
        (("log.warning(text, one.claim, extra=fields_of(one.claim, outcome=LOST))", "log.warning(text, one.claim)"),),
        ("tests/contract/test_log_fields.py",),
    ),
    Mutant(
        "the filter replaces a field that the record has",
        "outboxq/context.py",
        (("record.__dict__.setdefault(name, value)", "record.__dict__[name] = value"),),
        ("tests/unit/test_log_fields.py",),
    ),
    Mutant(
        "a hook that cannot be entered stops the enqueue",
        "outboxq/integration/hooks.py",
        (
            (
                'could not be entered and was skipped", error, about)\n            yield None\n            return',
                '", error, about)\n            raise',
            ),
        ),
        ("tests/contract/test_hooks.py",),
    ),
    Mutant(
        "a hook swallows the error of an enqueue",
        "outboxq/integration/hooks.py",
        (
            (
                "            self._leave(manager, method, about, error)\n            raise\n",
                "            if self._leave(manager, method, about, error):\n                return\n            raise\n",
            ),
            (", error: BaseException | None\n    ) -> None:", ", error: BaseException | None\n    ) -> Any:"),
            ("            manager.__exit__(", "            return manager.__exit__("),
        ),
        ("tests/contract/test_hooks.py",),
    ),
    Mutant(
        "a hook hears of an outcome before it is on its way",
        "outboxq/worker/task_runner.py",
        (
            (
                (
                    "        if outcome is not None and active.state is not _COMMITTED:\n"
                    "            # Skipped for a handler without notes: this call was 1 % of the function calls for a task.\n"
                    "            is_bare = context.handler_log is None and context.reported is None\n"
                    "            self.outcomes.put(outcome if is_bare else with_notes(outcome, context), active)\n"
                ),
                "",
            ),
            (
                "            self.hooks.ended(context, outcome, seconds)\n        self.ends.write(outcome, context, seconds)\n",
                (
                    "            self.hooks.ended(context, outcome, seconds)\n"
                    "        if active.state is not _COMMITTED:\n            self.outcomes.put(outcome, active)\n"
                    "        self.ends.write(outcome, context, seconds)\n"
                ),
            ),
        ),
        ("tests/contract/test_hooks.py",),
    ),
    Mutant(
        "a log handler that raises costs the outcome of a task that ran too long",
        "outboxq/worker/task_runner.py",
        (
            (
                "        seconds = time.monotonic() - began\n",
                "        active.warn_if_late()\n        seconds = 1.0\n",
            ),
        ),
        ("tests/contract/test_worker.py::test_a_log_handler_that_raises_costs_neither_outcome_nor_lease",),
    ),
    Mutant(
        "no hook is told of a commit that came after the worker's time",
        "outboxq/worker/task_runner.py",
        (("(active.state is _COMMITTED or not context.was_lost)", "not context.was_lost"),),
        ("tests/contract/test_hooks.py",),
    ),
    Mutant(
        "a task whose completion is committed is said to be released",
        "outboxq/worker/completer.py",
        ((" if one.state is not ClaimState.COMMITTED]", "]"),),
        ("tests/contract/test_hooks.py",),
    ),
    Mutant(
        "a hook is told of an outcome that is discarded",
        "outboxq/worker/task_runner.py",
        (
            (
                "if self.hooks is not None and (active.state is _COMMITTED or not context.was_lost):",
                "if self.hooks is not None:",
            ),
        ),
        ("tests/contract/test_hooks.py",),
    ),
    Mutant(
        "an end that the worker decides has neither progress nor handler log",
        "outboxq/worker/task_runner.py",
        (("outcome if is_bare else with_notes(outcome, context)", "outcome"),),
        ("tests/contract/test_handler_log.py", "tests/contract/test_interruptions.py"),
    ),
    Mutant(
        "a completion that is committed is written again",
        "outboxq/worker/task_runner.py",
        (("outcome is not None and active.state is not _COMMITTED:\n", "outcome is not None:\n"),),
        ("tests/contract/test_hooks.py",),
    ),
    Mutant(
        "hooks hear of an end in the order in which they were entered",
        "outboxq/integration/hooks.py",
        (
            (
                'for hook in reversed(self._ended):\n            hook.call("ended"',
                'for hook in self._ended:\n            hook.call("ended"',
            ),
        ),
        ("tests/contract/test_hooks.py",),
    ),
    Mutant(
        "hooks are told twice that a worker has stopped",
        "outboxq/integration/hooks.py",
        (("self._to_stop.pop()", "self._to_stop[-1]"),),
        ("tests/contract/test_hooks.py",),
    ),
    Mutant(
        "an emit loses its headers",
        "outboxq/store/producing/fanout.py",
        (('        "headers": _headers,\n', ""),),
        ("tests/contract/test_sent_headers.py",),
    ),
    Mutant(
        "an emit that takes a key over loses its headers",
        "outboxq/store/producing/fanout.py",
        (
            (
                "        **_shared(event),\n    )\n\n\ndef _row",
                "        **_shared(event) | {'headers': None},\n    )\n\n\ndef _row",
            ),
        ),
        ("tests/contract/test_sent_headers.py",),
    ),
    Mutant(
        "headers may have a reserved name in capitals",
        "outboxq/model/options.py",
        (("key.lower().startswith", "key.startswith"),),
        ("tests/unit/test_headers.py",),
    ),
    Mutant(
        "headers that foreign SQL has spoiled fail the task",
        "outboxq/context.py",
        (
            (
                "            except ValueError as error:\n                text",
                "            except KeyError as error:\n                text",
            ),
        ),
        ("tests/contract/test_sent_headers.py",),
    ),
    Mutant(
        "a command that is told of no database goes on",
        "outboxq/cli/database.py",
        (("    if url is None and chosen is None:\n", "    if False:\n"),),
        ("tests/contract/test_cli_database.py",),
    ),
    Mutant(
        "a command that looks makes the SQLite file",
        "outboxq/store/transactions.py",
        (("        self.ensure_file()\n        with self.rights.naming()", "        with self.rights.naming()"),),
        ("tests/contract/test_cli_database.py",),
    ),
    Mutant(
        "the list of commands imports all of them",
        "outboxq/cli/groups.py",
        (("(name, self._places[name].sentence)", "(name, sentence_of(self.commands[name]))"),),
        ("tests/unit/test_startup.py",),
    ),
    Mutant(
        "every process of a fleet says where all of them work",
        "outboxq/cli/serving/supervisor.py",
        (('return {} if introduces_all else {INTRODUCED: "1"}', "return {}"),),
        ("tests/contract/test_worker_introduction.py",),
    ),
    Mutant(
        "the fence does not check the token",
        "outboxq/store/claims/ends.py",
        (
            (" lease.lease_token == given.lease_token,", ""),
            ("        execution.lease_token == claim.lease_token,\n", ""),
        ),
        ("tests/contract/test_finish.py",),
    ),
    Mutant(
        "the fence does not check the worker",
        "outboxq/store/claims/ends.py",
        (
            (
                "lease.lease_token == given.lease_token, lease.worker_id == worker_id\n",
                "lease.lease_token == given.lease_token\n",
            ),
            ("        execution.worker_id == worker,\n", ""),
        ),
        ("tests/contract/test_finish.py",),
    ),
    Mutant(
        "a claim that fails at one row fails for all",
        "outboxq/store/claims/claim.py",
        (
            (" or not set_aside(self, cursor.search, worker_id)", ""),
            ("using is None and perhaps_the_row(self, error)", "False"),
        ),
        ("tests/contract/test_hostile_rows.py",),
    ),
    Mutant(
        "a listener that raises has every due task failed",
        "outboxq/store/claims/broken_entries.py",
        (("failed if claimable else [", "failed if claimable or failed else ["),),
        ("tests/contract/test_set_aside.py",),
    ),
    Mutant(
        "an entry that was passed over proves that another is broken",
        "outboxq/store/claims/broken_entries.py",
        (('return any(row["lease_token"] is not None for row in taken)', "return taken is not None"),),
        ("tests/contract/test_set_aside.py",),
    ),
    Mutant(
        "an entry is deleted because the disk is full",
        "outboxq/store/claims/broken_entries.py",
        (("if not perhaps_the_row(store, refused):", "if refused is None:"),),
        ("tests/contract/test_set_aside.py",),
    ),
    Mutant(
        "an instant that psycopg cannot read costs the whole claim",
        "outboxq/database/dialects/postgresql.py",
        (("        except psycopg.DataError:\n", "        except ZeroDivisionError:\n"),),
        ("tests/contract/test_hostile_rows.py",),
    ),
    Mutant(
        "a field that equals that of the first task of its batch is not checked",
        "outboxq/store/producing/enqueue.py",
        (("all(map(is_, chain", "all(map(eq, chain"), ("import attrgetter, is_", "import attrgetter, eq, is_")),
        ("tests/contract/test_enqueue.py",),
    ),
    Mutant(
        "the ids of alike tasks are not checked",
        "outboxq/store/producing/enqueue.py",
        ((" or not are_uuid7s([task.id for task in tasks])", ""),),
        ("tests/contract/test_enqueue.py",),
    ),
    Mutant(
        "the arguments of alike tasks are not checked",
        "outboxq/store/producing/enqueue.py",
        (("not _are_texts([task.args for task in tasks]) or ", ""),),
        ("tests/contract/test_enqueue.py",),
    ),
    Mutant(
        "a field that equals that of the last task of its name is not checked",
        "outboxq/store/producing/enqueue.py",
        (("all(map(is_, _shared(task), shared))", "_shared(task) == shared"),),
        ("tests/contract/test_enqueue.py",),
    ),
    Mutant(
        "a task that was changed is still made of the fields of the last task of its name",
        "outboxq/store/producing/enqueue.py",
        (("task.made_of is made_of) or", "task.made_of in (made_of, None)) or"),),
        ("tests/contract/test_enqueue.py",),
    ),
    Mutant(
        "tasks that were changed are still made of the fields of the first task of their batch",
        "outboxq/store/producing/enqueue.py",
        (("== {id(made_of)}", "<= {id(made_of), id(None)}"),),
        ("tests/contract/test_enqueue.py",),
    ),
    Mutant(
        "a task alone gets the options that the last task of its name had",
        "outboxq/store/producing/enqueue.py",
        (("or all(map(is_, _shared(task), shared)):", "or True:"),),
        ("tests/contract/test_enqueue.py",),
    ),
    Mutant(
        "a cursor that is kept writes text in the encoding that its connection had before",
        "outboxq/database/dialects/postgresql.py",
        (
            ("info.pop((_CURSOR, encoding), None)", "info.pop((_CURSOR, b''), None)"),
            ("info[_CURSOR, encoding] = cursor", "info[_CURSOR, b''] = cursor"),
        ),
        ("tests/dialects/test_encodings.py",),
    ),
    Mutant(
        "SQLite needs psycopg",
        "outboxq/database/target.py",
        (("import sqlite3\n", "import sqlite3\n\nimport psycopg\n"),),
        ("tests/unit/test_without_psycopg.py",),
    ),
    Mutant(
        "a psycopg that loses notifications is taken",
        "outboxq/database/drivers.py",
        (("OLDEST_PSYCOPG = (3, 2, 5)", "OLDEST_PSYCOPG = (3, 2, 0)"),),
        ("tests/unit/test_without_psycopg.py",),
    ),
    Mutant(
        "the migrations forget a table's storage",
        "alembic/versions/0001_tables.py",
        (('    _store("task_leases", {"fillfactor": 50, **RESTLESS})\n', ""),),
        ("tests/contract/test_schema_golden.py",),
    ),
    Mutant(
        "the database takes an endless lease",
        "alembic/versions/0001_tables.py",
        (
            ("VALUE > 0 AND VALUE <= 3200000000", "VALUE > 0"),
            ('"> 0", "3200000000", "lease_seconds"', '"> 0", "9e999", "lease_seconds"'),
        ),
        ("tests/contract/test_schema.py",),
    ),
    Mutant(
        "IN (… LIMIT) instead of a list evaluated once",
        "outboxq/database/dialects/postgresql_grammar.py",
        (
            (
                '        .where(sa.literal_column("ctid") == sa.func.any(sa.func.array(sa.select(picked.c.ctid).scalar_subquery())))\n',
                '        .where(sa.literal_column("ctid").in_(ctids))\n',
            ),
        ),
        ("tests/dialects/test_plans.py",),
    ),
    Mutant(
        "a deferred transaction instead of BEGIN IMMEDIATE",
        "outboxq/database/dialects/sqlite_engine.py",
        (('dict.fromkeys(Begin, "BEGIN IMMEDIATE")', 'dict.fromkeys(Begin, "BEGIN DEFERRED")'),),
        ("tests/dialects/test_claim_locks.py", "tests/contract/test_host_engine.py"),
    ),
    Mutant(
        "two transactions instead of one: the task is committed before the caller's rows",
        "outboxq/store/producing/enqueue.py",
        (
            (
                "        using=using,\n        begin=Begin.INSERT if features",
                "        begin=Begin.INSERT if features",
            ),
        ),
        ("tests/contract/test_enqueue.py",),
    ),
    Mutant(
        "a transition in two transactions: what a claim took is committed before it is recorded",
        "outboxq/database/dialects/plans.py",
        (
            (
                "constant=constant).run(execute, values, found)\n",
                (
                    "constant=constant).run(execute, values, found)\n"
                    '            if name in ("taken", "entry"):\n'
                    '                execute("COMMIT", {})\n'
                    '                execute("BEGIN IMMEDIATE", {})\n'
                ),
            ),
        ),
        ("tests/contract/test_claim.py", "tests/contract/test_enqueue.py"),
    ),
    Mutant(
        "a batch is taken for one with constant columns: every task ends as the first one does",
        "outboxq/database/dialects/plans.py",
        (("len(set(map(self._constants, rows))) == 1", "len(set(map(self._constants, rows))) >= 1"),),
        ("tests/contract/test_finish.py",),
    ),
    Mutant(
        "a completion that says more than its result is written like one that does not",
        "outboxq/store/claims/ends.py",
        (("        and not outcome.claim.recovery_attempts\n        and not outcome.data\n", ""),),
        ("tests/contract/test_finish.py",),
    ),
    Mutant(
        "a batch of completions frees no partition key",
        "outboxq/database/dialects/plans.py",
        (
            (
                "return set(cell) if column in self.several else {cell}",
                "return {None} if column in self.several else {cell}",
            ),
        ),
        ("tests/contract/test_finish.py",),
    ),
    Mutant(
        "recovery forgets the outbox entry",
        "outboxq/store/claims/recovery.py",
        (('            "entry": lambda r: _entry(g, r),\n', ""),),
        ("tests/contract/test_leases.py",),
    ),
    Mutant(
        "recovery acts on the leases it picked instead of those it deleted",
        "outboxq/store/claims/recovery.py",
        (
            (
                (
                    '    return (\n        sa.delete(task_leases)\n        .where(\n            g.among(lease.task_execution_id, r["expired"].c.id),\n            sa.or_(g.among(lease.task_execution_id, r["unlocked"].c.id), ~task.exists()),\n        )\n        .returning(*READ_LEASE, task_leases.c.begun)\n    )\n'
                ),
                '    return sa.select(*READ_LEASE, task_leases.c.begun).where(g.among(lease.task_execution_id, r["expired"].c.id))\n',
            ),
        ),
        ("tests/contract/test_leases.py",),
    ),
    Mutant(
        "a task moved by hand is taken for granted instead of proved by what was deleted",
        "outboxq/store/tasks/operations.py",
        (
            (
                'sa.and_(_execution.status == SqlStatus.READY, g.among(_execution.id, r["gone"].c.id)),',
                "_execution.status == SqlStatus.READY,",
            ),
            (
                'sa.and_(_execution.status == SqlStatus.RUNNING, g.among(_execution.id, r["freed"].c.id)),',
                "_execution.status == SqlStatus.RUNNING,",
            ),
        ),
        ("tests/contract/test_retry.py", "tests/contract/test_operations.py", "tests/contract/test_verify.py"),
    ),
    Mutant(
        "a claim runs stale entries too",
        "outboxq/store/claims/claim_sql.py",
        ((", execution.status == SqlStatus.READY)", ")"),),
        ("tests/contract/test_claim.py",),
    ),
    Mutant(
        "no savepoint around the statements of one enqueue on SQLite",
        "outboxq/database/target.py",
        (
            (
                "return _NO_SAVEPOINT if needs_none else self._savepoint(then)",
                "return _NO_SAVEPOINT",
            ),
        ),
        ("tests/contract/test_enqueue.py",),
    ),
    Mutant(
        "the time bound is a bare volatile function, so no index condition",
        "outboxq/database/dialects/postgresql_grammar.py",
        (
            (
                "        return sa.select(self.clock.c.now).scalar_subquery()\n",
                "        return sa.func.clock_timestamp(type_=Instant)\n",
            ),
        ),
        ("tests/dialects/test_plans.py",),
    ),
    Mutant(
        "a sleeper's horizon is the latest id completed, plus one",
        "outboxq/store/claims/sleeping_workers.py",
        (("sa.func.pg_current_xact_id()", "sa.func.pg_snapshot_xmax(sa.func.pg_current_snapshot())"),),
        ("tests/dialects/test_sleeping.py",),
    ),
    Mutant(
        "a sleeper's horizon is drawn before its row is committed",
        "outboxq/worker/distributor/postgresql.py",
        (
            ("        self._horizon = self._sleeping.horizon()\n", ""),
            (
                "        longest = timedelta(seconds=self._poll)\n",
                "        longest = timedelta(seconds=self._poll)\n        self._horizon = self._sleeping.horizon()\n",
            ),
        ),
        ("tests/dialects/test_sleeping.py",),
    ),
    Mutant(
        "a sleeper does not wait for producers that were open when it lay down",
        "outboxq/worker/distributor/postgresql.py",
        (("            if seen.settled:\n", "            if True:\n"),),
        ("tests/dialects/test_sleeping.py",),
    ),
    Mutant(
        "a sleeper does not look for what is due once it has announced itself",
        "outboxq/store/claims/sleeping_workers.py",
        (('due.label("due")', 'sa.literal_column("false").label("due")'),),
        ("tests/dialects/test_sleeping.py",),
    ),
    Mutant(
        "a sleeper that is at work again stays announced",
        "outboxq/worker/distributor/postgresql.py",
        (("self._withdraw()\n", "pass\n"),),
        ("tests/dialects/test_sleeping.py",),
    ),
    Mutant(
        "a listener that comes back wakes nobody",
        "outboxq/worker/distributor/listener.py",
        (("        self._error = None\n        self.on_change()\n", "        self._error = None\n"),),
        ("tests/faults/test_listener.py",),
    ),
    Mutant(
        "a producer may read every column of a task",
        "outboxq/database/privileges.py",
        (('"INSERT; SELECT (id, position)"', '"INSERT; SELECT"'),),
        ("tests/roles/test_grants_command.py",),
    ),
    Mutant(
        "privileges are looked for only by the error of the database",
        "outboxq/store/rights.py",
        (("if enqueues is not None and (lacking := lacks(", "if False and (lacking := lacks("),),
        ("tests/roles/test_grants_command.py",),
    ),
    Mutant(
        "privileges on tables that are not there yet are taken for granted",
        "outboxq/store/transactions.py",
        (
            (
                "            self.rights.check(target, enqueues)\n        if not self._current:",
                (
                    "            self.rights.check(target, enqueues)\n"
                    "        self.rights.known.add(enqueues)\n        if not self._current:"
                ),
            ),
        ),
        ("tests/roles/test_rights.py",),
    ),
    Mutant(
        "a connection that was not made in time counts as an error for good",
        "outboxq/database/dialects/postgresql_errors.py",
        (("for kind in type(cause).__mro__", "for kind in type(cause).__mro__[:1]"),),
        ("tests/unit/test_postgresql_errors.py",),
    ),
    Mutant(
        "what could not be granted is taken for granted",
        "outboxq/store/rights.py",
        (("if lacking := lacks(target, wanted, grantee=name):", "if lacking := lacks(target, ()):"),),
        ("tests/roles/test_grants_command.py",),
    ),
    Mutant(
        "a listener takes LISTEN for hearing",
        "outboxq/worker/distributor/listener.py",
        (("if not self._receives(connection, word, self.answer_timeout / 2):", "if not connection:"),),
        ("tests/dialects/test_channel.py",),
    ),
    Mutant(
        "a listener goes on where the outbox no longer is",
        "outboxq/worker/distributor/listener.py",
        (('if still != [{"channel": self._channel}]:', "if not still:"),),
        ("tests/dialects/test_channel.py",),
    ),
    Mutant(
        "the trigger looks for sleepers where the tables were made",
        "alembic/versions/0001_tables.py",
        (("ELSIF TG_TABLE_SCHEMA OPERATOR(pg_catalog.=) %1$L THEN", "ELSIF true THEN"),),
        ("tests/dialects/test_channel.py",),
    ),
    Mutant(
        "what frees work notifies another channel than the trigger",
        "outboxq/database/dialects/channel.py",
        (
            (
                "        channel_of(g.oid(task_outbox.name)), sa.func.concat",
                "        channel_of(g.oid(task_outbox.name)) + 's', sa.func.concat",
            ),
        ),
        ("tests/dialects/test_channel.py",),
    ),
    Mutant(
        "deputies claim at once",
        "outboxq/worker/distributor/postgresql.py",
        (("if self._listener.session in sessions[:tasks]:", "if True:"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "every transaction calls the same sleeper",
        "alembic/versions/0001_tables.py",
        (("hashint8extended(sleeper.session, pg_catalog.txid_current())", "hashint8extended(sleeper.session, 7)"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a worker that may refuse a task's topic is called by name",
        "outboxq/worker/distributor/postgresql.py",
        (("self._listener.session if self.topics is None else None", "self._listener.session"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a worker that was killed is called",
        "alembic/versions/0001_tables.py",
        (("WHERE NOT pg_catalog.pg_try_advisory_xact_lock_shared(in_turn.session)", "WHERE true"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a transaction hides from others that a worker was killed",
        "alembic/versions/0001_tables.py",
        (("pg_try_advisory_xact_lock_shared", "pg_try_advisory_xact_lock"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a listening session does not lock its number",
        "outboxq/worker/distributor/listener.py",
        (
            (
                "self._run(connection, channel.open_session, session=(session := secrets.randbits(62)))",
                "session = secrets.randbits(62)",
            ),
        ),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a worker that expects a delayed task ends its own pauses",
        "outboxq/worker/distributor/postgresql.py",
        (("self._bring_forward(self._turn_at(moment))", "self._look_when_due(moment)"),),
        ("tests/dialects/test_sleeping.py",),
    ),
    Mutant(
        "deputies do not look",
        "outboxq/worker/distributor/postgresql.py",
        (("self._look_by(now + _DEPUTY_AFTER)", "pass"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "only deputies look",
        "outboxq/worker/distributor/postgresql.py",
        (("look_at = now + _EVERYBODY_AFTER + self._place.share(number) * _LATEST", "look_at = math.inf"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a worker answers calls that it hears while it looks",
        "outboxq/worker/distributor/postgresql.py",
        (
            ("            self._begin_look()\n            seen", "            seen"),
            (
                "            now = time.monotonic()\n            self._server_clock",
                "            self._begin_look()\n            now = time.monotonic()\n            self._server_clock",
            ),
        ),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a worker answers although a task is due",
        "outboxq/worker/distributor/postgresql.py",
        (
            (
                "            if seen.due:\n                return 0 if awaited",
                "            self._answer(self._looked_for.last(heard_before=now - _ANSWER_AFTER))\n            if seen.due:\n                return 0 if awaited",
            ),
        ),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a look that began at the floors answers for others",
        "outboxq/worker/distributor/postgresql.py",
        (("            if seen.complete:\n", "            if True:\n"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a worker answers each call at once",
        "outboxq/worker/distributor/postgresql.py",
        (("heard_before=now - _ANSWER_AFTER", "heard_before=math.inf"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "nobody answers for others",
        "outboxq/worker/distributor/postgresql.py",
        (("                self._sleeping.answer(calls, moment)\n", "                pass\n"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "an answer does not say when a limit opens",
        "outboxq/worker/distributor/postgresql.py",
        (("_ANSWER_AFTER), moment)", "_ANSWER_AFTER), None)"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "an answer is taken for later calls too",
        "outboxq/worker/distributor/postgresql.py",
        (("if place > last or call.queue != queue", "if call.queue != queue"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "an answer is taken for other queues too",
        "outboxq/worker/distributor/postgresql.py",
        ((" or call.queue != queue]", "]"),),
        ("tests/unit/test_calls.py",),
    ),
    Mutant(
        "an answer is taken for calls that were not kept",
        "outboxq/worker/distributor/postgresql.py",
        (("if places and len(self._calls) < _MOST:", "if places:"),),
        ("tests/unit/test_calls.py",),
    ),
    Mutant(
        "a full worker passes no call on",
        "outboxq/worker/distributor/postgresql.py",
        (("if self._named_for and (full or saturated):", "if False:"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a busy worker looks again and again for a call",
        "outboxq/worker/distributor/postgresql.py",
        (("            self._begin_look()  # the claim after the pause is a search\n", ""),),
        ("tests/dialects/test_sleeping.py::test_a_worker_that_does_not_sleep_looks_once_for_a_call",),
    ),
    Mutant(
        "a worker that passes a call on is called itself",
        "outboxq/store/claims/sleeping_workers.py",
        (("            target.run(withdraw, values)\n", ""),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a sleeper does not hear when a delayed task is due",
        "outboxq/worker/distributor/postgresql.py",
        (("self._look_when_due(float(head[1:]))", "pass"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a listener says that it listens before LISTEN is in force",
        "outboxq/worker/distributor/listener.py",
        (
            ("connection.execute(_listen_to(self._channel))\n", "pass\n"),
            (
                "        self.on_change()\n        log.debug(",
                "        self.on_change()\n        connection.execute(_listen_to(self._channel))\n        log.debug(",
            ),
        ),
        ("tests/dialects/test_sleeping.py",),
    ),
    Mutant(
        "the trigger looks for sleepers whatever the caller's isolation",
        "alembic/versions/0001_tables.py",
        (
            (
                "\n                OR pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed'",
                "",
            ),
        ),
        ("tests/dialects/test_sleeping.py",),
    ),
    Mutant(
        "the trigger looks with the snapshot of its statement",
        "alembic/versions/0001_tables.py",
        (("LANGUAGE plpgsql VOLATILE", "LANGUAGE plpgsql STABLE"),),
        ("tests/dialects/test_sleeping.py",),
    ),
    Mutant(
        "the trigger notifies of what is due only after the sleeper wakes by itself",
        "alembic/versions/0001_tables.py",
        (("greatest(due.available_at, pg_catalog.clock_timestamp())", "pg_catalog.clock_timestamp()"),),
        ("tests/dialects/test_sleeping.py",),
    ),
    Mutant(
        "the file's version is remembered after the look at what is due",
        "outboxq/worker/distributor/sqlite.py",
        (
            (
                "        while (left := end - time.monotonic())",
                "        self._has_changed()\n        while (left := end - time.monotonic())",
            ),
        ),
        ("tests/contract/test_distributor.py",),
    ),
    Mutant(
        "a task that no worker knows is claimed every 15 seconds for a day",
        "outboxq/worker/upkeep/unknown_tasks.py",
        (("2.0 ** min(times - 1, _MAX_DOUBLINGS)", "1.0 ** min(times - 1, _MAX_DOUBLINGS)"),),
        ("tests/unit/test_unknown.py",),
    ),
    Mutant(
        "tasks of a live application are pushed away by workers that do not know them",
        "outboxq/worker/upkeep/unknown_tasks.py",
        (("times = 1 if run.known_elsewhere else run.times + 1", "times = run.times + 1"),),
        ("tests/contract/test_unknown_tasks.py",),
    ),
    Mutant(
        "a supervisor's echo of the service manager's signal counts as a second one",
        "outboxq/cli/serving/supervisor.py",
        (("and not self.lifeline.send(order):", "and (self.lifeline.send(order), True)[1]:"),),
        ("tests/unit/test_supervisor.py",),
    ),
    Mutant(
        "a person's second signal to the supervisor is one more polite one to its workers",
        "outboxq/cli/serving/supervisor.py",
        (
            (
                "self._send_to_all(Order.AT_ONCE if at_once else Order.STOP, number)",
                "self._send_to_all(Order.STOP, number)",
            ),
        ),
        ("tests/unit/test_supervisor.py",),
    ),
    Mutant(
        "of queues with keys, the one that was just served is served again",
        "outboxq/store/claims/partition_keys.py",
        (("key=lambda queue: self._served.get(queue, 0)", "key=lambda queue: 0"),),
        ("tests/contract/test_fairness.py",),
    ),
    Mutant(
        "a fresh key waits behind a wall of blocked ones",
        "outboxq/store/claims/partition_keys.py",
        (("available_at.desc(), entry.c.id.desc()", "available_at, entry.c.id"),),
        ("tests/contract/test_blocked_keys.py",),
    ),
    Mutant(
        "an idle worker looks at a wall of blocked keys before it looks for what woke it",
        "outboxq/store/claims/partition_keys.py",
        (("[self._recent, *ways] if woken else [*ways, self._recent]", "[*ways, self._recent]"),),
        ("tests/contract/test_blocked_keys.py",),
    ),
    Mutant(
        "prune waits for a caller who took over a key",
        "outboxq/store/retention.py",
        ((".where(sa.or_(keyed.c.id.is_(None), locked.c.id.is_not(None)))", ""),),
        ("tests/dialects/test_what_waits.py",),
    ),
    Mutant(
        "a handler waits for its own transaction on SQLite",
        "outboxq/store/transactions.py",
        (("if (locked := unit.database) is not None and locked == self._database():", "if False:"),),
        ("tests/contract/test_own_transactions.py",),
    ),
    Mutant(
        "two dead letters of one idempotency key run beside each other",
        "outboxq/store/tasks/idempotency.py",
        (("(owner.is_free and owner.id not in task_ids)", "owner.is_free"),),
        ("tests/contract/test_regained_keys.py",),
    ),
    Mutant(
        "verify takes a lease of a clock that was set back for one that never ends",
        "outboxq/store/verify/rows.py",
        (
            (
                "g.later(latest(g), lease_length(g) + seconds(GRACE))",
                "g.later(g.now, lease_length(g) + seconds(GRACE))",
            ),
        ),
        ("tests/contract/test_corruptions.py",),
    ),
    Mutant(
        "verify repairs the task's worker and forgets its lease's",
        "outboxq/store/verify/repairs.py",
        (('steps={"moved": moved, "lease": lease}', 'steps={"moved": moved}'),),
        ("tests/contract/test_corruptions.py",),
    ),
    Mutant(
        "suspects run beside each other",
        "outboxq/worker/claim_loop.py",
        (("        if self._last is None or not self._leases.holds(self._last):\n", "        if True:\n"),),
        ("tests/contract/test_recovery.py", "tests/faults/test_poison.py"),
    ),
    Mutant(
        "suspects that wait for their turn are held, so that a death counts for them too",
        "outboxq/worker/claim_loop.py",
        (
            (
                '            self._give_back([active], "another task whose workers have died is running in this process", delay=delay)\n',
                "            self.pool.submit(active)\n",
            ),
        ),
        ("tests/contract/test_recovery.py", "tests/faults/test_poison.py"),
    ),
    Mutant(
        "a suspect is counted though it had not begun",
        "outboxq/store/claims/recovery.py",
        (("    counts = freed.begun.is_not(sa.false())\n", "    counts = freed.id.is_not(None)\n"),),
        ("tests/contract/test_recovery.py",),
    ),
    Mutant(
        "a task recovered once is a suspect",
        "outboxq/model/records.py",
        (("SUSPECT = 2\n", "SUSPECT = 1\n"),),
        ("tests/contract/test_recovery.py",),
    ),
    Mutant(
        "a recovery is never forgiven",
        "outboxq/store/claims/ends.py",
        (
            (
                "(given.event_type == sql_literal(EventType.RELEASED), execution.recovery_attempts)",
                "(given.event_type.is_not(None), execution.recovery_attempts)",
            ),
        ),
        ("tests/contract/test_recovery.py",),
    ),
    Mutant(
        "a worker takes back what it holds itself",
        "outboxq/worker/upkeep/recovery.py",
        ((" if not self.leases.holds(lease)]", "]"),),
        ("tests/unit/test_recovery.py",),
    ),
    Mutant(
        "a lease is taken back at first sight",
        "outboxq/worker/upkeep/recovery.py",
        (("if since + self._watch <= now]", "if since <= now]"),),
        ("tests/unit/test_recovery.py",),
    ),
    Mutant(
        "nobody makes sure that heartbeats can be written before leases are taken back",
        "outboxq/worker/upkeep/recovery.py",
        (("        if new:\n            self.prove_writable()\n", ""),),
        ("tests/unit/test_recovery.py",),
    ),
    Mutant(
        "what was watched before an outage is taken back right after it",
        "outboxq/worker/upkeep/recovery.py",
        (("        self._watched.clear()\n", ""),),
        ("tests/unit/test_recovery.py",),
    ),
    Mutant(
        "a set clock extends no lease",
        "outboxq/worker/upkeep/recovery.py",
        (("            self.leases.beat_at_once()\n", ""),),
        ("tests/unit/test_recovery.py", "tests/contract/test_recovery.py"),
    ),
    Mutant(
        "a worker that begins after the clock was set back leaves what the clock wrote that was ahead",
        "outboxq/worker/upkeep/recovery.py",
        (("        if not self._has_corrected:\n            self._correct_for_clock()\n", ""),),
        ("tests/unit/test_recovery.py", "tests/contract/test_recovery.py"),
    ),
    Mutant(
        "a claim with a lease of its own is taken for one of a clock that was ahead",
        "outboxq/store/claims/recovery.py",
        (("sa.func.coalesce(of_claim, of_task)", "of_task"),),
        ("tests/contract/test_recovery.py",),
    ),
    Mutant(
        "a retry that a clock ahead wrote waits until the date of that clock",
        "outboxq/store/claims/recovery.py",
        (("has_begun.correlate(task_outbox).exists()", "sa.false()"),),
        ("tests/contract/test_recovery.py",),
    ),
    Mutant(
        "one locked lease stops the heartbeat of all",
        "outboxq/store/claims/ends.py",
        (("with_for_update(of=task_leases, skip_locked=True)", "with_for_update(of=task_leases)"),),
        ("tests/contract/test_stuck_rows.py",),
    ),
    Mutant(
        "one locked task stops the recovery of all",
        "outboxq/store/claims/ends.py",
        ((".with_for_update(skip_locked=True)", ".with_for_update()"),),
        ("tests/contract/test_stuck_rows.py",),
    ),
    Mutant(
        "a stale outbox entry stops the recovery of all",
        "outboxq/store/claims/recovery.py",
        (("    return new.on_conflict_do_nothing()  # type: ignore[no-any-return]\n", "    return new\n"),),
        ("tests/contract/test_stuck_rows.py",),
    ),
    Mutant(
        "an outcome is thrown away while the database is away",
        "outboxq/worker/completer.py",
        (("        if self.store.may_pass(error):\n", "        if False:\n"),),
        ("tests/unit/test_completer.py",),
    ),
    Mutant(
        "an outcome is thrown away when the disk is full",
        "outboxq/worker/completer.py",
        (("        elif self.store.cannot_write_now(error):\n", "        elif False:\n"),),
        ("tests/unit/test_completer.py",),
    ),
    Mutant(
        "a worker claims on although no end can be written",
        "outboxq/worker/claim_loop.py",
        (("        while not self.completer.can_write.is_set() and", "        while False and"),),
        ("tests/contract/test_stuck_rows.py",),
    ),
    Mutant(
        "a transactional task is completed in a second transaction",
        "outboxq/worker/task_runner.py",
        (("self.store.finish([outcome], using=unit.target)", "self.store.finish([outcome])"),),
        (
            (
                "tests/faults/test_failpoints.py::test_whoever_dies_there_leaves_nothing_that_another_does_not_finish"
                "[postgresql-before_commit]"
            ),
        ),
    ),
    Mutant(
        "an error of PostgreSQL that passes is taken for one that stays",
        "outboxq/database/dialects/postgresql_errors.py",
        (('_OUTSIDE | {"55P03", "57014", "53300"}', '_OUTSIDE - {"57P02", "57P03"}'),),
        ("tests/dialects/test_patience.py",),
    ),
    Mutant(
        "a server that is silent is waited for for hours",
        "outboxq/database/dialects/postgresql_session.py",
        (("{**_TCP_TIMEOUTS, **url.query, **_UNICODE}", "{**url.query, **_UNICODE}"),),
        ("tests/dialects/test_patience.py",),
    ),
    Mutant(
        "our own engines show parameters in their errors",
        "outboxq/database/engine.py",
        (("hide_parameters=True", "hide_parameters=False"),),
        ("tests/contract/test_hidden_values.py",),
    ),
    Mutant(
        "errors of our statements on a caller's connection show parameters",
        "outboxq/database/target.py",
        (("hide_parameters=True", "hide_parameters=False"), ("error.hide_parameters = True", "pass")),
        ("tests/contract/test_hidden_values.py",),
    ),
    Mutant(
        "PostgreSQL's DETAIL shows the row that it refused",
        "outboxq/database/dialects/postgresql_errors.py",
        (('_OF_VALUES = ("22", "23")', '_OF_VALUES = ("22",)'),),
        ("tests/contract/test_hidden_values.py",),
    ),
    Mutant(
        "a percentile is the next attempt's where it falls on one",
        "outboxq/store/numbers/metrics.py",
        (("(upto[-1] * percent + 99) // 100", "upto[-1] * percent // 100 + 1"),),
        ("tests/contract/test_metrics.py",),
    ),
    Mutant(
        "prune counts a task's age from its enqueueing",
        "outboxq/database/history.py",
        (("and_(execution.completed_at < before", "and_(execution.created_at < before"),),
        ("tests/contract/test_retention.py",),
    ),
    Mutant(
        "a worker goes on with an SQLite file that another has replaced",
        "outboxq/worker/upkeep/recovery.py",
        (("        self.store.check_file()\n", ""),),
        ("tests/dialects/test_sqlite_file.py",),
    ),
    Mutant(
        "a task is enqueued into an SQLite file that another has replaced",
        "outboxq/database/dialects/sqlite_file.py",
        (("if file is not None and not file.is_there:", "if False:"),),
        ("tests/dialects/test_sqlite_file.py",),
    ),
    Mutant(
        "a new SQLite file may be read by everybody",
        "outboxq/database/dialects/sqlite_file.py",
        (
            (
                "        with suppress(OSError):  # SQLite's own error is better\n            _make(target)\n            known.add(target)\n",
                "",
            ),
        ),
        ("tests/dialects/test_sqlite_file.py",),
    ),
    Mutant(
        "a harness warns of the driver's connection below its own",
        "outboxq/testing/transaction.py",
        (("_driver_connection(target) is not _driver_connection(ours)", "target.connection is not ours.connection"),),
        ("tests/integrations/testing_helpers/test_harness_targets.py",),
    ),
    Mutant(
        "a dashboard in a test shows pages of before the test's last change",
        "outboxq/web/dashboard.py",
        (("        if store.runs_alone:", "        if False:"),),
        ("tests/integrations/testing_helpers/test_dashboard_in_harness.py",),
    ),
    Mutant(
        "the event of a checkpoint does not say why it ended the attempt",
        "outboxq/worker/executor.py",
        ((', data={"reason": request.reason})', ")"),),
        ("tests/unit/test_executor.py",),
    ),
    Mutant(
        "a handler that snoozes for no time runs again without a pause",
        "outboxq/worker/executor.py",
        (("max(request.delay, SHORTEST_SNOOZE)", "request.delay"),),
        ("tests/unit/test_executor.py",),
    ),
    Mutant(
        "the heart stops beating when draining begins",
        "outboxq/worker/worker.py",
        (
            (
                "        self._stop_claiming(limit.total_seconds())\n",
                "        self._stop_services()\n        self._stop_claiming(limit.total_seconds())\n",
            ),
        ),
        ("tests/faults/test_processes.py::test_a_worker_that_drains_longer_than_a_lease_keeps_its_task",),
    ),
    Mutant(
        "what was claimed ahead and not begun is not released at stop",
        "outboxq/worker/worker.py",
        (
            (
                "        parts.pool.wake()\n        parts.completer.give_back(parts.pool.cancel_queued(), STOPPED)\n",
                "        parts.pool.wake()\n",
            ),
            (
                "        join(parts.claim_loop, seconds)\n        parts.completer.give_back(parts.pool.cancel_queued(), STOPPED)\n",
                "        join(parts.claim_loop, seconds)\n",
            ),
        ),
        ("tests/faults/test_poison.py::test_what_was_claimed_ahead_is_run_by_another_at_once_after_the_signal",),
    ),
    Mutant(
        "code runs on a later schema that does not admit it",
        "outboxq/database/revisions.py",
        (("oldest_code is None or oldest_code > REVISION", "oldest_code is None"),),
        ("tests/contract/test_migrations.py::test_another_schema_is_told_in_a_sentence",),
    ),
    Mutant(
        "an upgrade looks at the schema before it has the lock",
        "outboxq/migrations.py",
        (
            (
                "        if not dialect.one_writer:\n            connection",
                "        if dialect.one_writer:\n            connection",
            ),
        ),
        (
            (
                "tests/contract/test_migrations.py"
                "::test_an_upgrade_that_waited_for_a_later_release_to_migrate_leaves_its_tables_alone"
            ),
        ),
    ),
    Mutant(
        "an event type of a later release is no text",
        "outboxq/model/records.py",
        (("return _EVENT_TYPES.get(stored, stored)", "return EventType(stored)"),),
        ("tests/contract/test_later_events.py",),
    ),
    Mutant(
        "a successor that cannot start stops the fleet",
        "outboxq/cli/serving/supervisor.py",
        (("return first and code in _REFUSED", "return code in _REFUSED"),),
        ("tests/unit/test_supervisor.py::test_the_pause_grows_for_processes_that_cannot_start",),
    ),
    Mutant(
        "statements are prepared behind a pooler",
        "outboxq/database/dialects/postgresql_session.py",
        (("        if not direct:\n            raw.prepare_threshold = None\n", ""),),
        ("tests/dialects/test_own_settings.py",),
    ),
    Mutant(
        "times come in the style of the role",
        "outboxq/database/dialects/postgresql_session.py",
        (("_READABLE: Final = (_NO_IDLE_TIMEOUT, \"datestyle = 'ISO'\", ", "_READABLE: Final = (_NO_IDLE_TIMEOUT, "),),
        ("tests/dialects/test_server_settings.py",),
    ),
    Mutant(
        "an enqueue with a key reads times on the caller's connection",
        "outboxq/store/tasks/idempotency.py",
        (
            (
                '        returning=("id",),  # no times, because psycopg cannot read the time format of every caller\'s connection\n',
                "",
            ),
        ),
        ("tests/dialects/test_server_settings.py",),
    ),
    Mutant(
        "a database of any encoding will do",
        "outboxq/database/dialects/postgresql_session.py",
        (("if found is not None and found != _UTF8:", 'if found == "nothing":'),),
        ("tests/dialects/test_encodings.py",),
    ),
    Mutant(
        "interruptions are released without a limit",
        "outboxq/worker/task_runner.py",
        (("    if before >= MAX_INTERRUPTIONS:\n", "    if before < 0:\n"),),
        ("tests/contract/test_interruptions.py",),
    ),
    Mutant(
        "an error from outside on another connection interrupts the task's transaction",
        "outboxq/database/dialects/base.py",
        (
            (
                "self.comes_from_outside(one) and (spoilt or any(one is each for each in known))",
                "self.comes_from_outside(one)",
            ),
        ),
        ("tests/contract/test_interruptions.py",),
    ),
    Mutant(
        "run() in a thread waits for signals that it never gets",
        "outboxq/worker/worker.py",
        (("        if not burst and not in_main_thread():\n", "        if False:\n"),),
        ("tests/contract/test_run_in_a_thread.py",),
    ),
    Mutant(
        "a burst in a thread ends the whole process",
        "outboxq/worker/worker.py",
        (
            (
                "            if not in_main_thread():\n                return self._ending.code(clean=self.stop())\n",
                "",
            ),
        ),
        ("tests/contract/test_run_in_a_thread.py",),
    ),
    Mutant(
        "Ctrl-Break ends a worker on Windows in the middle of a task",
        "outboxq/worker/signals.py",
        ((', "SIGBREAK")', ")"),),
        ("tests/unit/test_without_fork.py",),
    ),
    Mutant(
        "True is taken for a number",
        "outboxq/payload/values.py",
        (("(cls is not bool and isinstance(value, self.accepts))", "isinstance(value, self.accepts)"),),
        ("tests/unit/test_typed_arguments.py",),
    ),
    Mutant(
        "the fields of a dataclass are compared with their plain types",
        "outboxq/payload/annotations.py",
        (("_Compiler(False, self.known)", "self"),),
        ("tests/unit/test_typed_arguments.py",),
    ),
    Mutant(
        "missing tables are told in the words of the database",
        "outboxq/store/schema.py",
        (("    if not target.dialect.is_undefined(error):\n", "    if True:\n"),),
        ("tests/contract/test_missing_tables.py",),
    ),
    Mutant(
        "an engine's listeners are not told of our transactions",
        "outboxq/database/own_target.py",
        (('    if not getattr(engine, "_has_events", True):\n        return False\n', "    return False\n"),),
        ("tests/dialects/test_own_target.py",),
    ),
    Mutant(
        "a connection that was asked for does not end its transaction",
        "outboxq/database/own_target.py",
        (("        self._is_bare = False\n        return connection", "        return connection"),),
        ("tests/dialects/test_own_target.py",),
    ),
    Mutant(
        "a connection that is lost at the COMMIT stays in the pool with all others",
        "outboxq/database/own_target.py",
        (("self._as_sqlalchemys(error, None, self._raw())", "self._wrapped(error, None)"),),
        ("tests/dialects/test_own_target.py",),
    ),
    Mutant(
        "a connection whose COMMIT Ctrl-C interrupted is used again",
        "outboxq/database/own_target.py",
        (("            if not isinstance(error, Exception):  # a", "            if False:  # a"),),
        ("tests/dialects/test_own_target.py",),
    ),
    Mutant(
        "a NUL divides an element of an array",
        "outboxq/database/column_types.py",
        ((' and (text := "\\0".join(values)).count("\\0") < len(values)', ' and (text := "\\0".join(values))'),),
        ("tests/dialects/test_packed_arrays.py",),
    ),
    Mutant(
        "a connection to a standby is kept",
        "outboxq/database/own_target.py",
        (
            (
                "            if is_midway or self.dialect.is_of_standby(error, raw):\n",
                "            if is_midway:\n",
            ),
        ),
        ("tests/faults/test_standby.py",),
    ),
    Mutant(
        "what fails again and again is said each time",
        "outboxq/store/failure_log.py",
        (("            if now - self._logged_at.get(kind, -math.inf) < SAY_EVERY:\n", "            if False:\n"),),
        ("tests/unit/test_failure_log.py",),
    ),
    Mutant(
        "the log of a command prints tracebacks of tasks that nobody asked for",
        "outboxq/cli/serving/logs.py",
        (("            if not self._tracebacks:\n", "            if False:\n"),),
        ("tests/unit/test_end_log.py",),
    ),
    Mutant(
        "the record of a last failure goes without its exception",
        "outboxq/worker/log_lines.py",
        (("            has_traceback = kind is EventType.FAILED or ", "            has_traceback = "),),
        ("tests/contract/test_worker_log.py",),
    ),
    Mutant(
        "the beginning of several ids is taken for the first of them",
        "outboxq/store/tasks/tasks.py",
        (("    if len(rows) > 1:\n", "    if len(rows) > _NAMED + 1:\n"),),
        ("tests/contract/test_task_ids.py",),
    ),
    Mutant(
        "a task is said to be free, though it waits for the first one of its key",
        "outboxq/store/explain/sentences.py",
        (('if (first := row["head"]) not in {None, task.id}:', 'if (first := row["head"]) == task.id:'),),
        ("tests/contract/test_explain.py",),
    ),
    Mutant(
        "manage.py outboxq works on another database than it was told",
        "outboxq/contrib/django/management/commands/outboxq.py",
        (("lambda database: outboxes[database].store,", "lambda database: outboxes[DEFAULT_DB_ALIAS].store,"),),
        ("tests/integrations/django_app/test_django_commands.py",),
    ),
    Mutant(
        "a command inside a group is not there in a framework",
        "outboxq/cli/framework.py",
        (("        if not isinstance(found, click.Group):\n", "        if True:\n"),),
        ("tests/unit/test_framing.py",),
    ),
    Mutant(
        "a command that is printed leaves out the address that was typed",
        "outboxq/cli/database.py",
        ((' if typed.get("url") else []', " if False else []"),),
        ("tests/unit/test_typed.py",),
    ),
    Mutant(
        "a walk over all modules imports ours while time is frozen",
        "outboxq/__init__.py",
        (("globals() if is_frozen else [", "["),),
        ("tests/unit/test_startup.py",),
    ),
    Mutant(
        "the admin shows times in UTC under the name of another zone",
        "outboxq/contrib/django/admin.py",
        (("{here.replace(tzinfo=None).isoformat", "{moment.replace(tzinfo=None).isoformat"),),
        ("tests/integrations/django_admin/test_django_admin.py",),
    ),
    Mutant(
        "the newest events of a task are its oldest",
        "outboxq/store/tasks/tasks.py",
        (("ends.order_by(event.lease_token.desc())", "ends.order_by(event.lease_token)"),),
        ("tests/contract/test_events.py",),
    ),
    Mutant(
        "the default waits are other ones than the page about retries says",
        "outboxq/retry.py",
        (("multiplier=2, max=3600", "multiplier=3, max=3600"),),
        ("tests/docs/test_retries_page.py",),
    ),
    Mutant(
        "a worker drains for longer than the services of the pages wait",
        "outboxq/worker/options.py",
        (
            (
                '    drain_timeout: timedelta = field(default=timedelta(seconds=25), metadata={"check": duration})\n',
                '    drain_timeout: timedelta = field(default=timedelta(seconds=35), metadata={"check": duration})\n',
            ),
        ),
        ("tests/docs/test_deploying_page.py",),
    ),
    Mutant(
        "a script is told the id of an error, in a second line",
        "outboxq/cli/console.py",
        (("if error is not None and sys.stderr.isatty():", "if error is not None:"),),
        ("tests/docs/test_troubleshooting_pages.py",),
    ),
    Mutant(
        "an error has other words than its page",
        "outboxq/task/registry.py",
        (("import the module that declares it", "import its module"),),
        ("tests/docs/test_troubleshooting_pages.py",),
    ),
    Mutant(
        "an option of a task is not in the reference",
        "outboxq/outbox.py",
        (("            priority: -100 to 100. Tasks with a higher priority start first.\n", ""),),
        ("tests/docs/test_reference_page.py",),
    ),
    Mutant(
        "a claim that fails for the 1024th time in a row kills the worker",
        "outboxq/worker/claim_loop.py",
        (("2 ** min(failures, 10)", "2**failures"),),
        ("tests/unit/test_claim_loop.py",),
    ),
    Mutant(
        "a worker that gave its tasks back at once ends with 0",
        "outboxq/worker/worker.py",
        ((" and not self.is_abandoned else 1", " else 1"),),
        (
            "tests/contract/test_worker_life.py::test_told_to_stop_at_once_it_does_not_end_with_0_where_its_handlers_end_first",
        ),
    ),
    Mutant(
        "a lock that the handler's own rows wait for in vain is an interruption",
        "outboxq/worker/steps.py",
        (("if is_ours and (store", "if (store"),),
        ("tests/contract/test_interruptions.py",),
    ),
    Mutant(
        "a worker is started beside the log of a file that was replaced",
        "outboxq/cli/serving/supervisor.py",
        (("        if code == EXIT_FILE:\n            return True\n", ""),),
        ("tests/unit/test_supervisor.py::test_a_file_that_a_successor_would_destroy_ends_all_at_any_time",),
    ),
    Mutant(
        "a fleet without privileges is started for ever",
        "outboxq/cli/serving/supervisor.py",
        (("frozenset({EXIT_USAGE, EXIT_SCHEMA, EXIT_PERMISSION})", "frozenset({EXIT_USAGE, EXIT_SCHEMA})"),),
        ("tests/unit/test_supervisor.py::test_a_process_that_can_never_start_ends_all",),
    ),
    Mutant(
        "a file that was put beside the log of another is opened",
        "outboxq/database/dialects/sqlite_file.py",
        (
            ("not file.is_there and file.has_left_its_log:", "not file.is_there and False:"),
            ("            if file.has_left_its_log:\n                raise replaced(file.path)\n", ""),
        ),
        ("tests/dialects/test_replaced_file.py",),
    ),
    Mutant(
        "a deleted SQLite file is made anew, and empty",
        "outboxq/database/dialects/sqlite_file.py",
        (
            (
                "if file is not None and not file.is_there and file.has_left_its_log:",
                "if file is not None and Path(file.path).exists() and not file.is_there and file.has_left_its_log:",
            ),
        ),
        ("tests/dialects/test_sqlite_file.py",),
    ),
    Mutant(
        "a cure forgets the URL that was typed",
        "outboxq/integration/__init__.py",
        (("[self.options] if self.options else []", "[]"),),
        ("tests/contract/test_cli_operators.py",),
    ),
    Mutant(
        "a cure starts a worker of APP where the environment names one",
        "outboxq/cli/database.py",
        (("finds_app=finds_app and", "finds_app=False and"),),
        ("tests/contract/test_cli_operators.py",),
    ),
    Mutant(
        "an application's upgrade does not say which revision it reached",
        "outboxq/cli/db.py",
        (('is now {revision}"', 'is up to date"'),),
        ("tests/contract/test_cli.py",),
    ),
    Mutant(
        "a retry is put into the trace of the request that enqueued it",
        "outboxq/contrib/opentelemetry.py",
        (("context.attempt > 1 or ", ""),),
        ("tests/integrations/tracing/test_opentelemetry_hook.py",),
    ),
    Mutant(
        "a span around the worker is the parent of every task",
        "outboxq/contrib/opentelemetry.py",
        (("base = trace.set_span_in_context(INVALID_SPAN)", "base = contexts.get_current()"),),
        ("tests/integrations/tracing/test_opentelemetry_hook.py",),
    ),
    Mutant(
        "the span of an attempt whose lease was lost tells of no error",
        "outboxq/contrib/opentelemetry.py",
        (("if not attempt.has_ended:", "if False:"),),
        ("tests/integrations/tracing/test_opentelemetry_hook.py",),
    ),
    Mutant(
        "one tracing library takes the place of another one's baggage",
        "outboxq/contrib/tracing.py",
        ((" | {key: one for key, one in theirs.items() if key not in mine}", ""),),
        ("tests/integrations/tracing/test_opentelemetry_hook.py",),
    ),
    Mutant(
        "a Retry that a handler asks for is an error in its trace",
        "outboxq/contrib/tracing.py",
        (("error is None or isinstance(error, Retry)", "error is None"),),
        ("tests/integrations/tracing/test_opentelemetry_hook.py",),
    ),
    Mutant(
        "an error is reported to Sentry at each attempt",
        "outboxq/contrib/sentry.py",
        (("(is_final or self._every_attempt)", "True"),),
        ("tests/integrations/tracing/test_sentry_hook.py",),
    ),
    Mutant(
        "Sentry gets the arguments of a task unasked",
        "outboxq/contrib/sentry.py",
        (("if _may_have_arguments():", "if True:"),),
        ("tests/integrations/tracing/test_sentry_hook.py",),
    ),
    Mutant(
        "Sentry gets the variables of outboxq's own functions",
        "outboxq/contrib/sentry.py",
        (('frame.pop("vars", None)', "pass"),),
        ("tests/integrations/tracing/test_sentry_hook.py",),
    ),
    Mutant(
        "each attempt at a tick is a check-in of its own",
        "outboxq/contrib/sentry.py",
        (("id=context.task_id.hex", 'id=f"{context.task_id.hex}{context.attempt}"'),),
        ("tests/integrations/tracing/test_sentry_monitors.py",),
    ),
    Mutant(
        "a time that comes twice in autumn is two ticks of a fixed rule",
        "outboxq/model/rules.py",
        (("self._fixed_after(moment) if self._is_fixed else", "self._fixed_after(moment) if False else"),),
        ("tests/unit/test_rules.py",),
    ),
    Mutant(
        "a repeated rule leaves out the hour that comes again in autumn",
        "outboxq/model/rules.py",
        (("        if self._offset(soon) != offset:\n", "        if False:\n"),),
        ("tests/unit/test_rules.py",),
    ),
    Mutant(
        "ticks are counted in whole days across a change of the clock",
        "outboxq/model/rules.py",
        ((" and self._offset(begin - _SECOND) == self._offset(last)", ""),),
        ("tests/unit/test_rules.py",),
    ),
    Mutant(
        "a rule without any moment is taken",
        "outboxq/model/rules.py",
        (("        _without_moment(text)\n", "        InvalidArgument(text)\n"),),
        ("tests/unit/test_rules.py",),
    ),
    Mutant(
        "a clock that is set back has ticks planted again",
        "outboxq/model/rules.py",
        (("rule.after(max(done, now - MICROSECOND))", "rule.after(now - MICROSECOND)"),),
        ("tests/unit/test_planning.py",),
    ),
    Mutant(
        "a plan that is cut short forgets the rest",
        "outboxq/model/rules.py",
        (("        planted_until = ticks[-1]\n", "        planted_until = now + horizon\n"),),
        ("tests/unit/test_planning.py",),
    ),
    Mutant(
        "what is caught up is not bounded",
        "outboxq/model/rules.py",
        (("islice(rule.ticks(done), schedule.catch_up_limit)", "rule.ticks(done)"),),
        ("tests/unit/test_planning.py",),
    ),
    Mutant(
        "jitter differs from worker to worker",
        "outboxq/model/rules.py",
        (('f"{schedule.name}\\0{tick.timestamp()}"', 'f"{schedule.name}\\0{id(object)}{tick.timestamp()}"'),),
        ("tests/unit/test_planning.py",),
    ),
    Mutant(
        "a schedule's arguments are not checked against its task",
        "outboxq/task/task.py",
        (("        self.parameters.check_call((), {})\n", ""),),
        ("tests/contract/test_periodic.py",),
    ),
    Mutant(
        "a worker does not declare the schedules of its code",
        "outboxq/worker/assembly.py",
        (("partial(declare_schedules, tasks=tasks)", "lambda store: None"),),
        ("tests/contract/test_periodic.py",),
    ),
    Mutant(
        "a test's clock moves on although a tick's task has made another task due",
        "outboxq/testing/claims.py",
        (("self.moment = now if ahead.due else now +", "self.moment = now +"),),
        ("tests/integrations/testing_helpers/test_harness_schedules.py",),
    ),
    Mutant(
        "a savepoint that a handler of a series has left open goes on into the next one",
        "outboxq/testing/transaction.py",
        (("                    _roll_back_above(self._around, target.connection)", "                    pass"),),
        ("tests/integrations/testing_helpers/test_harness_series.py",),
    ),
    Mutant(
        "a test's clock moves over ticks that are not planted yet",
        "outboxq/testing/harness.py",
        (("if moment is not None and moment <= planted:", "if moment is not None and moment <= until:"),),
        ("tests/integrations/testing_helpers/test_harness_schedules.py",),
    ),
    Mutant(
        "results that a test gives to steps are checked although no task with steps completed",
        "outboxq/testing/running.py",
        (("(is_complete and bool(names))", "is_complete"),),
        ("tests/integrations/testing_helpers/test_harness_steps.py",),
    ),
    Mutant(
        "names of results that a test gives are not checked if the tasks run in an inner block",
        "outboxq/testing/running.py",
        (("if self.within is not None:", "if False:"),),
        ("tests/integrations/testing_helpers/test_harness_steps.py",),
    ),
    Mutant(
        "a task of another program cannot be refuted although the outbox knows it",
        "outboxq/testing/enqueued.py",
        (("known = self._known(found) | others", "known = self._known(found)"),),
        ("tests/integrations/testing_helpers/test_harness_assertions.py",),
    ),
    Mutant(
        "the store takes the state of a Ready task for no status, and does not say how to ask for it",
        "outboxq/store/arguments.py",
        (("if given in tuple(Waiting):", "if False:"),),
        ("tests/contract/test_task_pages.py",),
    ),
    Mutant(
        "a harness claims the next task before the end of a batch's last one is counted",
        "outboxq/testing/claims.py",
        ((" and not is_batch(outcome.claim.pipeline_execution_id)", ""),),
        ("tests/integrations/testing_helpers/test_harness_schedules.py",),
    ),
    Mutant(
        "a harness loses the end of a task if the next one cannot be claimed",
        "outboxq/testing/claims.py",
        (
            (
                "            return store.finish([outcome])\n\n    def _next(",
                "            return frozenset()\n\n    def _next(",
            ),
        ),
        ("tests/integrations/testing_helpers/test_harness_schedules.py",),
    ),
    Mutant(
        "a harness takes a task of another outbox for one that was not enqueued",
        "outboxq/testing/harness.py",
        (("        self._refuse_foreign(task)\n        return task if", "        return task if"),),
        ("tests/integrations/testing_helpers/test_harness_assertions.py",),
    ),
    Mutant(
        "the check of a Django project sees only the tasks that were imported by chance",
        "outboxq/contrib/django/operations.py",
        (('    autodiscover_modules("tasks")\n', ""),),
        ("tests/docs/test_django_page.py",),
    ),
    Mutant(
        "a test's clock runs past a tick by itself",
        "outboxq/testing/harness.py",
        (("            self._wait_for_ticks()\n", ""),),
        ("tests/integrations/testing_helpers/test_harness_schedules.py",),
    ),
    Mutant(
        "an older release declares a schedule over the newer one's that it waited for",
        "outboxq/store/producing/schedules.py",
        (("if declared_by is not None and not is_new(", "if declared_by is None and not is_new("),),
        ("tests/contract/test_planting.py",),
    ),
    Mutant(
        "a prune leaves the ticks of its tasks",
        "outboxq/store/retention.py",
        (('            "ticks": of_pruned(tables.schedule_ticks),\n', ""),),
        ("tests/contract/test_schedules.py", "tests/contract/test_planting.py"),
    ),
    Mutant(
        "a prune never pauses on a PostgreSQL server that is busy",
        "outboxq/store/retention.py",
        (("else min(each / self._shortest - _USUAL, _SHARE)", "else 0.0"),),
        ("tests/unit/test_pace_of_prune.py",),
    ),
    Mutant(
        "a prune that holds up others for long goes on with batches as large",
        "outboxq/store/retention.py",
        (("self.batch = max(self.batch // 2, _FEWEST)", "pass"),),
        ("tests/unit/test_pace_of_prune.py",),
    ),
    Mutant(
        "a worker claims as many tasks with large arguments as with small ones",
        "outboxq/worker/claim_loop.py",
        (("int(_WAITING_BYTES / self._bytes_each)", "_WAITING_BYTES"),),
        ("tests/contract/test_worker_throughput.py",),
    ),
    Mutant(
        "a prune leaves the steps of its tasks",
        "outboxq/store/retention.py",
        (('            "steps": of_pruned(tables.task_steps),\n', ""),),
        ("tests/contract/test_steps_around.py",),
    ),
    Mutant(
        "a schedule does not tick in a test whose date has passed",
        "outboxq/testing/harness.py",
        (("            self._begin_schedules()\n", ""),),
        ("tests/integrations/testing_helpers/test_harness_schedules.py",),
    ),
    Mutant(
        "planters do not lock the schedule, so each plants what another just does",
        "outboxq/store/producing/schedules_sql.py",
        (("_after).limit(limit).with_for_update(skip_locked=True)", "_after).limit(limit)"),),
        ("tests/contract/test_planting.py",),
    ),
    Mutant(
        "a planter waits for the schedules of another",
        "outboxq/store/producing/schedules_sql.py",
        (("_after).limit(limit).with_for_update(skip_locked=True)", "_after).limit(limit).with_for_update()"),),
        ("tests/contract/test_planting.py",),
    ),
    Mutant(
        "a tick that has a task already gets another one",
        "outboxq/store/producing/planting.py",
        (("for _, _, task in ticks if task.id in free]", "for _, _, task in ticks]"),),
        ("tests/contract/test_schedules.py",),
    ),
    Mutant(
        "ticks and their schedule are planted in two transactions",
        "outboxq/store/producing/planting.py",
        (
            (
                "        target.run(schedules_sql.advance, values, forward)\n",
                (
                    "        target.execute('COMMIT', {})\n        target.execute('BEGIN', {})\n"
                    "        target.run(schedules_sql.advance, values, forward)\n"
                ),
            ),
        ),
        ("tests/contract/test_schedules.py",),
    ),
    Mutant(
        "planting goes back to where another planter has been",
        "outboxq/store/producing/schedules_sql.py",
        ((".where(_schedule.name == given.name, forward)", ".where(_schedule.name == given.name)"),),
        ("tests/contract/test_schedules.py", "tests/contract/test_planting.py"),
    ),
    Mutant(
        "a schedule that a clock ahead has planted is left until the clock comes there",
        "outboxq/store/producing/schedules_sql.py",
        (("sa.or_(_schedule.planted_until < _until, _planted_wrongly(g))", "_schedule.planted_until < _until"),),
        ("tests/contract/test_clock_jumps.py",),
    ),
    Mutant(
        "a schedule is taken for one that was planted by a clock ahead when the clock is set back",
        "outboxq/store/producing/schedules_sql.py",
        (
            (
                "sa.or_(_schedule.updated_at > near, ~has_had_ticks)",
                "sa.or_(_schedule.updated_at > near, has_had_ticks)",
            ),
        ),
        ("tests/contract/test_clock_jumps.py",),
    ),
    Mutant(
        "ticks that were missed leave no mark of the moment from which on none was",
        "outboxq/store/producing/planting.py",
        (("restarted_at=now if found.begins_anew else None", "restarted_at=None"),),
        ("tests/contract/test_clock_jumps.py",),
    ),
    Mutant(
        "a tick planted for the far future holds back the next ticks of its key",
        "outboxq/store/producing/planting.py",
        (
            (
                '    cancel_planted(store, target, schedule, now, delayed=False, reason="planted by a clock that was running fast")\n',
                "",
            ),
        ),
        ("tests/contract/test_clock_jumps.py",),
    ),
    Mutant(
        "a change after the clock was set right keeps a schedule planted ahead",
        "outboxq/store/producing/schedules.py",
        (("        if not stands_ahead(schedule, now):\n            return schedule\n", "        return schedule\n"),),
        ("tests/contract/test_clock_jumps.py",),
    ),
    Mutant(
        "a pause forgets the ticks that it cancels",
        "outboxq/store/producing/schedules.py",
        (
            (
                "until = min(schedule.planted_until, now, *([] if first is None else [planting.before(first)]))",
                "until = schedule.planted_until",
            ),
        ),
        ("tests/contract/test_schedules.py",),
    ),
    Mutant(
        "a change cancels what a worker has begun",
        "outboxq/store/producing/schedules_sql.py",
        ((", _execution.first_started_at.is_(None))", ")"),),
        ("tests/contract/test_schedules.py",),
    ),
    Mutant(
        "an older release overwrites what a newer one declares",
        "outboxq/store/producing/schedules.py",
        (("    if is_older(declared_by, stored.declared_by):\n        return False\n", ""),),
        ("tests/contract/test_schedules.py",),
    ),
    Mutant(
        "an attempt whose lease was lost counts as completed",
        "outboxq/worker/meter.py",
        (("                if lost and claim.id in lost:\n", "                if False:\n"),),
        ("tests/unit/test_meter.py",),
    ),
    Mutant(
        "an attempt that the completer and the hand-back end counts twice",
        "outboxq/worker/leases.py",
        (("                if one is None or not one.is_counted\n", ""),),
        ("tests/unit/test_counted_attempts.py",),
    ),
    Mutant(
        "an outcome that is tried again has been counted as lost",
        "outboxq/worker/completer.py",
        (("                unwritten = lost | locked\n", "                unwritten = locked\n"),),
        ("tests/unit/test_counted_attempts.py",),
    ),
    Mutant(
        "a worker does not wait for its last counts",
        "outboxq/worker/worker.py",
        (("_LAST_COUNTS_TIMEOUT = 5.0", "_LAST_COUNTS_TIMEOUT = 0.0"),),
        ("tests/contract/test_metrics.py",),
    ),
    Mutant(
        "what a worker has counted is sent again under other ids after an error",
        "outboxq/worker/upkeep/__init__.py",
        (
            (
                "record(self._unwritten, worker_id",
                "record([__import__('dataclasses').replace(one, id=uuid7()) for one in self._unwritten], worker_id",
            ),
        ),
        ("tests/contract/test_metrics.py",),
    ),
    Mutant(
        "what a failed write had is left out of the next one",
        "outboxq/worker/upkeep/__init__.py",
        (
            (
                "        self._write_rows()\n        self._unwritten = self._counted()\n",
                "        self._unwritten = self._counted()\n",
            ),
        ),
        ("tests/contract/test_metrics.py",),
    ),
    Mutant(
        "of the rows that are summed up, one stands for all",
        "outboxq/store/numbers/metrics.py",
        (
            (
                "**{name: sa.func.sum(row[name]) for name in SUMMED}",
                "**{name: sa.func.max(row[name]) for name in SUMMED}",
            ),
        ),
        ("tests/contract/test_metrics.py",),
    ),
    Mutant(
        "two workers sum up statistics at once",
        "outboxq/store/numbers/metrics.py",
        (("            if not locked(self._store, target, SUM_UP):\n", "            if False:\n"),),
        ("tests/contract/test_metrics.py",),
    ),
    Mutant(
        "a queue whose dead letters lie beyond the bound has none",
        "outboxq/store/numbers/live.py",
        (('mine["failed_at_least"] = True', 'mine["failed_at_least"] = "failed" in mine'),),
        ("tests/contract/test_samples.py",),
    ),
    Mutant(
        "a sample of the future is the last one",
        "outboxq/store/numbers/samples.py",
        ((".where(_sample.at <= g.now)", ""),),
        ("tests/contract/test_samples.py",),
    ),
    Mutant(
        "each worker takes samples",
        "outboxq/store/numbers/maintenance_jobs.py",
        (("_job.due_at <= g.now, _job.done_at", "_job.due_at.is_not(None), _job.done_at"),),
        ("tests/contract/test_samples.py",),
    ),
    Mutant(
        "what waits is counted beyond the bound",
        "outboxq/store/numbers/live.py",
        ((".where(of_queue, *where).limit(_most)", ".where(of_queue, *where).limit(_most * 1000)"),),
        ("tests/dialects/test_plans.py",),
    ),
    Mutant(
        "a page that nobody sees refreshes itself",
        "outboxq/web/static/outboxq.js",
        (("if (document.hidden || isBusy()) return;", "if (isBusy()) return;"),),
        ("tests/integrations/dashboard/test_refreshing.py",),
    ),
    Mutant(
        "a refresh takes a half-filled form away",
        "outboxq/web/static/outboxq.js",
        (("if (document.hidden || isBusy()) return;", "if (document.hidden) return;"),),
        ("tests/integrations/dashboard/test_refreshing.py",),
    ),
    Mutant(
        "charts that have not changed are drawn again",
        "outboxq/web/rendering.py",
        (("lru_cache(maxsize=_MOST_DRAWN)(partial(_drawn, found))", "partial(_drawn, found)"),),
        ("tests/unit/test_charts.py::test_a_chart_is_drawn_again_only_if_it_differs",),
    ),
    Mutant(
        "texts of tasks are HTML",
        "outboxq/web/rendering.py",
        (("autoescape=True", "autoescape=False"),),
        ("tests/integrations/dashboard/test_hostile_pages.py",),
    ),
    Mutant(
        "invisible characters stay invisible in pages",
        "outboxq/model/wording.py",
        (("one if one.isprintable() or one in", "one if True or one in"),),
        ("tests/integrations/dashboard/test_hostile_pages.py",),
    ),
    Mutant(
        "a lost worker stays a problem after a person has recovered its tasks",
        "outboxq/store/numbers/problem.py",
        (("return not self.held and self.by_person is not None", "return False"),),
        ("tests/contract/test_problems.py",),
    ),
    Mutant(
        "a burst succeeds although a broker failed",
        "outboxq/worker/relays/__init__.py",
        (("failed = failed or is_failing", "failed = False"),),
        ("tests/contract/test_run_in_a_thread.py",),
    ),
    Mutant(
        "a relay that had an event's idempotency key before counts as not stored",
        "outboxq/outbox.py",
        (("missing -= {one.task_name for one in store.subscriptions.list(using=target)}", "missing -= set()"),),
        ("tests/contract/test_missed_events.py",),
    ),
    Mutant(
        "a second value for an option replaces the first",
        "outboxq/cli/parameters.py",
        (("if one != typed[0]]", "if False]"),),
        ("tests/unit/test_repeated_options.py",),
    ),
    Mutant(
        "a process id that two workers have stands for one of them",
        "outboxq/store/claims/worker_orders.py",
        (("if len(found) > 1:", "if False:"),),
        ("tests/contract/test_worker_orders.py",),
    ),
)


RUN = (sys.executable, "-m", "pytest", "--full", "-m", "not campaign", "-x", "-q", "-n", "2", "-p", "no:cacheprovider")


def main(*wanted: str) -> int:
    survivors = []
    for mutant in MUTANTS:
        if wanted and not any(word in mutant.mistake for word in wanted):
            continue
        caught = _caught_by(mutant)
        print(
            f"{'caught ' if caught else 'SURVIVED'}  {mutant.mistake}\n          {caught or 'no test failed'}",
            flush=True,
        )
        if not caught:
            survivors.append(mutant)
    print(f"{len(survivors)} survived")
    return 1 if survivors else 0


def _caught_by(mutant: Mutant) -> str:
    """The first test that failed on a copy of the repository with the mistake in it."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "outboxq"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", ".nox", ".*_cache", "__pycache__"))
        target = copy / mutant.file
        text = target.read_text()
        for old, new in mutant.changes:
            assert old in text, f"{mutant.mistake}: the text to break is not in {mutant.file} any more"
            text = text.replace(old, new)
        target.write_text(text)
        run = subprocess.run(
            [*RUN, *mutant.tests],
            cwd=copy,
            # The cache has the browser, where the machine has none.
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(copy), "HOME": directory, "XDG_CACHE_HOME": CACHE},
            capture_output=True,
            text=True,
            check=False,
        )
    failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))]
    if run.returncode != 0 and not failed:
        raise RuntimeError(f"{mutant.mistake}: the tests could not run\n{run.stdout[-3000:]}\n{run.stderr[-2000:]}")
    return failed[0].partition(" - ")[0] if failed else ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
