"""Mistakes that the tests must detect: `nox -s mutants`.

Each mutant is a mistake that authors of queues are known to make. The run makes it in a copy of the repository, where
at least one of the named tests must fail. The run fails if a mutant survives, or if its text is no longer found.
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
        "a destructive command is suggested for a word that only resembles its name",
        "outboxq/cli/guesses.py",
        (("if one not in _DESTRUCTIVE or", "if True or"),),
        ("tests/unit/test_guesses.py",),
    ),
    Mutant(
        "a relay publishes an event before the broker has answered an earlier one with the same key",
        "outboxq/worker/relays/publishing.py",
        (("if key is None or key not in seen:", "if True:"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a relay publishes an event although an earlier event with its key is unsure",
        "outboxq/worker/relays/publishing.py",
        (("one.id in report.unsure or (holds", "False or (holds"),),
        ("tests/unit/test_publishing.py",),
    ),
    Mutant(
        "a relay that holds keys publishes an event after the broker has refused an earlier one with its key",
        "outboxq/worker/relays/publishing.py",
        (("(holds and one.id in report.refused)", "False"),),
        ("tests/unit/test_publishing.py",),
    ),
    Mutant(
        "a relay counts an event as refused although the broker became unreachable",
        "outboxq/worker/relays/publishing.py",
        (("if len(report.confirmed) == confirmed_before:", "if False:"),),
        ("tests/unit/test_publishing.py",),
    ),
    Mutant(
        "an event that makes every call to the transport raise an error stops its relay",
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
        "a sender that has lost its lease still records outcomes",
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
        "a worker leases a shard while another worker's lease of it is valid",
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
        "events with a held key overtake a redriven event that is waiting in the outbox",
        "outboxq/store/messages/relays_sql.py",
        (("for table in (partition_claims, task_outbox):", "for table in (partition_claims,):"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a worker sends the messages of new shards while the leases of the old ones are valid",
        "outboxq/store/messages/relays.py",
        (("[(relay, shard, token, free_at) for shard", "[(relay, shard, token, None) for shard"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a relay retries an unreachable broker without a pause",
        "outboxq/store/messages/relays.py",
        (('waits = seen["paused"] or (seen["try_in"] is not None and seen["try_in"] > 0)', 'waits = seen["paused"]'),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a sender extends its lease forever although its transport never returns",
        "outboxq/worker/relays/sender.py",
        (("and now > end + _OVERTIME]", "and False]"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a sender serves its shards one after the other although each has its own connection",
        "outboxq/worker/relays/sender.py",
        (("looks = _at_once(self._work, shards)", "looks = [self._work(one) for one in shards]"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a sender serves shards that share a transport at the same time",
        "outboxq/worker/relays/sender.py",
        (("if len(shards) == 1 or not all(one.connection.is_own for one in shards):", "if len(shards) == 1:"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a sender ignores the failure of a shard's thread",
        "outboxq/worker/relays/sender.py",
        (("    if errors:\n", "    if False:\n"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a sender sleeps although an earlier open transaction may still emit an event",
        "outboxq/worker/relays/sender.py",
        (("is_complete = is_complete and all(one.is_proven for one in self._shards.values())", "pass"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "a relay stores a second event with the same idempotency key",
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
        "removing a relay leaves the idempotency keys of its events behind",
        "outboxq/store/messages/relays_sql.py",
        (("accepted.consumer == task_name, accepted.source", "accepted.consumer == '', accepted.source"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "an emit reports that a relay will send an event although the relay has already received it",
        "outboxq/store/producing/fanout.py",
        (('if row["accepted_by"] is not None]', "]"),),
        ("tests/contract/test_broker_relays.py",),
    ),
    Mutant(
        "the explanation of an event that is waiting for an open transaction says that the event is due",
        "outboxq/store/explain/relays.py",
        (("    if not target.dialect.one_writer:\n", "    if False:\n"),),
        ("tests/contract/test_relay_reasons.py",),
    ),
    Mutant(
        "a receiver keeps waiting after its broker has come back",
        "outboxq/worker/receiver.py",
        (("            if not messages:\n                self._works()\n", ""),),
        ("tests/contract/test_receivers.py",),
    ),
    Mutant(
        "a webhook is sent to an internal address if the host's first address is public",
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
        "an IPv6 address that contains an internal IPv4 address counts as public",
        "outboxq/webhooks.py",
        (('_inner(ip_address(text.partition("%")[0]))', 'ip_address(text.partition("%")[0])'),),
        ("tests/unit/test_webhooks.py",),
    ),
    Mutant(
        "an old webhook with a correct signature is accepted again",
        "outboxq/webhooks.py",
        (("    if abs(age) > duration(", "    if age < -duration("),),
        ("tests/unit/test_webhooks.py",),
    ),
    Mutant(
        "an endpoint that answers one byte at a time keeps the handler busy",
        "outboxq/webhooks.py",
        (("    timer.start()\n", ""),),
        ("tests/unit/test_webhooks.py",),
    ),
    Mutant(
        "a relay parses and reformats the numbers in a payload on their way to an endpoint",
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
        "a receiver acknowledges a message before the message's task is committed",
        "outboxq/worker/receiver.py",
        (
            (
                (
                    "            self._store.inbox.receive([one for message in messages for one in self._reader.read(message)])\n"
                    "            with self._reaching():\n"
                    "                connection.acknowledge(messages)\n"
                ),
                (
                    "            with self._reaching():\n"
                    "                connection.acknowledge(messages)\n"
                    "            self._store.inbox.receive([one for message in messages for one in self._reader.read(message)])\n"
                ),
            ),
        ),
        ("tests/contract/test_receivers.py",),
    ),
    Mutant(
        "an unsigned webhook becomes a task",
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
        "a redelivered message becomes a second task",
        "outboxq/store/messages/inbox.py",
        (("if one.key in new and first[one.key] is one]", "if one.key in first]"),),
        ("tests/contract/test_receivers.py",),
    ),
    Mutant(
        "a receiver enqueues the tasks of one key in the order of their message ids",
        "outboxq/store/messages/inbox.py",
        (("[one.task for one in arrivals if", "[one.task for _, one in sorted(first.items()) if"),),
        ("tests/contract/test_receivers.py",),
    ),
    Mutant(
        "a message that occurs twice in one call is placed at its last position",
        "outboxq/store/messages/inbox.py",
        (("for one in reversed(arrivals)}", "for one in arrivals}"),),
        ("tests/contract/test_receivers.py",),
    ),
    Mutant(
        "a receiver parses and reformats the numbers in the payload of a message",
        "outboxq/model/cloud_events.py",
        (('_member(text, "data")', 'json.dumps(value["data"])'),),
        ("tests/unit/test_brokers.py",),
    ),
    Mutant(
        "an event overtakes an earlier one with its key that SQS did not store",
        "outboxq/brokers/aws.py",
        (("[letter for letter in turn if _group(letter) not in unsure]", "list(turn)"),),
        ("tests/unit/test_brokers.py",),
    ),
    Mutant(
        "an SQS receiver collects messages beyond its deadline",
        "outboxq/brokers/aws.py",
        (("if not arrived or time.monotonic() >= deadline:", "if not arrived:"),),
        ("tests/unit/test_brokers.py",),
    ),
    Mutant(
        "a NATS receiver requests more messages than its consumer permits",
        "outboxq/brokers/nats_jetstream.py",
        (("min(limit, self._most)", "limit"),),
        ("tests/unit/test_brokers.py",),
    ),
    Mutant(
        "an event becomes a dead letter although Kafka refused it because of another event in its batch",
        "outboxq/brokers/kafka.py",
        (("            self._one_by_one = True\n", "            return\n"),),
        ("tests/unit/test_brokers.py",),
    ),
    Mutant(
        "the inbox forgets a message before the message expires",
        "outboxq/store/messages/inbox.py",
        ((".where(_message.expires_at <= g.now)", ".where(_message.expires_at.is_not(None))"),),
        ("tests/contract/test_inbox.py",),
    ),
    Mutant(
        "two receivers of the same messages deadlock",
        "outboxq/store/messages/inbox.py",
        ((".where(given.message_id.is_not(None)).order_by(*key)", ".where(given.message_id.is_not(None))"),),
        ("tests/contract/test_receivers.py",),
    ),
    Mutant(
        "the inbox reports a message as accepted although the consumer already had it",
        "outboxq/store/messages/inbox.py",
        (
            (
                "return bool(target.run(accept, self._store.values(target, **given)))",
                "return target.run(accept, self._store.values(target, **given)) is not None",
            ),
        ),
        ("tests/contract/test_inbox.py",),
    ),
    Mutant(
        "a prefetched task starts although a server crash has undone its claim",
        "outboxq/worker/task_runner.py",
        (("if self.leases.broke_at > active.sent and", "if False and"),),
        ("tests/faults/test_claims_after_crash.py",),
    ),
    Mutant(
        "a worker starts a task a second time while its first handler is running, because a crash undid the claim",
        "outboxq/worker/claim_loop.py",
        (("            claims = self.leases.not_held(claims, sent=sent)\n", "            pass\n"),),
        ("tests/faults/test_claims_after_crash.py",),
    ),
    Mutant(
        "an answer that the database gave before a worker claimed a task again takes the task from its handler",
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
        "the result of a handler that stopped midway for a lost lease is accepted once its worker has the claim again",
        "outboxq/worker/leases.py",
        (("return context.was_lost and self.broke_at > -math.inf", "return False"),),
        ("tests/unit/test_claimed_again.py", "tests/contract/test_claimed_again.py"),
    ),
    Mutant(
        "a worker does not notice a lost connection that `pool_pre_ping` has replaced",
        "outboxq/worker/assembly.py",
        (('"invalidate", lambda *_broken: on_loss()', '"invalidate", lambda *_broken: None'),),
        ("tests/dialects/test_lost_connections.py",),
    ),
    Mutant(
        "a task's week of sleep counts toward the time limit for its attempts",
        "outboxq/worker/executor.py",
        (("        if is_too_late and context.step_runner is not None:\n", "        if False:\n"),),
        ("tests/contract/test_steps.py",),
    ),
    Mutant(
        "the time before a task was redriven counts toward the time limit for its attempts",
        "outboxq/worker/steps.py",
        (("restarted_at or claim.first_started_at, ", "claim.first_started_at, "),),
        ("tests/contract/test_steps.py",),
    ),
    Mutant(
        "only the newest attempt after a redrive counts toward the time limit for attempts",
        "outboxq/store/tasks/tasks.py",
        (("order_by(claims.lease_token).limit", "order_by(claims.lease_token.desc()).limit"),),
        ("tests/contract/test_steps.py",),
    ),
    Mutant(
        "the time that a task slept before its first attempt is subtracted from the time of its attempts",
        "outboxq/model/running.py",
        (("max(begun, since), min(due, until)", "begun, min(due, until)"),),
        ("tests/unit/test_sleeps.py",),
    ),
    Mutant(
        "a fork server that does not answer is not killed",
        "outboxq/worker/isolation/fork_server.py",
        (("        with suppress(ProcessLookupError):\n            os.kill(self._pid, signal.SIGKILL)\n", ""),),
        ("tests/contract/test_isolation.py",),
    ),
    Mutant(
        "a worker sends the stacks signal to a child process that the signal kills",
        "outboxq/worker/isolation/fork_server.py",
        ((" and pid in self._children and survives(pid)", " and pid in self._children"),),
        ("tests/contract/test_worker_stacks.py",),
    ),
    Mutant(
        "a worker does not ask its child processes for the stacks that a person requested",
        "outboxq/worker/isolation/runner.py",
        (("            self.children.pass_on_question(child)\n", ""),),
        ("tests/contract/test_worker_orders.py",),
    ),
    Mutant(
        "a stop signal kills a Flask worker while its application is being imported",
        "outboxq/contrib/flask.py",
        (("        if _starts_worker(sys.argv[1:]):\n", "        if False:\n"),),
        ("tests/integrations/test_starting_workers.py",),
    ),
    Mutant(
        "a child process prints its stacks only after its C code has returned",
        "outboxq/worker/isolation/child.py",
        (("        print_in_child()\n", ""),),
        ("tests/contract/test_worker_stacks.py",),
    ),
    Mutant(
        "a worker that stops removes the log keeper that another worker still uses",
        "outboxq/worker/handler_log.py",
        (("                    if not one.places:\n", "                    if True:\n"),),
        ("tests/contract/test_handler_log.py",),
    ),
    Mutant(
        "the trace of an attempt does not show that its child process died",
        "outboxq/worker/isolation/runner.py",
        (("        context.has_died = True\n", ""),),
        ("tests/integrations/tracing/test_killed_attempts.py",),
    ),
    Mutant(
        "a repair of a batch's counts misses the tasks that end while it is running",
        "outboxq/store/verify/repairs.py",
        (('    "batch_counts_differ": partial(batches.locked, wrong=batches.counts_differ),\n', ""),),
        ("tests/contract/test_batch_races.py",),
    ),
    Mutant(
        "a batch waits for a dead letter that no longer exists",
        "outboxq/store/producing/batches.py",
        (('missing_dead_letters, {"limit": _PRUNED_AT_ONCE}', 'missing_dead_letters, {"limit": 0}'),),
        ("tests/contract/test_batches.py",),
    ),
    Mutant(
        "a prune deletes the results of a batch although its `then` task may still read them",
        "outboxq/database/history.py",
        (("batch.completed_at >= before, _may_be_read(g)", "batch.completed_at >= before"),),
        ("tests/contract/test_batch_tasks.py",),
    ),
    Mutant(
        "a batch whose block raised an error is committed without an error",
        "outboxq/store/producing/batches.py",
        (("        target.forbid_commit(reason)\n", ""),),
        ("tests/contract/test_unclosed_batches.py",),
    ),
    Mutant(
        "each end of a task in a locked batch waits for the batch's row separately",
        "outboxq/worker/completer.py",
        (("                elif _needs_batch(outcome):", "                elif False:"),),
        ("tests/unit/test_completer.py",),
    ),
    Mutant(
        "a worker writes the ends of a locked batch's tasks one by one, and delays all other outcomes",
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
        ("tests/dialects/test_locked_batches.py::test_a_recovery_skips_tasks_that_would_end_in_a_locked_batch",),
    ),
    Mutant(
        "a worker keeps running tasks of a locked batch without a limit",
        "outboxq/worker/completer.py",
        (("        if waiting < _MOST_LOCKED:", "        if True:"),),
        ("tests/unit/test_completer.py",),
    ),
    Mutant(
        "one expired task of a locked batch stops all claims",
        "outboxq/store/claims/claim.py",
        (('moved = cancel_expired(store, self.options["worker_id"])', "moved = 0"),),
        ("tests/dialects/test_locked_batches.py::test_an_expired_task_of_a_locked_batch_does_not_block_claims",),
    ),
    Mutant(
        "a claim serves only the first of many queues with limits",
        "outboxq/store/claims/claim.py",
        (('cursor.others_after = [row["queue"] for row in group if row["queue"] in served][-1]', "pass"),),
        ("tests/contract/test_many_queues.py::test_queues_take_turns_in_claims_of_one_task",),
    ),
    Mutant(
        "a claim misses the tasks of the limited queues that it does not read in its first round",
        "outboxq/store/claims/claim.py",
        (("            if rounds == 2 or (is_end and not began):\n", "            if True:\n"),),
        ("tests/contract/test_many_queues.py::test_queues_that_cannot_start_a_task_do_not_hide_other_queues",),
    ),
    Mutant(
        "a claim from many queues returns too few tasks although others are due",
        "outboxq/store/claims/claim.py",
        (("            elif not are_new:\n", "            elif not found and not are_new:\n"),),
        ("tests/dialects/test_heads.py::test_a_claim_that_is_not_full_has_read_all_queues",),
    ),
    Mutant(
        "a claim from many queues makes a better task wait until the backlog has ended",
        "outboxq/store/claims/heads.py",
        (("        return self._readings.is_due\n", "        return not self._heap\n"),),
        ("tests/dialects/test_heads.py::test_a_better_task_is_claimed_within_the_bound_while_claims_are_full",),
    ),
    Mutant(
        "a claim from many queues takes a task before one with a higher priority",
        "outboxq/store/claims/claim.py",
        (("least=heads.least)", "least=None)"),),
        ("tests/dialects/test_heads.py::test_no_task_is_claimed_before_one_with_a_higher_priority",),
    ),
    Mutant(
        "a claim drops the queues from which it took as many tasks as it could",
        "outboxq/store/claims/claim.py",
        (("        if len(taken) == limit:\n", "        if len(taken) != limit:\n"),),
        ("tests/dialects/test_heads.py::test_all_tasks_are_claimed_roughly_in_the_order_of_their_due_times",),
    ),
    Mutant(
        "a claim from many queues keeps its tasks waiting while it cancels all expired ones",
        "outboxq/store/claims/claim.py",
        (("if found and len(rows) < len(taken):", "if False:"),),
        ("tests/dialects/test_heads.py::test_a_claim_that_has_a_task_stops_at_expired_tasks",),
    ),
    Mutant(
        "a claimer never claims the tasks of pairs whose heads it did not keep",
        "outboxq/store/claims/claim.py",
        (("elif found or heads.are_all:", "elif True:"),),
        ("tests/dialects/test_heads.py::test_tasks_beyond_the_kept_heads_are_claimed",),
    ),
    Mutant(
        "each statement of a claim from many queues is committed separately",
        "outboxq/store/claims/claim.py",
        (("self._best_queues), Begin.ASYNCHRONOUS", "self._best_queues), Begin.SINGLE_ASYNCHRONOUS"),),
        ("tests/dialects/test_heads.py::test_a_claim_that_fails_after_its_first_statement_keeps_no_task",),
    ),
    Mutant(
        "a claim from some queues uses the heads of other queues",
        "outboxq/store/claims/claim.py",
        (
            (
                "self._cursor_for(*(None if names is None else frozenset(names) for names in (queues, topics)))",
                "self._cursor_for(None, None)",
            ),
        ),
        ("tests/dialects/test_heads.py::test_each_choice_of_queues_or_topics_has_separate_heads",),
    ),
    Mutant(
        "a claimer never goes back to reading all queues",
        "outboxq/store/claims/heads.py",
        (("            self.are_used = False", "            pass"),),
        ("tests/dialects/test_heads.py::test_the_claimer_returns_to_reading_all_queues",),
    ),
    Mutant(
        "a claim that has read the heads misses a late task before a floor",
        "outboxq/store/claims/claim.py",
        (("        self.cursor.floors.read(rows, seconds)\n", ""),),
        ("tests/dialects/test_heads.py::test_a_late_task_behind_a_floor_is_claimed_within_the_bound",),
    ),
    Mutant(
        "a claim from a few queues moves the floors of all queues",
        "outboxq/store/claims/claim.py",
        (("is_full=True, seconds=", "is_full=False, seconds="),),
        ("tests/dialects/test_heads.py::test_a_claim_from_a_few_queues_keeps_the_floors_of_others",),
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
        ("tests/dialects/test_heads.py::test_tasks_of_unlimited_queues_wait_only_briefly_for_many_limited_queues",),
    ),
    Mutant(
        "a claim reads sixteen queues with keys three at a time",
        "outboxq/store/claims/claim.py",
        (("else _OTHERS + 1, limit)", "else _OTHERS, limit)"),),
        ("tests/contract/test_many_queues.py::test_sixteen_queues_do_not_count_as_many",),
    ),
    Mutant(
        "a claim that finds nothing behind the floors never reads the entries before them",
        "outboxq/store/claims/floors.py",
        (("(again or claims.were_full) and", "claims.were_full and"),),
        ("tests/dialects/test_floors.py::test_a_late_task_is_claimed_within_the_bound",),
    ),
    Mutant(
        "a task that is committed late before a floor waits until the backlog has ended",
        "outboxq/store/claims/floors.py",
        (("(again or claims.were_full) and", "again and"),),
        ("tests/dialects/test_floors.py::test_a_late_task_is_claimed_within_the_bound_while_claims_are_full",),
    ),
    Mutant(
        "a worker that finds a few tasks at each claim never reads the entries before the floors",
        "outboxq/store/claims/floors.py",
        (("        elif taken and not is_full and claims.turns.is_due:", "        elif False:"),),
        ("tests/dialects/test_floors.py::test_a_late_task_is_claimed_within_the_bound_while_each_claim_finds_tasks",),
    ),
    Mutant(
        "a worker sleeps too long after a check that did not read the entries before the floors",
        "outboxq/store/claims/floors.py",
        (("            return self._looks.left\n", "            return math.inf\n"),),
        ("tests/dialects/test_floors.py::test_a_check_that_began_at_the_floors_is_valid_no_longer_than_the_bound",),
    ),
    Mutant(
        "a worker that has not taken a task has no floors",
        "outboxq/store/claims/floors.py",
        (("self._since or self._likely", "self._since"),),
        ("tests/dialects/test_floors.py::test_a_worker_that_has_claimed_no_task_reads_dead_entries_only_once",),
    ),
    Mutant(
        "a check moves the floor past tasks that wait for a slot of a limited queue",
        "outboxq/store/claims/sleeping_workers.py",
        (("sa.not_(queue_order.any_limited())", "sa.true()"),),
        ("tests/dialects/test_floors.py::test_a_check_skips_no_task_that_waits_for_a_slot",),
    ),
    Mutant(
        "a check that finds nothing does not move the floors",
        "outboxq/store/claims/floors.py",
        (("if crowded_at is not None:", "if crowded_at is not None and not self._since:"),),
        ("tests/dialects/test_floors.py::test_a_check_from_the_front_that_finds_no_task_moves_the_floors",),
    ),
    Mutant(
        "the first floors of a worker leave no margin for transactions that are committed soon after its check",
        "outboxq/store/claims/floors.py",
        (("timedelta(seconds=crowded_at) - _MARGIN", "timedelta(seconds=crowded_at)"),),
        (
            "tests/dialects/test_floors.py::test_a_task_committed_soon_is_claimed_immediately_by_a_worker_that_has_claimed_nothing",
        ),
    ),
    Mutant(
        "a worker that has not taken a task gets floors although few entries are dead",
        "outboxq/store/claims/sleeping_workers.py",
        (('found["now"] if found["crowded"] else None', 'found["now"]'),),
        ("tests/dialects/test_floors.py::test_there_are_no_floors_while_few_entries_are_dead",),
    ),
    Mutant(
        "the claim after a check from the front begins behind the floors",
        "outboxq/store/claims/floors.py",
        (("        if found:\n            self.expect()\n", "        if found:\n            pass\n"),),
        ("tests/dialects/test_floors.py::test_a_check_that_began_at_the_floors_is_valid_no_longer_than_the_bound",),
    ),
    Mutant(
        "a floor passes the tasks of transactions that are about to be committed",
        "outboxq/store/claims/floors.py",
        (("timedelta(seconds=moment) - _MARGIN", "timedelta(seconds=moment)"),),
        ("tests/dialects/test_floors.py::test_a_floor_is_at_least_as_old_as_usual_transactions",),
    ),
    Mutant(
        "the floors stay in the future after the clock has been set back",
        "outboxq/store/claims/floors.py",
        (("min(since, latest) if is_full else latest", "max(since, latest)"),),
        ("tests/dialects/test_floors.py::test_a_clock_that_is_set_back_delays_tasks_at_most_by_the_bound",),
    ),
    Mutant(
        "only claims from the front find a new task with a priority above those of the floors",
        "outboxq/store/claims/floors.py",
        (("[TOP, *sorted(floors, reverse=True)", "[*sorted(floors, reverse=True)"),),
        ("tests/dialects/test_floors.py::test_a_task_with_another_priority_is_claimed_immediately",),
    ),
    Mutant(
        "only claims from the front find a task in a queue without a floor",
        "outboxq/database/queue_order.py",
        (
            (
                "select(following, found.c.upto).where(found.c.queue.is_not(None))",
                "select(following, found.c.upto).where(found.c.queue.is_(None))",
            ),
        ),
        ("tests/dialects/test_floors.py::test_a_task_of_another_queue_is_claimed_immediately",),
    ),
    Mutant(
        "claims from other queues move the floors of a limited queue",
        "outboxq/store/claims/floors.py",
        (
            (
                "if (pair[0] in self._limited) if limited is None else (pair[0] != limited):",
                "if pair[0] != (limited or pair[0]):",
            ),
        ),
        ("tests/dialects/test_floors.py::test_a_floor_does_not_skip_tasks_that_wait_for_a_slot",),
    ),
    Mutant(
        "a queue that gets a limit keeps the floors that claims from all queues have moved",
        "outboxq/store/claims/floors.py",
        (
            (
                "            if taken:\n                self._forget(limited)\n            elif all(",
                "            if all(",
            ),
        ),
        ("tests/dialects/test_floors.py::test_a_queue_with_a_new_limit_is_read_from_the_front",),
    ),
    Mutant(
        "an empty queue that gets a limit is read from the front by each claim",
        "outboxq/store/claims/floors.py",
        (("            elif all(queue != limited for queue, _ in list(self._since)):", "            else:"),),
        ("tests/dialects/test_floors.py::test_an_empty_queue_with_a_new_limit_is_read_from_the_front_once",),
    ),
    Mutant(
        "each claim serves all limited queues with floors",
        "outboxq/database/queue_order.py",
        (("mine.where(sa.or_(is_read_whole, has_due, has_other)).exists()", "mine.exists()"),),
        ("tests/dialects/test_floors.py::test_dead_entries_of_a_limited_queue_are_not_read[all]",),
    ),
    Mutant(
        "a claim misses a new task of a limited queue whose priority has no floor",
        "outboxq/database/queue_order.py",
        (("sa.or_(is_read_whole, has_due, has_other)", "sa.or_(is_read_whole, has_due)"),),
        ("tests/dialects/test_floors.py::test_a_new_task_of_a_limited_queue_is_claimed_immediately",),
    ),
    Mutant(
        "a limited queue is never read from the front again",
        "outboxq/store/claims/floors.py",
        (("self.begins_at_front(queue, again=True) if at_front is None else at_front", "bool(at_front)"),),
        ("tests/dialects/test_floors.py::test_a_late_task_of_a_limited_queue_is_claimed_within_the_bound",),
    ),
    Mutant(
        "a check beside dead entries finds tasks that wait for a slot",
        "outboxq/store/claims/due.py",
        (("sa.case((may_start, sa.not_(stopped(found.c.queue))), else_=sa.false())", "may_start"),),
        ("tests/dialects/test_floors.py::test_a_check_finds_no_task_that_waits_for_a_slot",),
    ),
    Mutant(
        "a check from the front does not make a limited queue's next claim begin at the front",
        "outboxq/store/claims/floors.py",
        (("for claims in (self._claims, *self._limited.values()):", "for claims in (self._claims,):"),),
        (
            "tests/dialects/test_floors.py::test_the_claim_after_a_check_from_the_front_reads_a_limited_queue_from_the_front",
        ),
    ),
    Mutant(
        "a queue whose limit has been removed counts as limited forever",
        "outboxq/store/claims/floors.py",
        (('self._limited.pop(row["queue"], None)', "pass"),),
        ("tests/dialects/test_floors.py::test_a_queue_whose_limit_is_removed_keeps_its_floor",),
    ),
    Mutant(
        "the search for limited queues reads the dead entries of limited queues that have floors",
        "outboxq/database/queue_order.py",
        (("before = _next_queue(bounded.c.queue, bounded.c.upto)", "before = _next_queue(bounded.c.queue)"),),
        ("tests/dialects/test_floors.py::test_dead_entries_of_a_limited_queue_are_not_read[all]",),
    ),
    Mutant(
        "a claim from given queues reads the dead entries of a limited queue",
        "outboxq/store/claims/partition_keys.py",
        (
            (
                "has_plain = sa.case((has_floor, queue_order.may_have_due(g, queues.c.queue)), else_=has_plain)",
                "has_plain = sa.or_(has_plain, has_floor)",
            ),
        ),
        ("tests/dialects/test_floors.py::test_dead_entries_of_a_limited_queue_are_not_read[one]",),
    ),
    Mutant(
        "a burst ends although a task before the floors is due",
        "outboxq/worker/claim_loop.py",
        (("            self.cursor.floors.expect()\n", "            pass\n"),),
        ("tests/dialects/test_floors.py::test_a_burst_ends_only_after_a_claim_from_the_front",),
    ),
    Mutant(
        "each claim of a claimer waits the full time for the locked batch of expired tasks",
        "outboxq/store/claims/claim.py",
        (("if time.monotonic() < cursor.brief_until:", "if False:"),),
        ("tests/dialects/test_locked_batches.py::test_an_expired_task_of_a_locked_batch_does_not_block_claims",),
    ),
    Mutant(
        "the expired tasks of all batches wait for the one batch whose row is locked",
        "outboxq/store/claims/broken_entries.py",
        (('setdefault(row["batch_id"], [])', "setdefault(worker_id, [])"),),
        ("tests/dialects/test_locked_batches.py::test_an_expired_task_of_a_locked_batch_does_not_block_claims",),
    ),
    Mutant(
        "two workers both go through all tasks of a batch that is being cancelled",
        "outboxq/store/producing/batches.py",
        (("if shares and not number:", "if False:"),),
        ("tests/contract/test_batches.py",),
    ),
    Mutant(
        "the check for tasks that are left to cancel continues each batch that is being cancelled",
        "outboxq/store/producing/batches_sql.py",
        ((".where(sa.or_(waiting != ZERO, left != ZERO, discards))", ""),),
        ("tests/dialects/test_plans.py::test_postgresql_reads_only_the_running_tasks_of_a_cancelled_batch",),
    ),
    Mutant(
        "dead letters keep a cancelled batch open",
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
        "a step waits forever for a lock that its own handler holds",
        "outboxq/worker/steps.py",
        (("if hint and is_busy and time.monotonic() >= context.deadline:", "if False:"),),
        (
            "tests/contract/test_steps.py::test_on_sqlite_a_step_inside_a_transaction_of_the_handler_ends_with_the_lease",
        ),
    ),
    Mutant(
        "cancelling a batch that has ended succeeds",
        "outboxq/store/producing/batches.py",
        (("            raise already_ended(self.get(batch_id, using=using))", "            return 0"),),
        ("tests/contract/test_batches.py",),
    ),
    Mutant(
        "a page of a batch's tasks reads all newer tasks",
        "outboxq/store/tasks/task_pages.py",
        (('mine = rows.cte("mine").prefix_with("MATERIALIZED")', 'mine = rows.subquery("mine")'),),
        ("tests/dialects/test_plans.py::test_a_page_reads_a_bounded_number_of_rows_on_postgresql",),
    ),
    Mutant(
        "a batch is reported to wait for a dead letter although it continues without that task",
        "outboxq/model/batches.py",
        (("self.failed if self.on_failed is OnFailed.WAIT and", "self.failed if"),),
        ("tests/contract/test_links.py",),
    ),
    Mutant(
        "a pruned `then` task is reported as not enqueued yet",
        "outboxq/store/explain/explain.py",
        (("found.then_ids[found.stage :]", "found.then_ids"),),
        ("tests/contract/test_links.py",),
    ),
    Mutant(
        "the explanation of a batch names a dead letter for which the batch does not wait",
        "outboxq/store/explain/explain.py",
        ((" if batch.on_failed is OnFailed.WAIT else None", ""),),
        ("tests/contract/test_links.py",),
    ),
    Mutant(
        "verify does not check the functions of triggers after the schema was renamed",
        "outboxq/database/dialects/catalogue.py",
        (("sa.or_(beside, _function.c.oid.in_(fired))", "beside"),),
        ("tests/contract/test_renamed_schema.py",),
    ),
    Mutant(
        "the code works with the tables of an unreleased version",
        "outboxq/database/revisions.py",
        (("    if stored != fingerprint():\n", "    if False:\n"),),
        ("tests/contract/test_migrations.py",),
    ),
    Mutant(
        "a key that runs as many tasks as its limit allows starts one more",
        "outboxq/store/claims/limits_sql.py",
        (("tasks < queues.c.key_concurrency", "tasks <= queues.c.key_concurrency"),),
        ("tests/contract/test_key_limits.py",),
    ),
    Mutant(
        "a claim does not record how much of its rate a key has used",
        "outboxq/store/claims/limits.py",
        (("            if place.key in starts\n", "            if False\n"),),
        ("tests/contract/test_key_limits.py",),
    ),
    Mutant(
        "a claim takes tasks from a queue with limits per key without counting them",
        "outboxq/database/queue_order.py",
        (("settings.c.rate_limit.is_not(None), limits_keys(settings))", "settings.c.rate_limit.is_not(None))"),),
        ("tests/contract/test_key_limits.py",),
    ),
    Mutant(
        "a worker keeps searching although every key of a queue has reached its limit",
        "outboxq/database/queue_order.py",
        (("or_(_is_paused(mine), limits_keys(mine), full,", "or_(_is_paused(mine), full,"),),
        ("tests/contract/test_key_limits.py",),
    ),
    Mutant(
        "a new rate per key counts the starts under the old rate",
        "outboxq/store/numbers/queues.py",
        (("        if different & {", "        if False and different & {"),),
        ("tests/contract/test_key_limits.py",),
    ),
    Mutant(
        "the oldest due tasks, all of a key at its limit, hide the tasks of other keys",
        "outboxq/store/claims/limits.py",
        (("            if self._rotate(budget) or self.found:\n", "            if True:\n"),),
        ("tests/contract/test_key_limits.py",),
    ),
    Mutant(
        "a worker is not woken when a key may start tasks again",
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
        "two transactions that each end tasks of the same two batches deadlock",
        "alembic/versions/0001_tables.py",
        (("DEFERRABLE INITIALLY DEFERRED", "DEFERRABLE INITIALLY IMMEDIATE"),),
        ("tests/contract/test_batch_races.py",),
    ),
    Mutant(
        "the `then` task of a batch is enqueued before the last task of the batch has ended",
        "alembic/versions/0001_tables.py",
        (("NEW.closed AND NEW.size <= NEW.completed", "NEW.closed AND NEW.size - 1 <= NEW.completed"),),
        ("tests/contract/test_batches.py",),
    ),
    Mutant(
        "a dead letter still counts as ended after it has been redriven",
        "alembic/versions/0001_tables.py",
        (
            (" - (OLD.status = 'Failed')::integer", ""),
            (" - (OLD.status = 'Failed'),", ","),
        ),
        ("tests/contract/test_batches.py",),
    ),
    Mutant(
        "a redrive reopens a batch that has completed",
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
        "one request to the admin changes more rows than its limit",
        "outboxq/contrib/django/admin.py",
        (("for row in chosen[:AT_ONCE]:", "for row in chosen:"),),
        ("tests/integrations/django_admin/test_django_admin.py",),
    ),
    Mutant(
        "a user who may only view tasks can cancel them in the admin",
        "outboxq/contrib/django/admin.py",
        (("if not request.user.has_perm(permission_of(verb))", "if not verb.key"),),
        ("tests/integrations/django_admin/test_django_admin.py",),
    ),
    Mutant(
        "a worker gives a failed task as the reason although a person cancelled the batch",
        "outboxq/store/producing/batches.py",
        (('if batch["runs_then"] else "its batch was cancelled"', 'if batch["id"] else "its batch was cancelled"'),),
        ("tests/contract/test_batches.py",),
    ),
    Mutant(
        "a partitioned history does not count the ends of a batch's tasks",
        "outboxq/database/dialects/partitioning.py",
        (('            execute(trigger["statement"].replace("%", "%%"), {})', "            pass"),),
        ("tests/dialects/test_partitions.py",),
    ),
    Mutant(
        "progress that the database refuses costs all tasks their leases",
        "outboxq/worker/leases.py",
        (("if self.store.may_pass(error) or self.store.cannot_write_now(error):\n                raise\n", "raise\n"),),
        ("tests/contract/test_progress.py",),
    ),
    Mutant(
        "each heartbeat writes the progress even if it has not changed",
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
        "progress counts as written although the lease was locked",
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
        "the log keeper stays as the root logger's only handler, so Python no longer prints warnings",
        "outboxq/worker/handler_log.py",
        (("if not keepers and handlers:", "if not keepers:"),),
        ("tests/contract/test_handler_log.py",),
    ),
    Mutant(
        "a worker does not receive what a handler in its child process reports",
        "outboxq/worker/isolation/child.py",
        (("                    self._connection.send(notes)\n", "                    pass\n"),),
        ("tests/contract/test_handler_log.py",),
    ),
    Mutant(
        "a released task loses its handler log",
        "outboxq/worker/completer.py",
        (("with_notes(released(one.claim, STOPPED), one.context)", "released(one.claim, STOPPED)"),),
        ("tests/contract/test_handler_log.py",),
    ),
    Mutant(
        "the exception for a handler that ended late is raised in the next handler in the thread",
        "outboxq/worker/timeouts.py",
        (("        if self._has_sent:\n            self._empty_slot()\n", ""),),
        ("tests/unit/test_timeouts.py",),
    ),
    Mutant(
        "a timeout that is added during a check waits for the next check",
        "outboxq/worker/timeouts.py",
        (("self._next = math.inf  # a limit", "self._next = -math.inf  # a limit"),),
        ("tests/unit/test_timeouts.py",),
    ),
    Mutant(
        "a handler ends while an exception is being sent to it, and the next handler gets the exception",
        "outboxq/worker/timeouts.py",
        (("        while self._is_raising:\n", "        while False:\n"),),
        ("tests/unit/test_timeouts.py",),
    ),
    Mutant(
        "an exception during a handler's end discards its result",
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
        "a worker cannot end the attempt of a transactional handler that is not stopping",
        "outboxq/worker/task_runner.py",
        (("            unit.abandon()\n", "            pass\n"),),
        ("tests/contract/test_timeouts.py::test_a_task_ends_even_if_its_handler_ignores_the_kill",),
    ),
    Mutant(
        "the later writes of a killed handler are committed in a separate transaction",
        "outboxq/database/dialects/sqlite.py",
        (
            (
                '            raw.execute("PRAGMA query_only = ON")  # otherwise, the handler\'s next write would be a separate transaction\n',
                "",
            ),
        ),
        (
            "tests/contract/test_timeouts.py::test_a_task_ends_even_if_its_handler_ignores_the_kill",
            "tests/contract/test_timeouts.py::test_late_writes_of_a_killed_handler_in_a_step_are_rolled_back",
        ),
    ),
    Mutant(
        "the connection of a killed handler refuses the next handler's writes",
        "outboxq/store/claims/units_of_work.py",
        (("            self.connection.invalidate()\n        self._ends", "            pass\n        self._ends"),),
        ("tests/contract/test_timeouts.py::test_a_task_ends_even_if_its_handler_ignores_the_kill",),
    ),
    Mutant(
        "an exception arrives after a step's function has returned and before its result is stored",
        "outboxq/worker/timeouts.py",
        (("            if self._is_held_back:\n", "            if False:\n"),),
        ("tests/contract/test_timeouts.py::test_an_interruption_waits_until_the_result_of_a_step_is_stored",),
    ),
    Mutant(
        "processes that a handler has started outlive the handler",
        "outboxq/worker/isolation/fork_server.py",
        (("                os.killpg(pid, signal.SIGKILL)\n", "                os.kill(pid, signal.SIGKILL)\n"),),
        ("tests/contract/test_isolation.py::test_only_the_child_of_a_handler_that_exceeds_its_timeout_is_killed",),
    ),
    Mutant(
        "the supervisor waits longer each time before it replaces a process that was killed with its handler",
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
        "a transactional step is stored in a separate transaction",
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
        "a step whose COMMIT was not answered counts as not written",
        "outboxq/store/tasks/steps.py",
        (("            return target.run(written, given) or None\n", "            return None\n"),),
        ("tests/contract/test_steps.py",),
    ),
    Mutant(
        "each run of a task starts its sleep again",
        "outboxq/worker/steps.py",
        (("until > self._until_answered(context, self.own.now)", "until"),),
        ("tests/contract/test_steps.py",),
    ),
    Mutant(
        "a rewind deletes only its first step and keeps the later ones",
        "outboxq/store/tasks/steps.py",
        (("_step.number >= _number)", "_step.number == _number)"),),
        ("tests/contract/test_steps.py",),
    ),
    Mutant(
        "the name of a queue sends control characters to the terminal in a table's header",
        "outboxq/cli/console.py",
        (('plain(f"{name} UTC" if is_time else name)', '(f"{name} UTC" if is_time else name)'),),
        ("tests/contract/test_cli_terminal.py",),
    ),
    Mutant(
        "a wait that begins during a poll ends with the error that its task is missing",
        "outboxq/task/waiting.py",
        (("[wait for wait in self._waits if not wait.is_new]", "list(self._waits)"),),
        ("tests/contract/test_results.py",),
    ),
    Mutant(
        "a wait that was polled a moment ago misses the only change of SQLite's file",
        "outboxq/task/waiting.py",
        (("again(self._known())", "again([wait for wait in self._known() if wait not in new])"),),
        ("tests/contract/test_results.py",),
    ),
    Mutant(
        "a caller waits forever for a task that was pruned while SQLite's file did not change",
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
        "a caller waits forever for a task whose transaction was rolled back",
        "outboxq/task/waiting.py",
        (("        else:\n            self._was_over = True\n", ""),),
        ("tests/contract/test_results.py",),
    ),
    Mutant(
        "a wait for a `then` task ends with the error that the task does not exist",
        "outboxq/task/waiting.py",
        (("if self.link is not None and not self.is_ahead and not self.is_found:", "if self.link is self.batch:"),),
        ("tests/contract/test_batch_results.py",),
    ),
    Mutant(
        "a wait for a chain does not name the task that stopped the chain",
        "outboxq/store/tasks/results.py",
        (("is_broken = self.kind is BatchKind.CHAIN and", "is_broken = self.kind is BatchKind.BATCH and"),),
        ("tests/contract/test_batch_results.py",),
    ),
    Mutant(
        "each poll reads all tasks of a batch that is being cancelled",
        "outboxq/store/tasks/results.py",
        (("if self.counts.cancelled > 0 and not goes_on else None", "if not goes_on else None"),),
        ("tests/contract/test_batch_results.py",),
    ),
    Mutant(
        "a wait for a nonexistent position in a batch waits for the batch itself",
        "outboxq/model/batches.py",
        (("number=number) if number else None\n", "number=number)\n"),),
        ("tests/contract/test_batch_results.py",),
    ),
    Mutant(
        "an error from a role that cannot read batches ends the waits of all callers",
        "outboxq/task/waiting.py",
        (("                    wait.fail(error)\n", "                    raise\n"),),
        ("tests/roles/test_rights.py",),
    ),
    Mutant(
        "`inline()` runs the tasks of an incomplete batch, and never its `then` tasks",
        "outboxq/testing/harness.py",
        (('_temporarily(self, "_is_inline", False)', '_temporarily(self, "_is_inline", self._is_inline)'),),
        ("tests/integrations/testing_helpers/test_harness_batches.py",),
    ),
    Mutant(
        "a forked child process waits for a thread that only its parent has",
        "outboxq/task/waiting.py",
        (("process, key = os.getpid(), (os.getpid(), id(store))", "process, key = 0, (0, id(store))"),),
        ("tests/contract/test_results.py",),
    ),
    Mutant(
        "polls for results use a whole core",
        "outboxq/task/waiting.py",
        (("        return max(0.0, -self._credit / SHARE)\n", "        return 0.0\n"),),
        ("tests/contract/test_results.py",),
    ),
    Mutant(
        "an error in a rollback replaces Ctrl-C, and the transaction runs again",
        "outboxq/store/transactions.py",
        (("                raise stop from None", "                raise"),),
        ("tests/dialects/test_stopped_statements.py",),
    ),
    Mutant(
        "a connection is reused although Ctrl-C left a statement on it unanswered",
        "outboxq/database/dialects/postgresql.py",
        (
            ("notifies = stops_midway = has_roles", "notifies = has_roles"),
            ("reads_before_writing = one_writer = False", "reads_before_writing = one_writer = stops_midway = False"),
        ),
        ("tests/dialects/test_stopped_statements.py",),
    ),
    Mutant(
        "the next search for a page of tasks skips one task after a search that reached its limit",
        "outboxq/store/tasks/task_pages.py",
        (('{"from_id": last}', '{"from_id": next_id(last)}'),),
        ("tests/contract/test_task_pages.py",),
    ),
    Mutant(
        "cancelling all tasks also cancels tasks that are enqueued during the command",
        "outboxq/store/tasks/event_log.py",
        (("since = sa.or_(_event.sequence_num > _head, g", "since = sa.or_(_event.sequence_num.is_(None), g"),),
        ("tests/contract/test_cancel_all.py", "tests/contract/test_counted.py"),
    ),
    Mutant(
        "a bulk change also changes a task whose transaction was open at the count",
        "outboxq/database/dialects/postgresql_grammar.py",
        (
            (
                'return number.op("<@", return_type=sa.Boolean())(sa.cast(ids, INT8MULTIRANGE))',
                "return sa.literal_column('false', sa.Boolean)",
            ),
        ),
        (
            "tests/contract/test_counted.py::test_a_task_of_an_open_transaction_is_kept_even_if_the_transaction_is_not_the_newest",
        ),
    ),
    Mutant(
        "a bulk change of waiting tasks also changes a task that was running when they were counted",
        "outboxq/store/tasks/cancelling.py",
        (('"only_ready": status is TaskStatus.READY', '"only_ready": False'),),
        ("tests/contract/test_counted.py",),
    ),
    Mutant(
        "the overview's mark of change ignores an event that is committed after a later one",
        "outboxq/store/numbers/overview.py",
        (('sa.cast(seen.c.sum, sa.Text).label("events"), ', ""),),
        ("tests/contract/test_overview.py",),
    ),
    Mutant(
        "the problem of a late queue explains its newest due task instead of its oldest",
        "outboxq/store/numbers/overview.py",
        (('key=lambda row: row["available_at"], reverse=True)', 'key=lambda row: row["available_at"])'),),
        ("tests/contract/test_problems.py::test_the_cause_reported_is_that_of_the_oldest_late_task",),
    ),
    Mutant(
        "the problem of a late queue ignores the limits of its keys",
        "outboxq/store/explain/explain.py",
        (("for task in tasks if limits_keys(rows[task.id])]\n    facts", "for task in ()]\n    facts"),),
        ("tests/contract/test_problems.py::test_a_late_task_is_reported_with_the_limit_per_key",),
    ),
    Mutant(
        "a paused queue turns the tile of the oldest task red",
        "outboxq/web/pages/watching.py",
        (("{one.queue for one in queues if not one.paused}", "{one.queue for one in queues}"),),
        ("tests/integrations/dashboard/test_tiles.py",),
    ),
    Mutant(
        "groups of failures are truncated before they are merged by exception",
        "outboxq/web/pages/failures.py",
        (("limit = most if chosen else _GROUPS", "limit = _GROUPS"),),
        ("tests/integrations/dashboard/test_failures_by_exception.py",),
    ),
    Mutant(
        "a button strips the spaces from a queue's name and acts on another queue",
        "outboxq/web/pages/actions.py",
        (('else request.query.get(key, "")', 'else request.query.get(key, "").strip()'),),
        (
            "tests/integrations/dashboard/test_watch_pages.py::test_actions_work_on_hostile_names_which_are_shown_escaped",
        ),
    ),
    Mutant(
        "a system whose tasks have all ended is displayed as a new one",
        "outboxq/web/pages/watching.py",
        (("found.live_workers or request.store.tasks(limit=1))", "found.live_workers)"),),
        (
            "tests/integrations/dashboard/test_watch_pages.py::test_an_idle_system_without_a_worker_is_reported_as_a_problem",
        ),
    ),
    Mutant(
        "queues with problems are not sorted by urgency",
        "outboxq/web/pages/watching.py",
        (("worst.get(one.queue, len(problems)), ", ""),),
        ("tests/integrations/dashboard/test_watch_pages.py::test_queues_are_sorted_by_their_most_urgent_problem",),
    ),
    Mutant(
        "a problem of a single task is listed before a problem of many tasks",
        "outboxq/store/numbers/problem.py",
        (("(-one.weight, _RANK", "(_RANK"),),
        ("tests/contract/test_problems.py::test_the_problem_with_the_most_tasks_and_time_is_listed_first",),
    ),
    Mutant(
        "a transaction that has written but has no snapshot is not reported as keeping dead rows",
        "outboxq/database/dialects/catalogue.py",
        (
            (
                "sa.or_(session.backend_xid.is_not(None), session.backend_xmin.is_not(None))",
                "session.backend_xmin.is_not(None)",
            ),
        ),
        ("tests/dialects/test_dead_rows.py::test_a_transaction_that_has_written_is_reported_without_a_snapshot",),
    ),
    Mutant(
        "a batch is reported to wait for its dead letter while its other tasks are running",
        "outboxq/store/producing/batches_sql.py",
        (("        _ended(first.c) >= first.c.size,\n", ""),),
        ("tests/contract/test_problems.py::test_a_batch_that_waits_only_for_dead_letters_is_a_problem",),
    ),
    Mutant(
        "a dry run of a prune counts as retention",
        "outboxq/store/retention.py",
        (("    if dry_run:\n", "    if dry_run:\n        record_prune(store, using=using)\n"),),
        ("tests/contract/test_problems.py::test_a_history_that_nothing_deletes_is_a_problem_after_a_week",),
    ),
    Mutant(
        "a chart draws a line across a period without data",
        "outboxq/web/charts.py",
        (("is_open = alone = False\n        else", "alone = False\n        else"),),
        ("tests/unit/test_charts.py",),
    ),
    Mutant(
        "the form of a schedule stores the asterisks that hide an argument",
        "outboxq/web/pages/schedules.py",
        (("shown == redacted(schedule.args, None) == request.redact(shown)", "True"),),
        ("tests/integrations/dashboard/test_edited_schedules.py::test_arguments_that_cannot_be_shown_are_kept",),
    ),
    Mutant(
        "a viewer moves a schedule into a queue where the viewer may not edit",
        "outboxq/web/pages/schedules.py",
        ((" and request.viewer.may(EDIT.recorded_as, queue)", ""),),
        (
            "tests/integrations/dashboard/test_edited_schedules.py::test_moving_a_schedule_requires_permission_for_both_queues",
        ),
    ),
    Mutant(
        "a confirmation form that is submitted twice enqueues two tasks",
        "outboxq/web/pages/enqueueing.py",
        (("if self.key is None:", "if False:"),),
        ("tests/integrations/dashboard/test_enqueueing.py::test_a_form_that_is_sent_twice_enqueues_one_task",),
    ),
    Mutant(
        "releasing a savepoint counts as committing its tasks",
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
        "a refused Flask request is followed by a warning about its tasks",
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
        "the dashboard logs the arguments that a person enters",
        "outboxq/web/dashboard.py",
        ((" and name not in PAYLOAD", ""),),
        (
            "tests/integrations/dashboard/test_enqueueing.py::test_a_secret_argument_is_neither_shown_nor_logged_nor_recorded",
        ),
    ),
    Mutant(
        "a schedule for which no worker plants ticks is displayed as active",
        "outboxq/web/pages/schedules.py",
        (("if missed is not None and missed < now - _OVERDUE:", "if missed is None:"),),
        (
            "tests/integrations/dashboard/test_watch_pages.py::test_an_overdue_schedule_is_listed_first_and_its_page_shows_the_cure",
        ),
    ),
    Mutant(
        "a bulk change also changes tasks that failed after the question was asked",
        "outboxq/task/built_in.py",
        (('"reason": reason, "snapshot": self.snapshot, "limit"', '"reason": reason, "limit"'),),
        ("tests/integrations/dashboard/test_bulk.py",),
    ),
    Mutant(
        "a snapshot leaves out open transactions that are newer than the ones that PostgreSQL lists",
        "outboxq/store/tasks/event_log.py",
        (('begun=range(int(beyond), row["next_transaction"])', "begun=range(0)"),),
        (
            "tests/contract/test_counted.py::test_a_task_of_an_open_transaction_is_kept_even_if_the_transaction_is_not_the_newest",
        ),
    ),
    Mutant(
        "a bulk change continues without a filter that has become empty",
        "outboxq/web/pages/bulk.py",
        (("if empty := sorted(name for name, value in given.items() if not value):", "if empty := []:"),),
        ("tests/integrations/dashboard/test_bulk.py",),
    ),
    Mutant(
        "a filter of a bulk change strips the spaces from a name",
        "outboxq/web/pages/bulk.py",
        (("name: value if name in _NAMES else value.strip()", "name: value.strip()"),),
        ("tests/integrations/dashboard/test_bulk.py",),
    ),
    Mutant(
        "each dashboard request tries for 30 s to reach an unreachable database",
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
        "an operator's command makes a change again if its commit was not answered",
        "outboxq/store/actions.py",
        (('return bool(target.run(is_written, {"id": action.id}))', "return False"),),
        ("tests/contract/test_actions.py",),
    ),
    Mutant(
        "a bulk change does not record the tasks that it moves",
        "outboxq/store/tasks/cancelling.py",
        (("if number and bulk.on_change is not None:", "if number > len(moved) and bulk.on_change is not None:"),),
        ("tests/contract/test_actions.py",),
    ),
    Mutant(
        "retention deletes the records of recent actions",
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
        "the link for a cure loses the filters of its command",
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
        "an order to resume withdraws an order to stop",
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
        "each run of a bulk change starts with the full limit again",
        "outboxq/task/built_in.py",
        (("            limit=left,", "            limit=wanted.limit,"),),
        ("tests/integrations/dashboard/test_bulk.py",),
    ),
    Mutant(
        "a list of retrying tasks contains tasks that are due",
        "outboxq/store/tasks/task_pages.py",
        (("(available_at <= g.now, text_literal(Waiting.DUE)),\n", ""),),
        ("tests/contract/test_task_pages.py",),
    ),
    Mutant(
        "a second click enqueues a second task for the same bulk change",
        "outboxq/web/pages/bulk.py",
        (("using(target, idempotency_key=wanted.digest)", "using(target)"),),
        ("tests/integrations/dashboard/test_bulk.py",),
    ),
    Mutant(
        "a redrive takes another task's key although the box for it is not ticked",
        "outboxq/operating/fields.py",
        (('return texts == ["yes"]', "return True"),),
        ("tests/integrations/dashboard/test_task_pages.py",),
    ),
    Mutant(
        "pausing a queue that is already paused counts as a change",
        "outboxq/store/numbers/queues.py",
        (("if differs and on_change is not None:", "if on_change is not None:"),),
        ("tests/contract/test_actions.py",),
    ),
    Mutant(
        "an action runs for a viewer without permission if the viewer submits the form anyway",
        "outboxq/web/pages/actions.py",
        (("if not may(request, verb, target):", "if False:"),),
        ("tests/integrations/dashboard/test_permissions.py",),
    ),
    Mutant(
        "the dashboard displays a handler's text without calling the function that redacts it",
        "outboxq/web/rendering.py",
        (("_optional(lambda value: redact(str(value)))", "_optional(str)"),),
        ("tests/integrations/dashboard/test_redacting.py",),
    ),
    Mutant(
        "values with secret names are redacted only at the top level",
        "outboxq/model/display.py",
        (("return _written(value, hidden, newline)", "return _written(value, None, newline)"),),
        ("tests/unit/test_redaction.py",),
    ),
    Mutant(
        "the dashboard accepts a form with the token of another browser or person",
        "outboxq/web/browser.py",
        (("    if not browser.accepts(request.form):\n", "    if FIELD not in request.form:\n"),),
        ("tests/integrations/dashboard/test_security.py",),
    ),
    Mutant(
        "the dashboard accepts a form from another host on the same site",
        "outboxq/web/browser.py",
        (('return site == "same-origin"', 'return site in {"same-origin", "same-site"}'),),
        ("tests/integrations/dashboard/test_security.py",),
    ),
    Mutant(
        "a proxy on the same machine opens the dashboard to everyone",
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
        "wrong tokens count only after they have been checked, so simultaneous guesses exceed the limit",
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
        "a login redirects to another host that its link names",
        "outboxq/web/answers.py",
        (
            ('wanted.startswith(("//", "/\\\\"))', 'wanted.startswith("/\\\\")'),
            ('"/" if parts.scheme or parts.netloc else wanted', "wanted"),
        ),
        ("tests/integrations/dashboard/test_security.py",),
    ),
    Mutant(
        "a viewer gets the page of another viewer who has more rights",
        "outboxq/web/answers.py",
        (("self.request.root_path, self.grant.viewer\n", "self.request.root_path\n"),),
        ("tests/integrations/dashboard/test_freshness.py",),
    ),
    Mutant(
        "requests that waited for an unreachable database try it again one after another",
        "outboxq/web/freshness.py",
        (("            making.error = error\n", ""),),
        ("tests/integrations/dashboard/test_freshness.py",),
    ),
    Mutant(
        "a page that was read before an action is cached after the action",
        "outboxq/web/freshness.py",
        (("            if changes == self._changes:  #", "            if True:  #"),),
        ("tests/integrations/dashboard/test_freshness.py",),
    ),
    Mutant(
        "a bulk command reads its confirmation from a pipe",
        "outboxq/cli/changes.py",
        (("    return _is_terminal(sys.stdin) and _is_terminal(sys.stderr)", "    return True"),),
        ("tests/contract/test_cli_questions.py", "tests/unit/test_confirmation.py"),
    ),
    Mutant(
        "an empty answer to a question counts as yes",
        "outboxq/cli/changes.py",
        (('line.strip().lower() in {"y", "yes"}', 'line.strip().lower() in {"", "y", "yes"}'),),
        ("tests/contract/test_cli_questions.py", "tests/unit/test_confirmation.py"),
    ),
    Mutant(
        "a person recovers the tasks of a worker that still shows signs of life",
        "outboxq/store/claims/lost_workers.py",
        (("for one in signs if not is_lost(one, now)", "for one in signs if not signs"),),
        ("tests/contract/test_lost_workers.py",),
    ),
    Mutant(
        "a worker that was last seen before the clock was set back counts as live",
        "outboxq/store/claims/workers.py",
        (("return abs(now - seen_at) > LIVE_WITHIN", "return now - seen_at > LIVE_WITHIN"),),
        ("tests/contract/test_lost_workers.py",),
    ),
    Mutant(
        "a live worker loses its tasks when the clock is set back, because its claims lie in the future",
        "outboxq/store/claims/lost_workers.py",
        (("[one for one in found if one <= now + LIVE_WITHIN] or found", "found"),),
        ("tests/contract/test_lost_workers.py",),
    ),
    Mutant(
        "`task run-now` also makes tasks due that are enqueued while the person reads the question",
        "outboxq/store/tasks/running_now.py",
        (("bound = bound_to(snapshot or ", "bound = bound_to("),),
        ("tests/contract/test_cli_cancel.py", "tests/integrations/dashboard/test_bulk.py"),
    ),
    Mutant(
        "the value that a transaction returned before its unanswered COMMIT is lost",
        "outboxq/store/transactions.py",
        (("unanswered and committed(target, unanswered[0])", "False"),),
        ("tests/contract/test_lost_answers.py",),
    ),
    Mutant(
        "`task run-now` does not count the tasks that it made due before the answer was lost",
        "outboxq/store/tasks/cancelling.py",
        (("return number > 0 and any(was_done", "return number < 0 and any(was_done"),),
        ("tests/contract/test_lost_answers.py",),
    ),
    Mutant(
        "a discard also discards tasks that fail while the person reads the question",
        "outboxq/cli/bulk.py",
        (("snapshot=counted().snapshot, on_progress", "on_progress"),),
        ("tests/contract/test_cli_questions.py",),
    ),
    Mutant(
        "Ctrl-C ends a command in the middle of a batch, without a report of its progress",
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
        "an upgrade waits for its locks without a limit, and every producer waits behind it",
        "outboxq/database/table_locks.py",
        (
            (
                "        limit(dialect, execute, lock_timeout, lock_timeout)\n",
                '        limit(dialect, execute, "0", "0")\n',
            ),
        ),
        (
            "tests/dialects/test_upgrade_locks.py::test_producers_can_enqueue_while_an_upgrade_waits_for_an_open_transaction[outboxq upgrade]",
        ),
    ),
    Mutant(
        "an upgrade locks each table only when a script needs it, while it keeps the others locked",
        "alembic/env.py",
        (("    if steps:\n", "    if False:\n"),),
        (
            "tests/dialects/test_upgrade_locks.py::test_in_a_transaction_of_the_caller_a_failed_round_releases_its_locks",
        ),
    ),
    Mutant(
        "an upgrade blocks everyone while it waits for a vacuum",
        "outboxq/database/table_locks.py",
        (('        _lock(dialect, execute, places, "SHARE UPDATE EXCLUSIVE")\n', ""),),
        ("tests/dialects/test_upgrade_locks.py::test_an_upgrade_waits_for_a_vacuum_without_blocking_producers",),
    ),
    Mutant(
        "SIGTERM ends a command but leaves its statement running on the server",
        "outboxq/cli/groups.py",
        (("is signal.SIG_DFL], terminate)", "is None], terminate)"),),
        ("tests/dialects/test_stopped_statements.py",),
    ),
    Mutant(
        "a statement runs for hours after its client was killed",
        "outboxq/database/dialects/postgresql_session.py",
        (("client_connection_check_interval', '1s'", "client_connection_check_interval', '0'"),),
        ("tests/dialects/test_stopped_statements.py::test_a_statement_does_not_outlive_its_killed_client",),
    ),
    Mutant(
        "a health probe of the dashboard queues behind pages that are waiting for a lock",
        "outboxq/cli/serving/web.py",
        (("is_health = request.path == HEALTH and not request.query", "is_health = False"),),
        ("tests/contract/test_cli_web.py::test_healthz_does_not_queue_behind_pages_that_wait_for_a_lock",),
    ),
    Mutant(
        "the JSON of a task contains its arguments although nobody asked for them",
        "outboxq/cli/task_report.py",
        (("        hidden = () if show_args else PAYLOAD\n", "        hidden = ()\n"),),
        ("tests/contract/test_cli_json.py",),
    ),
    Mutant(
        "Ctrl-C raises an exception in the middle of a statement, and the log is followed forever",
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
        "the stacks signal kills a worker process that is still importing",
        "outboxq/cli/serving/supervisor.py",
        ((" and child.lifeline.listens()", ""),),
        ("tests/contract/test_worker_stacks.py",),
    ),
    Mutant(
        "a check that found a problem exits with code 0",
        "outboxq/cli/status.py",
        (("sys.exit(EXIT_PROBLEM if found else 0)", "sys.exit(0)"),),
        ("tests/contract/test_cli_inspecting.py",),
    ),
    Mutant(
        "a dry run of an enqueue enqueues a task",
        "outboxq/cli/enqueue.py",
        (("    if not dry_run:\n        handle", "    if bound:\n        handle"),),
        ("tests/contract/test_cli_enqueue.py",),
    ),
    Mutant(
        "a bucket of a Prometheus histogram does not include the smaller buckets",
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
        "the metric for the next tick never lies in the past, so no alert shows that no worker plants",
        "outboxq/worker/prometheus.py",
        (("next_tick(one, min(one.planted_until, now))", "next_tick(one, now)"),),
        ("tests/contract/test_prometheus.py",),
    ),
    Mutant(
        "a later attempt at a tick's task counts as a late tick",
        "outboxq/worker/meter.py",
        (("claim.started_at == claim.first_started_at", "claim.started_at >= claim.first_started_at"),),
        ("tests/contract/test_prometheus.py",),
    ),
    Mutant(
        "all processes of a supervisor use the same port for their metrics",
        "outboxq/cli/serving/worker.py",
        (("first + number - 1 if first else first", "first"),),
        ("tests/contract/test_prometheus.py",),
    ),
    Mutant(
        "an autoscaler gets only the age of the lowest priority",
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
        "an autoscaler gets the starts of all queues",
        "alembic/versions/0001_tables.py",
        (("BETWEEN since AND moment AND queue = (", "BETWEEN since AND moment AND '' <> ("),),
        ("tests/dialects/test_backlog.py",),
    ),
    Mutant(
        "an autoscaler counts starts from before the clock was set back",
        "alembic/versions/0001_tables.py",
        (("BETWEEN since - interval '10 seconds' AND moment", ">= since - interval '10 seconds'"),),
        ("tests/dialects/test_backlog.py",),
    ),
    Mutant(
        "a schedule's time without an offset is read as UTC",
        "outboxq/cli/schedules.py",
        (("moment.replace(tzinfo=zone_of(tz))", "moment.replace(tzinfo=UTC)"),),
        ("tests/contract/test_cli_schedules.py",),
    ),
    Mutant(
        "a schedule that is added with its application is not checked against the task",
        "outboxq/cli/schedules.py",
        (("    if (outbox := present_outbox()) is None:", "    if (outbox := present_outbox()) is None or outbox:"),),
        ("tests/contract/test_cli_schedules.py",),
    ),
    Mutant(
        "a list in the admin reads the whole table",
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
        "verify stops at a check during which the database cannot read a row",
        "outboxq/store/verify/__init__.py",
        (("            if not waiting or not store.dialect", "            if waiting or not store.dialect"),),
        ("tests/contract/test_verify.py",),
    ),
    Mutant(
        "verify skips the checks after one during which the database cannot read a row",
        "outboxq/store/verify/__init__.py",
        (("    while waiting:\n        try:", "    if waiting:\n        try:"),),
        ("tests/contract/test_verify.py",),
    ),
    Mutant(
        "verify accepts the holder of a key if the holder requested any key at all",
        "outboxq/store/verify/keys.py",
        (("    rightful = rightful.correlate(idempotency_keys, birth.event)\n", ""),),
        ("tests/contract/test_corruptions.py",),
    ),
    Mutant(
        "a repair gives a lease to a task without a worker",
        "outboxq/store/verify/repairs.py",
        (("RUNNING, EXECUTION.worker_id.is_not(None), ~rows", "RUNNING, ~rows"),),
        ("tests/contract/test_corruptions.py",),
    ),
    Mutant(
        "the log record about a lost lease has no fields that identify its task",
        "outboxq/worker/leases.py",
        (("log.warning(text, one.claim, extra=fields_of(one.claim, outcome=LOST))", "log.warning(text, one.claim)"),),
        ("tests/contract/test_log_fields.py",),
    ),
    Mutant(
        "the log filter overwrites a field that the record already has",
        "outboxq/context.py",
        (("record.__dict__.setdefault(name, value)", "record.__dict__[name] = value"),),
        ("tests/unit/test_log_fields.py",),
    ),
    Mutant(
        "a hook that cannot be entered prevents the enqueue",
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
        "a hook is called with an outcome before the outcome is queued for writing",
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
        "a log handler that raises an error discards the outcome of a task that ran too long",
        "outboxq/worker/task_runner.py",
        (
            (
                "        seconds = time.monotonic() - began\n",
                "        active.warn_if_late()\n        seconds = 1.0\n",
            ),
        ),
        ("tests/contract/test_worker.py::test_a_log_handler_that_raises_does_not_lose_the_outcome_or_lease",),
    ),
    Mutant(
        "hooks are not called for a commit that came after the worker lost its lease",
        "outboxq/worker/task_runner.py",
        (("(active.state is _COMMITTED or not context.was_lost)", "not context.was_lost"),),
        ("tests/contract/test_hooks.py",),
    ),
    Mutant(
        "a worker reports a task as released although its completion is committed",
        "outboxq/worker/completer.py",
        ((" if one.state is not ClaimState.COMMITTED]", "]"),),
        ("tests/contract/test_hooks.py",),
    ),
    Mutant(
        "a hook is called with an outcome that is discarded",
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
        "an outcome that the worker decides contains neither progress nor a handler log",
        "outboxq/worker/task_runner.py",
        (("outcome if is_bare else with_notes(outcome, context)", "outcome"),),
        ("tests/contract/test_handler_log.py", "tests/contract/test_interruptions.py"),
    ),
    Mutant(
        "a worker writes a completion again after it has been committed",
        "outboxq/worker/task_runner.py",
        (("outcome is not None and active.state is not _COMMITTED:\n", "outcome is not None:\n"),),
        ("tests/contract/test_hooks.py",),
    ),
    Mutant(
        "hooks are called at the end of an attempt in the order in which they were entered",
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
        "hooks are called twice when a worker has stopped",
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
        "an emit that takes over a key loses its headers",
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
        "headers may have a reserved name in capital letters",
        "outboxq/model/options.py",
        (("key.lower().startswith", "key.startswith"),),
        ("tests/unit/test_headers.py",),
    ),
    Mutant(
        "headers that another program's SQL has corrupted fail the task",
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
        "a command runs although no database was given",
        "outboxq/cli/database.py",
        (("    if url is None and chosen is None:\n", "    if False:\n"),),
        ("tests/contract/test_cli_database.py",),
    ),
    Mutant(
        "a command that only reads creates the SQLite file",
        "outboxq/store/transactions.py",
        (("        self.ensure_file()\n        with self.rights.naming()", "        with self.rights.naming()"),),
        ("tests/contract/test_cli_database.py",),
    ),
    Mutant(
        "the list of commands imports every command",
        "outboxq/cli/groups.py",
        (("(name, self._places[name].sentence)", "(name, sentence_of(self.commands[name]))"),),
        ("tests/unit/test_startup.py",),
    ),
    Mutant(
        "every worker process of a supervisor logs the database and the tasks",
        "outboxq/cli/serving/supervisor.py",
        (('return {} if introduces_all else {INTRODUCED: "1"}', "return {}"),),
        ("tests/contract/test_worker_introduction.py",),
    ),
    Mutant(
        "the fence does not check the lease token",
        "outboxq/store/claims/ends.py",
        (
            ('lease.lease_token == r["given"].c.lease_token, ', ""),
            ("        execution.lease_token == claim.lease_token,\n", ""),
        ),
        ("tests/contract/test_finish.py",),
    ),
    Mutant(
        "the fence does not check the worker",
        "outboxq/store/claims/ends.py",
        (
            (".c.lease_token, lease.worker_id == worker_id)", ".c.lease_token)"),
            ("        execution.worker_id == worker,\n", ""),
        ),
        ("tests/contract/test_finish.py",),
    ),
    Mutant(
        "a claim that fails because of one row fails for all rows",
        "outboxq/store/claims/claim.py",
        (
            (" or not set_aside(self, cursor.search, worker_id)", ""),
            ("using is None and perhaps_the_row(self, error)", "False"),
        ),
        ("tests/contract/test_hostile_rows.py",),
    ),
    Mutant(
        "a listener that raises an error makes every due task fail",
        "outboxq/store/claims/broken_entries.py",
        (("failed if claimable else [", "failed if claimable or failed else ["),),
        ("tests/contract/test_set_aside.py",),
    ),
    Mutant(
        "an entry that a claim skipped proves that another entry is broken",
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
        "a time that psycopg cannot read makes the whole claim fail",
        "outboxq/database/dialects/postgresql.py",
        (("        except psycopg.DataError:\n", "        except ZeroDivisionError:\n"),),
        ("tests/contract/test_hostile_rows.py",),
    ),
    Mutant(
        "an enqueue does not check a field that is equal to that of the first task in its batch",
        "outboxq/store/producing/enqueue.py",
        (("all(map(is_, chain", "all(map(eq, chain"), ("import attrgetter, is_", "import attrgetter, eq, is_")),
        ("tests/contract/test_enqueue.py",),
    ),
    Mutant(
        "an enqueue does not check the ids of similar tasks",
        "outboxq/store/producing/enqueue.py",
        ((" or not are_uuid7s([task.id for task in tasks])", ""),),
        ("tests/contract/test_enqueue.py",),
    ),
    Mutant(
        "an enqueue does not check the arguments of similar tasks",
        "outboxq/store/producing/enqueue.py",
        (("not _are_texts([task.args for task in tasks]) or ", ""),),
        ("tests/contract/test_enqueue.py",),
    ),
    Mutant(
        "an enqueue does not check a field that is equal to that of the last task with the same name",
        "outboxq/store/producing/enqueue.py",
        (("all(map(is_, _shared(task), shared))", "_shared(task) == shared"),),
        ("tests/contract/test_enqueue.py",),
    ),
    Mutant(
        "a changed task keeps the fields of the last task with the same name",
        "outboxq/store/producing/enqueue.py",
        (("task.made_of is made_of) or", "task.made_of in (made_of, None)) or"),),
        ("tests/contract/test_enqueue.py",),
    ),
    Mutant(
        "changed tasks keep the fields of the first task in their batch",
        "outboxq/store/producing/enqueue.py",
        (("== {id(made_of)}", "<= {id(made_of), id(None)}"),),
        ("tests/contract/test_enqueue.py",),
    ),
    Mutant(
        "a task that is enqueued alone gets the options of the last task with the same name",
        "outboxq/store/producing/enqueue.py",
        (("or all(map(is_, _shared(task), shared)):", "or True:"),),
        ("tests/contract/test_enqueue.py",),
    ),
    Mutant(
        "a cached cursor writes text in the previous encoding of its connection",
        "outboxq/database/dialects/postgresql.py",
        (
            ("info.pop((_CURSOR, encoding), None)", "info.pop((_CURSOR, b''), None)"),
            ("info[_CURSOR, encoding] = cursor", "info[_CURSOR, b''] = cursor"),
        ),
        ("tests/dialects/test_encodings.py",),
    ),
    Mutant(
        "an application that uses SQLite needs psycopg",
        "outboxq/database/target.py",
        (("import sqlite3\n", "import sqlite3\n\nimport psycopg\n"),),
        ("tests/unit/test_without_psycopg.py",),
    ),
    Mutant(
        "the library accepts a psycopg version that loses notifications",
        "outboxq/database/drivers.py",
        (("OLDEST_PSYCOPG = (3, 2, 5)", "OLDEST_PSYCOPG = (3, 2, 0)"),),
        ("tests/unit/test_without_psycopg.py",),
    ),
    Mutant(
        "the migrations omit the storage parameters of a table",
        "alembic/versions/0001_tables.py",
        (('    _store("task_leases", {"fillfactor": 50, **RESTLESS})\n', ""),),
        ("tests/contract/test_schema_golden.py",),
    ),
    Mutant(
        "the database accepts a lease of unlimited length",
        "alembic/versions/0001_tables.py",
        (
            ("VALUE > 0 AND VALUE <= 3200000000", "VALUE > 0"),
            ('"> 0", "3200000000", "lease_seconds"', '"> 0", "9e999", "lease_seconds"'),
        ),
        ("tests/contract/test_schema.py",),
    ),
    Mutant(
        "a delete evaluates its LIMIT in an IN subquery, which may run more than once, instead of in an array",
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
        "SQLite transactions begin with BEGIN DEFERRED instead of BEGIN IMMEDIATE",
        "outboxq/database/dialects/sqlite.py",
        (('dict.fromkeys(Begin, "BEGIN IMMEDIATE")', 'dict.fromkeys(Begin, "BEGIN DEFERRED")'),),
        ("tests/dialects/test_claim_locks.py", "tests/contract/test_host_engine.py"),
    ),
    Mutant(
        "an enqueue commits the task in a separate transaction before the caller's rows",
        "outboxq/store/producing/enqueue.py",
        (
            (
                "store.run(work, using=using, begin=begin, done=done, enqueues=features)",
                "store.run(work, begin=begin, done=done, enqueues=features)",
            ),
        ),
        ("tests/contract/test_enqueue.py",),
    ),
    Mutant(
        "a claim commits the entries that it took before it records the transition",
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
        "every task in a batch of outcomes ends like the first one, because the columns count as constant",
        "outboxq/database/dialects/plans.py",
        (("len(set(map(self._constants, rows))) == 1", "len(set(map(self._constants, rows))) >= 1"),),
        ("tests/contract/test_finish.py",),
    ),
    Mutant(
        "a completion that contains more than a result is written like one that does not",
        "outboxq/store/claims/ends.py",
        (("        and not outcome.claim.recovery_attempts\n        and not outcome.data\n", ""),),
        ("tests/contract/test_finish.py",),
    ),
    Mutant(
        "a batch of completions does not free partition keys",
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
        "recovery does not write the outbox entry",
        "outboxq/store/claims/recovery.py",
        (('            "entry": lambda r: _entry(g, r),\n', ""),),
        ("tests/contract/test_leases.py",),
    ),
    Mutant(
        "recovery changes the tasks of the leases that it selected instead of those that it deleted",
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
        "a manual change moves a task without proof that the task's entry or lease was deleted",
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
        "a claim also runs stale entries",
        "outboxq/store/claims/claim_sql.py",
        ((", execution.status == SqlStatus.READY)", ")"),),
        ("tests/contract/test_claim.py",),
    ),
    Mutant(
        "an enqueue on SQLite does not put its statements in a savepoint",
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
        "the time limit of a query is a bare volatile function, which cannot be an index condition",
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
        "a sleeper's horizon is the latest completed transaction id plus one",
        "outboxq/store/claims/sleeping_workers.py",
        (("sa.func.pg_current_xact_id()", "sa.func.pg_snapshot_xmax(sa.func.pg_current_snapshot())"),),
        ("tests/dialects/test_sleeping.py",),
    ),
    Mutant(
        "a sleeper draws its horizon before its row is committed",
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
        "a sleeper does not wait for transactions that were open when it announced itself",
        "outboxq/worker/distributor/postgresql.py",
        (("            if seen.settled:\n", "            if True:\n"),),
        ("tests/dialects/test_sleeping.py",),
    ),
    Mutant(
        "a sleeper does not check for due tasks after it has announced itself",
        "outboxq/store/claims/sleeping_workers.py",
        (('due.label("due")', 'sa.literal_column("false").label("due")'),),
        ("tests/dialects/test_sleeping.py",),
    ),
    Mutant(
        "a sleeper that is working again does not withdraw its announcement",
        "outboxq/worker/distributor/postgresql.py",
        (("self._withdraw()\n", "pass\n"),),
        ("tests/dialects/test_sleeping.py",),
    ),
    Mutant(
        "a listener that has reconnected does not wake its worker",
        "outboxq/worker/distributor/listener.py",
        (("        self._error = None\n        self.on_change()\n", "        self._error = None\n"),),
        ("tests/faults/test_listener.py",),
    ),
    Mutant(
        "a producer's role may read every column of a task",
        "outboxq/database/privileges.py",
        (('"INSERT; SELECT (id, position)"', '"INSERT; SELECT"'),),
        ("tests/roles/test_grants_command.py",),
    ),
    Mutant(
        "missing privileges are found only through an error from the database",
        "outboxq/store/rights.py",
        (("if enqueues is not None and (lacking := lacks(", "if False and (lacking := lacks("),),
        ("tests/roles/test_grants_command.py",),
    ),
    Mutant(
        "a store assumes that it has privileges on tables that do not exist yet",
        "outboxq/store/transactions.py",
        (
            (
                "            self.rights.check(target, enqueues)\n        with in_a_transaction_that_goes_on():",
                (
                    "            self.rights.check(target, enqueues)\n"
                    "        self.rights.known.add(enqueues)\n        with in_a_transaction_that_goes_on():"
                ),
            ),
        ),
        ("tests/roles/test_rights.py",),
    ),
    Mutant(
        "a timeout while waiting for a connection counts as a permanent error",
        "outboxq/database/dialects/postgresql_errors.py",
        (("for kind in type(_driver_error(error)).__mro__", "for kind in type(_driver_error(error)).__mro__[:1]"),),
        ("tests/unit/test_postgresql_errors.py",),
    ),
    Mutant(
        "a grant succeeds although the role could not grant the privileges",
        "outboxq/store/rights.py",
        (("if lacking := lacks(target, wanted, grantee=name):", "if lacking := lacks(target, ()):"),),
        ("tests/roles/test_grants_command.py",),
    ),
    Mutant(
        "a listener assumes that it receives notifications because LISTEN succeeded",
        "outboxq/worker/distributor/listener.py",
        (("if not self._receives(connection, word, self.answer_timeout / 2):", "if not connection:"),),
        ("tests/dialects/test_channel.py",),
    ),
    Mutant(
        "a listener keeps running after the outbox has been moved",
        "outboxq/worker/distributor/listener.py",
        (('if still != [{"channel": self._channel}]:', "if not still:"),),
        ("tests/dialects/test_channel.py",),
    ),
    Mutant(
        "the trigger searches for sleepers in the schema in which the tables were created",
        "alembic/versions/0001_tables.py",
        (("ELSIF TG_TABLE_SCHEMA OPERATOR(pg_catalog.=) %1$L THEN", "ELSIF true THEN"),),
        ("tests/dialects/test_channel.py",),
    ),
    Mutant(
        "a statement that frees a key notifies a different channel from the trigger's",
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
        "deputies claim immediately",
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
        "a call names a worker that may refuse a task's topic",
        "outboxq/worker/distributor/postgresql.py",
        (("self._listener.session if self.topics is None else None", "self._listener.session"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "the trigger calls a worker that was killed",
        "alembic/versions/0001_tables.py",
        (("WHERE NOT pg_catalog.pg_try_advisory_xact_lock_shared(in_turn.session)", "WHERE true"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a transaction keeps others from noticing that a worker was killed",
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
        "a worker interrupts its own pauses when it expects a delayed task",
        "outboxq/worker/distributor/postgresql.py",
        (("self._bring_forward(self._turn_at(moment))", "self._look_when_due(moment)"),),
        ("tests/dialects/test_sleeping.py",),
    ),
    Mutant(
        "deputies do not check for due tasks",
        "outboxq/worker/distributor/postgresql.py",
        (("self._look_by(now + _DEPUTY_AFTER)", "pass"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "only deputies check for due tasks",
        "outboxq/worker/distributor/postgresql.py",
        (("look_at = now + _EVERYBODY_AFTER + self._place.share(number) * _LATEST", "look_at = math.inf"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a worker answers calls that it received during its check",
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
        "a worker answers calls for other workers although a task is due",
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
        "a worker answers calls for other workers after a check that began at the floors",
        "outboxq/worker/distributor/postgresql.py",
        (("            if seen.complete:\n", "            if True:\n"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a worker answers each call immediately",
        "outboxq/worker/distributor/postgresql.py",
        (("heard_before=now - _ANSWER_AFTER", "heard_before=math.inf"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "no worker answers calls for other workers",
        "outboxq/worker/distributor/postgresql.py",
        (("                self._sleeping.answer(calls, moment)\n", "                pass\n"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "an answer does not contain the time at which a limit allows the next task",
        "outboxq/worker/distributor/postgresql.py",
        (("_ANSWER_AFTER), moment)", "_ANSWER_AFTER), None)"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "an answer also removes later calls",
        "outboxq/worker/distributor/postgresql.py",
        (("if place > last or call.queue != queue", "if call.queue != queue"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "an answer also removes calls for other queues",
        "outboxq/worker/distributor/postgresql.py",
        ((" or call.queue != queue]", "]"),),
        ("tests/unit/test_calls.py",),
    ),
    Mutant(
        "an answer removes calls although some calls were not kept",
        "outboxq/worker/distributor/postgresql.py",
        (("if places and len(self._calls) < _MOST:", "if places:"),),
        ("tests/unit/test_calls.py",),
    ),
    Mutant(
        "a worker without a free handler does not pass calls on",
        "outboxq/worker/distributor/postgresql.py",
        (("if self._named_for and (full or saturated):", "if False:"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a busy worker searches repeatedly because of one call",
        "outboxq/worker/distributor/postgresql.py",
        (("            self._begin_look()  # the claim after the pause is a search\n", ""),),
        ("tests/dialects/test_sleeping.py::test_a_worker_that_does_not_sleep_checks_only_once_for_a_call",),
    ),
    Mutant(
        "a worker that passes a call on is called itself",
        "outboxq/store/claims/sleeping_workers.py",
        (("            target.run(withdraw, values)\n", ""),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a sleeper does not receive the due time of a delayed task",
        "outboxq/worker/distributor/postgresql.py",
        (("self._look_when_due(float(head[1:]))", "pass"),),
        ("tests/dialects/test_calls.py",),
    ),
    Mutant(
        "a listener reports that it is listening before LISTEN takes effect",
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
        "the trigger searches for sleepers at any isolation level of the caller",
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
        "the trigger searches for sleepers in the snapshot of its statement",
        "alembic/versions/0001_tables.py",
        (("LANGUAGE plpgsql VOLATILE", "LANGUAGE plpgsql STABLE"),),
        ("tests/dialects/test_sleeping.py",),
    ),
    Mutant(
        "the trigger notifies sleepers of a delayed task that becomes due after they wake without a notification",
        "alembic/versions/0001_tables.py",
        (("greatest(due.available_at, pg_catalog.clock_timestamp())", "pg_catalog.clock_timestamp()"),),
        ("tests/dialects/test_sleeping.py",),
    ),
    Mutant(
        "a worker records the SQLite file's version after its check for due tasks",
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
        "workers claim a task that none of them knows every 15 seconds for a day",
        "outboxq/worker/upkeep/unknown_tasks.py",
        (("2.0 ** min(times - 1, _MAX_DOUBLINGS)", "1.0 ** min(times - 1, _MAX_DOUBLINGS)"),),
        ("tests/unit/test_unknown.py",),
    ),
    Mutant(
        "workers that do not know the tasks of a live application delay these tasks more and more",
        "outboxq/worker/upkeep/unknown_tasks.py",
        (("times = 1 if run.known_elsewhere else run.times + 1", "times = run.times + 1"),),
        ("tests/contract/test_unknown_tasks.py",),
    ),
    Mutant(
        "the supervisor's copy of a service manager's signal counts as a second signal",
        "outboxq/cli/serving/supervisor.py",
        (("and not self.lifeline.send(order):", "and (self.lifeline.send(order), True)[1]:"),),
        ("tests/unit/test_supervisor.py",),
    ),
    Mutant(
        "the supervisor passes on a person's second signal as another request for a normal stop",
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
        "a claim from queues with keys serves the same queue again",
        "outboxq/store/claims/partition_keys.py",
        (("key=lambda queue: self._served.get(queue, 0)", "key=lambda queue: 0"),),
        ("tests/contract/test_fairness.py",),
    ),
    Mutant(
        "a new key waits behind a long series of blocked keys",
        "outboxq/store/claims/partition_keys.py",
        (("available_at.desc(), entry.c.id.desc()", "available_at, entry.c.id"),),
        ("tests/contract/test_blocked_keys.py",),
    ),
    Mutant(
        "an idle worker reads a long series of blocked keys before the key that woke it",
        "outboxq/store/claims/partition_keys.py",
        (("[self._recent, *ways] if woken else [*ways, self._recent]", "[*ways, self._recent]"),),
        ("tests/contract/test_blocked_keys.py",),
    ),
    Mutant(
        "a prune waits for a caller that took over a key",
        "outboxq/store/retention.py",
        ((".where(sa.or_(keyed.c.id.is_(None), locked.c.id.is_not(None)))", ""),),
        ("tests/dialects/test_what_waits.py",),
    ),
    Mutant(
        "a handler on SQLite waits for its own transaction",
        "outboxq/store/transactions.py",
        (("if (locked := unit.database) is not None and locked == self._database():", "if False:"),),
        ("tests/contract/test_own_transactions.py",),
    ),
    Mutant(
        "two dead letters with the same idempotency key run at the same time",
        "outboxq/store/tasks/idempotency.py",
        (("(owner.is_free and owner.id not in task_ids)", "owner.is_free"),),
        ("tests/contract/test_regained_keys.py",),
    ),
    Mutant(
        "verify reports a lease that was written before the clock was set back as endless",
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
        "verify repairs the worker of a task but not that of its lease",
        "outboxq/store/verify/repairs.py",
        (('moved.returning(*found), "lease": lease}', "moved.returning(*found)}"),),
        ("tests/contract/test_corruptions.py",),
    ),
    Mutant(
        "a worker runs two suspects at the same time",
        "outboxq/worker/claim_loop.py",
        (("        if self._last is None or not self._leases.holds(self._last):\n", "        if True:\n"),),
        ("tests/contract/test_recovery.py", "tests/faults/test_poison.py"),
    ),
    Mutant(
        "a worker keeps suspects that are waiting for their turn, so its death counts against them too",
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
        "a recovery counts against a suspect that had not begun",
        "outboxq/store/claims/recovery.py",
        (("    counts = freed.begun.is_not(sa.false())\n", "    counts = freed.id.is_not(None)\n"),),
        ("tests/contract/test_recovery.py",),
    ),
    Mutant(
        "a task that was recovered once counts as a suspect",
        "outboxq/model/records.py",
        (("SUSPECT = 2\n", "SUSPECT = 1\n"),),
        ("tests/contract/test_recovery.py",),
    ),
    Mutant(
        "a task's recoveries are never reset",
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
        "a worker recovers tasks that it holds itself",
        "outboxq/worker/upkeep/recovery.py",
        ((" if not self.leases.holds(lease)]", "]"),),
        ("tests/unit/test_recovery.py",),
    ),
    Mutant(
        "a worker recovers a task the first time that it finds the lease expired",
        "outboxq/worker/upkeep/recovery.py",
        (("if since + self._watch <= now]", "if since <= now]"),),
        ("tests/unit/test_recovery.py",),
    ),
    Mutant(
        "a worker recovers tasks without checking that the database accepts writes",
        "outboxq/worker/upkeep/recovery.py",
        (("        if new:\n            self.prove_writable()\n", ""),),
        ("tests/unit/test_recovery.py",),
    ),
    Mutant(
        "a worker recovers tasks right after an outage because it watched their leases before the outage",
        "outboxq/worker/upkeep/recovery.py",
        (("        self._watched.clear()\n", ""),),
        ("tests/unit/test_recovery.py",),
    ),
    Mutant(
        "a change of the clock does not extend any leases",
        "outboxq/worker/upkeep/recovery.py",
        (("            self.leases.beat_at_once()\n", ""),),
        ("tests/unit/test_recovery.py", "tests/contract/test_recovery.py"),
    ),
    Mutant(
        "a worker that starts after the clock was set back does not correct the rows from the fast clock",
        "outboxq/worker/upkeep/recovery.py",
        (("        if not self._has_corrected:\n            self._correct_for_clock()\n", ""),),
        ("tests/unit/test_recovery.py", "tests/contract/test_recovery.py"),
    ),
    Mutant(
        "a claim with its own lease length counts as a lease from a fast clock",
        "outboxq/store/claims/recovery.py",
        (("sa.func.coalesce(length_of_claim(g), of_task)", "of_task"),),
        ("tests/contract/test_recovery.py",),
    ),
    Mutant(
        "a retry that was written while the clock was running fast waits until that clock's due time",
        "outboxq/store/claims/recovery.py",
        (("has_begun.correlate(task_outbox).exists()", "sa.false()"),),
        ("tests/contract/test_recovery.py",),
    ),
    Mutant(
        "one locked lease stops the heartbeats of all leases",
        "outboxq/store/claims/ends.py",
        (("with_for_update(of=task_leases, skip_locked=True)", "with_for_update(of=task_leases)"),),
        ("tests/contract/test_stuck_rows.py",),
    ),
    Mutant(
        "one locked task stops the recovery of all tasks",
        "outboxq/store/claims/ends.py",
        ((".with_for_update(skip_locked=True)", ".with_for_update()"),),
        ("tests/contract/test_stuck_rows.py",),
    ),
    Mutant(
        "a stale outbox entry stops the recovery of all tasks",
        "outboxq/store/claims/recovery.py",
        (("    return new.on_conflict_do_nothing()  # type: ignore[no-any-return]\n", "    return new\n"),),
        ("tests/contract/test_stuck_rows.py",),
    ),
    Mutant(
        "a worker discards an outcome while the database is unreachable",
        "outboxq/worker/completer.py",
        (("        if self.store.may_pass(error):\n", "        if False:\n"),),
        ("tests/unit/test_completer.py",),
    ),
    Mutant(
        "a worker discards an outcome while the disk is full",
        "outboxq/worker/completer.py",
        (("        elif self.store.cannot_write_now(error):\n", "        elif False:\n"),),
        ("tests/unit/test_completer.py",),
    ),
    Mutant(
        "a worker continues to claim tasks although it cannot write any outcomes",
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
                "tests/faults/test_failpoints.py::test_another_worker_completes_all_tasks_after_a_death_at_a_failpoint"
                "[postgresql-before_commit]"
            ),
        ),
    ),
    Mutant(
        "a temporary PostgreSQL error counts as permanent",
        "outboxq/database/dialects/postgresql_errors.py",
        (('_OUTSIDE | {"55P03", "57014", "53300"}', '_OUTSIDE - {"57P02", "57P03"}'),),
        ("tests/dialects/test_patience.py",),
    ),
    Mutant(
        "a client waits for hours for a server that does not answer",
        "outboxq/database/dialects/postgresql_session.py",
        (("{**_TCP_TIMEOUTS, **url.query, **_UNICODE}", "{**url.query, **_UNICODE}"),),
        ("tests/dialects/test_patience.py",),
    ),
    Mutant(
        "errors from outboxq's own engines contain parameters",
        "outboxq/database/engine.py",
        (("hide_parameters=True", "hide_parameters=False"),),
        ("tests/contract/test_hidden_values.py",),
    ),
    Mutant(
        "errors from outboxq's statements on a caller's connection contain parameters",
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
        "a percentile that falls exactly on an attempt is taken from the next attempt",
        "outboxq/store/numbers/metrics.py",
        (("(upto[-1] * percent + 99) // 100", "upto[-1] * percent // 100 + 1"),),
        ("tests/contract/test_metrics.py",),
    ),
    Mutant(
        "a prune measures a task's age from the time at which it was enqueued",
        "outboxq/database/history.py",
        (("and_(execution.completed_at < before", "and_(execution.created_at < before"),),
        ("tests/contract/test_retention.py",),
    ),
    Mutant(
        "a worker keeps using a SQLite file that another file has replaced",
        "outboxq/worker/upkeep/recovery.py",
        (("        self.store.check_file()\n", ""),),
        ("tests/dialects/test_sqlite_file.py",),
    ),
    Mutant(
        "a task is enqueued in a SQLite file that another file has replaced",
        "outboxq/database/dialects/sqlite_file.py",
        (("if file is not None and not file.is_there:", "if False:"),),
        ("tests/dialects/test_sqlite_file.py",),
    ),
    Mutant(
        "every user of the machine may read a new SQLite file",
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
        "a harness warns about the driver connection under its own connection",
        "outboxq/testing/transaction.py",
        (("_driver_connection(target) is not _driver_connection(ours)", "target.connection is not ours.connection"),),
        ("tests/integrations/testing_helpers/test_harness_targets.py",),
    ),
    Mutant(
        "a dashboard in a test displays pages from before the test's last change",
        "outboxq/web/dashboard.py",
        (("        if store.runs_alone:", "        if False:"),),
        ("tests/integrations/testing_helpers/test_dashboard_in_harness.py",),
    ),
    Mutant(
        "the event of a stop at a checkpoint does not contain the reason",
        "outboxq/worker/executor.py",
        ((', data={"reason": request.reason})', ")"),),
        ("tests/unit/test_executor.py",),
    ),
    Mutant(
        "a handler that snoozes for zero seconds runs again without a pause",
        "outboxq/worker/executor.py",
        (("max(request.delay, SHORTEST_SNOOZE)", "request.delay"),),
        ("tests/unit/test_executor.py",),
    ),
    Mutant(
        "the heartbeat stops when a worker begins to drain",
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
        "a worker that stops does not release the prefetched tasks that have not begun",
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
        ("tests/faults/test_poison.py::test_prefetched_tasks_are_run_by_another_worker_promptly_after_the_signal",),
    ),
    Mutant(
        "the code works with a later schema that does not allow it",
        "outboxq/database/revisions.py",
        (("oldest_code is None or oldest_code > REVISION", "oldest_code is None"),),
        ("tests/contract/test_migrations.py::test_an_incompatible_schema_is_reported_in_one_sentence",),
    ),
    Mutant(
        "an upgrade checks the schema before it has the lock",
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
                "::test_an_upgrade_that_waited_for_the_migration_of_a_later_release_changes_nothing"
            ),
        ),
    ),
    Mutant(
        "an event type of a later release raises an error instead of being kept as text",
        "outboxq/model/records.py",
        (("return _EVENT_TYPES.get(stored, stored)", "return EventType(stored)"),),
        ("tests/contract/test_later_events.py",),
    ),
    Mutant(
        "a replacement process that cannot start stops the supervisor and all its workers",
        "outboxq/cli/serving/supervisor.py",
        (("return first and code in _REFUSED", "return code in _REFUSED"),),
        ("tests/unit/test_supervisor.py::test_the_pause_grows_for_processes_that_cannot_start",),
    ),
    Mutant(
        "statements are prepared on a connection through a pooler",
        "outboxq/database/dialects/postgresql_session.py",
        (("        if not direct:\n            raw.prepare_threshold = None\n", ""),),
        ("tests/dialects/test_own_settings.py",),
    ),
    Mutant(
        "PostgreSQL returns times in the role's date style",
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
        "the library accepts a database with any encoding",
        "outboxq/database/dialects/postgresql_session.py",
        (("if found is not None and found != _UTF8:", 'if found == "nothing":'),),
        ("tests/dialects/test_encodings.py",),
    ),
    Mutant(
        "interruptions of a task are released without a limit",
        "outboxq/worker/task_runner.py",
        (("    if before >= MAX_INTERRUPTIONS:\n", "    if before < 0:\n"),),
        ("tests/contract/test_interruptions.py",),
    ),
    Mutant(
        "an external error on another connection counts as an interruption of the task's transaction",
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
        "`run()` in a thread waits for signals that it never receives",
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
        "Ctrl-Break on Windows kills a worker in the middle of a task",
        "outboxq/worker/signals.py",
        ((', "SIGBREAK")', ")"),),
        ("tests/unit/test_without_fork.py",),
    ),
    Mutant(
        "a number parameter accepts True",
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
        "an error about missing tables has the database's wording",
        "outboxq/store/schema.py",
        (("    if not target.dialect.is_undefined(error):\n", "    if True:\n"),),
        ("tests/contract/test_missing_tables.py",),
    ),
    Mutant(
        "the listeners of an engine are not called for outboxq's transactions",
        "outboxq/database/target.py",
        (('    if not getattr(engine, "_has_events", True):\n        return False\n', "    return False\n"),),
        ("tests/dialects/test_own_target.py",),
    ),
    Mutant(
        "a transaction does not end if its Connection has been requested",
        "outboxq/database/target.py",
        (
            (
                "        self._is_bare, self._known = False, None\n        return",
                "        self._known = None\n        return",
            ),
        ),
        ("tests/dialects/test_own_target.py",),
    ),
    Mutant(
        "a connection that is lost at its COMMIT leaves all other connections in the pool",
        "outboxq/database/target.py",
        (("self._as_sqlalchemys(error, None, self._raw())", "self._wrapped(error, None)"),),
        ("tests/dialects/test_own_target.py",),
    ),
    Mutant(
        "a connection is reused after Ctrl-C has interrupted its COMMIT",
        "outboxq/database/target.py",
        (("            if not isinstance(error, Exception):  # a", "            if False:  # a"),),
        ("tests/dialects/test_own_target.py",),
    ),
    Mutant(
        "a NUL character splits an element of an array in two",
        "outboxq/database/column_types.py",
        ((' and (text := "\\0".join(values)).count("\\0") < len(values)', ' and (text := "\\0".join(values))'),),
        ("tests/dialects/test_packed_arrays.py",),
    ),
    Mutant(
        "the pool keeps a connection to a standby",
        "outboxq/database/target.py",
        (
            (
                "            if is_midway or self.dialect.is_of_standby(error, raw):\n",
                "            if is_midway:\n",
            ),
        ),
        ("tests/faults/test_standby.py",),
    ),
    Mutant(
        "an error that occurs repeatedly is logged each time",
        "outboxq/store/failure_log.py",
        (("            if now - self._logged_at.get(kind, -math.inf) < SAY_EVERY:\n", "            if False:\n"),),
        ("tests/unit/test_failure_log.py",),
    ),
    Mutant(
        "a command's log contains tracebacks of tasks that nobody requested",
        "outboxq/cli/serving/logs.py",
        (("            if not self._tracebacks:\n", "            if False:\n"),),
        ("tests/unit/test_end_log.py",),
    ),
    Mutant(
        "the log record of a task's final failure does not contain the exception",
        "outboxq/worker/log_lines.py",
        (("            has_traceback = kind is EventType.FAILED or ", "            has_traceback = "),),
        ("tests/contract/test_worker_log.py",),
    ),
    Mutant(
        "a prefix of several ids selects the first of them",
        "outboxq/store/tasks/tasks.py",
        (("    if len(rows) > 1:\n", "    if len(rows) > _NAMED + 1:\n"),),
        ("tests/contract/test_task_ids.py",),
    ),
    Mutant(
        "a task is reported as free although it waits for the first task with its key",
        "outboxq/store/explain/sentences.py",
        (('if (first := row["head"]) not in {None, task.id}:', 'if (first := row["head"]) == task.id:'),),
        ("tests/contract/test_explain.py",),
    ),
    Mutant(
        "`manage.py outboxq` uses a different database from the one that was given",
        "outboxq/contrib/django/management/commands/outboxq.py",
        (("lambda database: outboxes[database].store,", "lambda database: outboxes[DEFAULT_DB_ALIAS].store,"),),
        ("tests/integrations/django_app/test_django_commands.py",),
    ),
    Mutant(
        "a framework's command line does not find the commands inside a group",
        "outboxq/cli/framework.py",
        (("        if not isinstance(found, click.Group):\n", "        if True:\n"),),
        ("tests/unit/test_framing.py",),
    ),
    Mutant(
        "a printed command omits the URL that was entered",
        "outboxq/cli/database.py",
        ((' if typed.get("url") else []', " if False else []"),),
        ("tests/unit/test_typed.py",),
    ),
    Mutant(
        "a walk over all modules imports outboxq's modules while time is frozen",
        "outboxq/__init__.py",
        (("globals() if is_frozen else [", "["),),
        ("tests/unit/test_startup.py",),
    ),
    Mutant(
        "the admin displays times in UTC with the name of another zone",
        "outboxq/contrib/django/admin.py",
        (("{here.replace(tzinfo=None).isoformat", "{moment.replace(tzinfo=None).isoformat"),),
        ("tests/integrations/django_admin/test_django_admin.py",),
    ),
    Mutant(
        "a page of a task's newest events contains its oldest ones",
        "outboxq/store/tasks/tasks.py",
        (("ends.order_by(event.lease_token.desc())", "ends.order_by(event.lease_token)"),),
        ("tests/contract/test_events.py",),
    ),
    Mutant(
        "the default retry delays differ from those on the page about retries",
        "outboxq/retry.py",
        (("multiplier=2, max=3600", "multiplier=3, max=3600"),),
        ("tests/docs/test_retries_page.py",),
    ),
    Mutant(
        "a worker drains longer than the services on the deployment page wait",
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
        "an error's second line with its id is also printed to scripts",
        "outboxq/cli/console.py",
        (("if error is not None and sys.stderr.isatty():", "if error is not None:"),),
        ("tests/docs/test_troubleshooting_pages.py",),
    ),
    Mutant(
        "an error message differs from the one on its page",
        "outboxq/task/registry.py",
        (("import the module that declares it", "import its module"),),
        ("tests/docs/test_troubleshooting_pages.py",),
    ),
    Mutant(
        "the reference omits an option of a task",
        "outboxq/outbox.py",
        (("            priority: -100 to 100. Tasks with a higher priority start first.\n", ""),),
        ("tests/docs/test_reference_page.py",),
    ),
    Mutant(
        "a claim that fails for the 1024th time in a row kills the worker",
        "outboxq/worker/claim_loop.py",
        (("2 ** min(self._failed, 10)", "2**self._failed"),),
        ("tests/unit/test_claim_loop.py",),
    ),
    Mutant(
        "a worker that has handed back its tasks for an immediate stop exits with code 0",
        "outboxq/worker/worker.py",
        ((" and not self.is_abandoned else 1", " else 1"),),
        (
            "tests/contract/test_worker_life.py::test_run_does_not_return_0_after_stop_at_once_even_if_handlers_end_first",
        ),
    ),
    Mutant(
        "a lock that the handler's own statement could not acquire counts as an interruption",
        "outboxq/worker/steps.py",
        (("if is_ours and (store", "if (store"),),
        ("tests/contract/test_interruptions.py",),
    ),
    Mutant(
        "a supervisor starts a worker although the SQLite file was replaced and its log was left behind",
        "outboxq/cli/serving/supervisor.py",
        (("        if code == EXIT_FILE:\n            return True\n", ""),),
        ("tests/unit/test_supervisor.py::test_a_successor_that_would_destroy_a_file_stops_all_processes",),
    ),
    Mutant(
        "a supervisor keeps restarting workers that lack privileges",
        "outboxq/cli/serving/supervisor.py",
        (("frozenset({EXIT_USAGE, EXIT_SCHEMA, EXIT_PERMISSION})", "frozenset({EXIT_USAGE, EXIT_SCHEMA})"),),
        ("tests/unit/test_supervisor.py::test_a_process_that_can_never_start_stops_all_processes",),
    ),
    Mutant(
        "an engine opens a file that was put next to the log of another file",
        "outboxq/database/dialects/sqlite_file.py",
        (
            ("not file.is_there and file.has_left_its_log:", "not file.is_there and False:"),
            ("            if file.has_left_its_log:\n                raise replaced(file.path)\n", ""),
        ),
        ("tests/dialects/test_replaced_file.py",),
    ),
    Mutant(
        "an engine creates a deleted SQLite file again as an empty file",
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
        "a cure omits the URL that was entered",
        "outboxq/integration/__init__.py",
        (("[self.options] if self.options else []", "[]"),),
        ("tests/contract/test_cli_operators.py",),
    ),
    Mutant(
        "a cure contains the placeholder APP although the environment names the application",
        "outboxq/cli/database.py",
        (("finds_app=finds_app, ", "finds_app=False, "),),
        ("tests/contract/test_cli_operators.py",),
    ),
    Mutant(
        "an application's upgrade does not print the revision that it reached",
        "outboxq/cli/db.py",
        (('is now {revision}"', 'is up to date"'),),
        ("tests/contract/test_cli.py",),
    ),
    Mutant(
        "a retry becomes part of the trace of the request that enqueued the task",
        "outboxq/contrib/opentelemetry.py",
        (("context.attempt > 1 or ", ""),),
        ("tests/integrations/tracing/test_opentelemetry_hook.py",),
    ),
    Mutant(
        "a span around the worker becomes the parent of every task",
        "outboxq/contrib/opentelemetry.py",
        (("base = trace.set_span_in_context(INVALID_SPAN)", "base = contexts.get_current()"),),
        ("tests/integrations/tracing/test_opentelemetry_hook.py",),
    ),
    Mutant(
        "the span of an attempt that lost its lease does not contain an error",
        "outboxq/contrib/opentelemetry.py",
        (("if not attempt.has_ended:", "if False:"),),
        ("tests/integrations/tracing/test_opentelemetry_hook.py",),
    ),
    Mutant(
        "one tracing library replaces the baggage of another one",
        "outboxq/contrib/tracing.py",
        ((" | {key: one for key, one in theirs.items() if key not in mine}", ""),),
        ("tests/integrations/tracing/test_opentelemetry_hook.py",),
    ),
    Mutant(
        "a Retry that a handler raises is recorded as an error in its trace",
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
        "Sentry gets the arguments of a task although this was not enabled",
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
        "each attempt at a tick is a separate check-in",
        "outboxq/contrib/sentry.py",
        (("id=context.task_id.hex", 'id=f"{context.task_id.hex}{context.attempt}"'),),
        ("tests/integrations/tracing/test_sentry_monitors.py",),
    ),
    Mutant(
        "a time that occurs twice in autumn is two ticks of a fixed rule",
        "outboxq/model/rules.py",
        (("self._fixed_after(moment) if self._is_fixed else", "self._fixed_after(moment) if False else"),),
        ("tests/unit/test_rules.py",),
    ),
    Mutant(
        "a repeated rule skips the hour that occurs a second time in autumn",
        "outboxq/model/rules.py",
        (("        if self._offset(soon) != offset:\n", "        if False:\n"),),
        ("tests/unit/test_rules.py",),
    ),
    Mutant(
        "ticks are counted in whole days across a clock change",
        "outboxq/model/rules.py",
        ((" and self._offset(begin - _SECOND) == self._offset(last)", ""),),
        ("tests/unit/test_rules.py",),
    ),
    Mutant(
        "the error for a rule that never matches does not say so",
        "outboxq/model/rules.py",
        (("        return _without_moment(text)\n", "        return InvalidArgument(text)\n"),),
        ("tests/unit/test_rules.py",),
    ),
    Mutant(
        "ticks are planted again after the clock has been set back",
        "outboxq/model/rules.py",
        (("rule.after(max(done, now - MICROSECOND))", "rule.after(now - MICROSECOND)"),),
        ("tests/unit/test_planning.py",),
    ),
    Mutant(
        "a plan that reaches its limit drops the remaining ticks",
        "outboxq/model/rules.py",
        (("        planted_until = ticks[-1]\n", "        planted_until = now + horizon\n"),),
        ("tests/unit/test_planning.py",),
    ),
    Mutant(
        "the number of ticks in a catch-up has no limit",
        "outboxq/model/rules.py",
        (("islice(rule.ticks(done), schedule.catch_up_limit)", "rule.ticks(done)"),),
        ("tests/unit/test_planning.py",),
    ),
    Mutant(
        "the jitter of a tick differs between workers",
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
        "a worker does not declare the schedules in its code",
        "outboxq/worker/assembly.py",
        (("partial(declare_schedules, tasks=tasks)", "lambda store: None"),),
        ("tests/contract/test_periodic.py",),
    ),
    Mutant(
        "a test's clock advances although the task of a tick has made another task due",
        "outboxq/testing/claims.py",
        (("self.moment = now if ahead.due else now +", "self.moment = now +"),),
        ("tests/integrations/testing_helpers/test_harness_schedules.py",),
    ),
    Mutant(
        "a savepoint that one handler of a series leaves open stays open for the next handler",
        "outboxq/testing/transaction.py",
        (("                    _roll_back_above(self._around, target.connection)", "                    pass"),),
        ("tests/integrations/testing_helpers/test_harness_series.py",),
    ),
    Mutant(
        "a test's clock advances past ticks that have not been planted yet",
        "outboxq/testing/harness.py",
        (("if moment is not None and moment <= planted:", "if moment is not None and moment <= until:"),),
        ("tests/integrations/testing_helpers/test_harness_schedules.py",),
    ),
    Mutant(
        "a test must use its given step results although no task with steps has completed",
        "outboxq/testing/running.py",
        (("(is_complete and bool(names))", "is_complete"),),
        ("tests/integrations/testing_helpers/test_harness_steps.py",),
    ),
    Mutant(
        "the names of given step results are not checked if the tasks run in an inner block",
        "outboxq/testing/running.py",
        (("if self.within is not None:", "if False:"),),
        ("tests/integrations/testing_helpers/test_harness_steps.py",),
    ),
    Mutant(
        "a test cannot assert that another program's task was not enqueued although the outbox knows the task",
        "outboxq/testing/enqueued.py",
        (("known = self._known(found) | others", "known = self._known(found)"),),
        ("tests/integrations/testing_helpers/test_harness_assertions.py",),
    ),
    Mutant(
        "the store rejects a waiting state given as a status, without naming the right parameter",
        "outboxq/store/arguments.py",
        (("if given in tuple(Waiting):", "if False:"),),
        ("tests/contract/test_task_pages.py",),
    ),
    Mutant(
        "a harness claims the next task before it counts the end of a batch's last task",
        "outboxq/testing/claims.py",
        ((" and not is_batch(outcome.claim.pipeline_execution_id)", ""),),
        ("tests/integrations/testing_helpers/test_harness_schedules.py",),
    ),
    Mutant(
        "a harness loses the outcome of a task if it cannot claim the next one",
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
        "a harness treats a task of another outbox as one that was not enqueued",
        "outboxq/testing/harness.py",
        (("        self._refuse_foreign(task)\n        return task if", "        return task if"),),
        ("tests/integrations/testing_helpers/test_harness_assertions.py",),
    ),
    Mutant(
        "the check of a Django project finds only the tasks that happen to be imported",
        "outboxq/contrib/django/operations.py",
        (('    autodiscover_modules("tasks")\n', ""),),
        ("tests/docs/test_django_page.py",),
    ),
    Mutant(
        "a test's clock advances past a tick although the test did not move it",
        "outboxq/testing/harness.py",
        (("            self._wait_for_ticks()\n", ""),),
        ("tests/integrations/testing_helpers/test_harness_schedules.py",),
    ),
    Mutant(
        "an older release overwrites the declaration of a newer release that it waited for",
        "outboxq/store/producing/schedules.py",
        (("if declared_by is not None and not is_new(", "if declared_by is None and not is_new("),),
        ("tests/contract/test_planting.py",),
    ),
    Mutant(
        "a prune leaves the ticks of the tasks that it deletes",
        "outboxq/store/retention.py",
        (('            "ticks": of_pruned(tables.schedule_ticks),\n', ""),),
        ("tests/contract/test_schedules.py", "tests/contract/test_planting.py"),
    ),
    Mutant(
        "a prune never pauses on an overloaded PostgreSQL server",
        "outboxq/store/retention.py",
        (("else min(each / self._shortest - _USUAL, _SHARE)", "else 0.0"),),
        ("tests/unit/test_pace_of_prune.py",),
    ),
    Mutant(
        "a prune does not reduce the size of its batches although they delay other sessions",
        "outboxq/store/retention.py",
        (("self.batch = max(self.batch // 2, _FEWEST)", "pass"),),
        ("tests/unit/test_pace_of_prune.py",),
    ),
    Mutant(
        "a worker prefetches as many tasks with large arguments as with small ones",
        "outboxq/worker/claim_loop.py",
        (("int(_WAITING_BYTES / self._bytes_each)", "_WAITING_BYTES"),),
        ("tests/contract/test_worker_throughput.py",),
    ),
    Mutant(
        "a prune leaves the steps of the tasks that it deletes",
        "outboxq/store/retention.py",
        (('            "steps": of_pruned(tables.task_steps),\n', ""),),
        ("tests/contract/test_steps_around.py",),
    ),
    Mutant(
        "a schedule does not tick in a test with a date in the past",
        "outboxq/testing/harness.py",
        (("            self._begin_schedules()\n", ""),),
        ("tests/integrations/testing_helpers/test_harness_schedules.py",),
    ),
    Mutant(
        "planters do not lock the schedule, so each plants the ticks that another is planting",
        "outboxq/store/producing/schedules_sql.py",
        (("_after).limit(limit).with_for_update(skip_locked=True)", "_after).limit(limit)"),),
        ("tests/contract/test_planting.py",),
    ),
    Mutant(
        "a planter waits for the schedules that another planter has locked",
        "outboxq/store/producing/schedules_sql.py",
        (("_after).limit(limit).with_for_update(skip_locked=True)", "_after).limit(limit).with_for_update()"),),
        ("tests/contract/test_planting.py",),
    ),
    Mutant(
        "a tick that already has a task gets another one",
        "outboxq/store/producing/planting.py",
        (("for _, _, task in ticks if task.id in free]", "for _, _, task in ticks]"),),
        ("tests/contract/test_schedules.py",),
    ),
    Mutant(
        "ticks and the state of their schedule are written in two transactions",
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
        "a planter moves a schedule back to before the ticks that another planter has planted",
        "outboxq/store/producing/schedules_sql.py",
        ((".where(_schedule.name == given.name, forward)", ".where(_schedule.name == given.name)"),),
        ("tests/contract/test_schedules.py", "tests/contract/test_planting.py"),
    ),
    Mutant(
        "a schedule that a fast clock planted ahead is ignored until that clock's time",
        "outboxq/store/producing/schedules_sql.py",
        (("sa.or_(_schedule.planted_until < _until, _planted_wrongly(g))", "_schedule.planted_until < _until"),),
        ("tests/contract/test_clock_jumps.py",),
    ),
    Mutant(
        "a schedule that a correct clock planted is treated as planted by a fast clock after the clock is set back",
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
        "a restart after missed ticks does not record the time from which ticks were skipped",
        "outboxq/store/producing/planting.py",
        (("restarted_at=now if found.begins_anew else None", "restarted_at=None"),),
        ("tests/contract/test_clock_jumps.py",),
    ),
    Mutant(
        "a tick that was planted for the distant future delays the next ticks with its key",
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
        "a schedule that was planted ahead stays so after a change, although the clock is correct again",
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
        "a change to a schedule cancels a task that a worker has started",
        "outboxq/store/producing/schedules_sql.py",
        ((", _execution.first_started_at.is_(None))", ")"),),
        ("tests/contract/test_schedules.py",),
    ),
    Mutant(
        "an older release overwrites the declaration of a newer one",
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
        "an attempt that both the completer and the hand-back end counts twice",
        "outboxq/worker/leases.py",
        (("                if one is None or not one.is_counted\n", ""),),
        ("tests/unit/test_counted_attempts.py",),
    ),
    Mutant(
        "an outcome is counted although it will be tried again",
        "outboxq/worker/completer.py",
        (("                unwritten = lost | locked\n", "                unwritten = locked\n"),),
        ("tests/unit/test_counted_attempts.py",),
    ),
    Mutant(
        "a worker does not wait for its last counts to be written",
        "outboxq/worker/worker.py",
        (("_LAST_COUNTS_TIMEOUT = 5.0", "_LAST_COUNTS_TIMEOUT = 0.0"),),
        ("tests/contract/test_metrics.py",),
    ),
    Mutant(
        "after an error, a worker sends the same counts again with other ids",
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
        "a worker drops the counts of a failed write from the next write",
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
        "the sum of several rows of statistics contains only the largest one",
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
        "two workers sum up statistics at the same time",
        "outboxq/store/numbers/metrics.py",
        (("            if not locked(self._store, target, SUM_UP):\n", "            if False:\n"),),
        ("tests/contract/test_metrics.py",),
    ),
    Mutant(
        "a queue whose dead letters are beyond the limit is displayed without any",
        "outboxq/store/numbers/live.py",
        (('mine["failed_at_least"] = True', 'mine["failed_at_least"] = "failed" in mine'),),
        ("tests/contract/test_samples.py",),
    ),
    Mutant(
        "a sample with a time in the future counts as the last one",
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
        "waiting tasks are counted beyond the limit",
        "outboxq/store/numbers/live.py",
        ((".where(of_queue, *where).limit(_most)", ".where(of_queue, *where).limit(_most * 1000)"),),
        ("tests/dialects/test_plans.py",),
    ),
    Mutant(
        "a hidden page refreshes itself",
        "outboxq/web/static/outboxq.js",
        (("if (document.hidden || isBusy()) return;", "if (isBusy()) return;"),),
        ("tests/integrations/dashboard/test_refreshing.py",),
    ),
    Mutant(
        "a refresh discards a half-completed form",
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
        "texts from tasks are rendered as HTML",
        "outboxq/web/rendering.py",
        (("autoescape=True", "autoescape=False"),),
        ("tests/integrations/dashboard/test_hostile_pages.py",),
    ),
    Mutant(
        "invisible characters stay invisible on pages",
        "outboxq/model/wording.py",
        (("one if one.isprintable() or one in", "one if True or one in"),),
        ("tests/integrations/dashboard/test_hostile_pages.py",),
    ),
    Mutant(
        "a lost worker remains a problem after its tasks have been recovered",
        "outboxq/store/numbers/health.py",
        (('[row for row in facts.rows("lost") if row["number"]]', 'facts.rows("lost")'),),
        ("tests/contract/test_problems.py",),
    ),
    Mutant(
        "a burst succeeds although a broker failed",
        "outboxq/worker/relays/__init__.py",
        (("failed = failed or is_failing", "failed = False"),),
        ("tests/contract/test_run_in_a_thread.py",),
    ),
    Mutant(
        "a relay that already received an event's idempotency key is reported as not stored",
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
        "a process id that two workers share selects one of them",
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
    """Return the first test that failed on a copy of the repository with the mistake; "" if none failed."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "outboxq"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", ".nox", ".*_cache", "__pycache__"))
        target = copy / mutant.file
        text = target.read_text()
        for old, new in mutant.changes:
            assert old in text, f"{mutant.mistake}: the text to change is no longer in {mutant.file}"
            text = text.replace(old, new)
        target.write_text(text)
        run = subprocess.run(
            [*RUN, *mutant.tests],
            cwd=copy,
            # If the machine has no browser, the tests find one in the cache.
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
