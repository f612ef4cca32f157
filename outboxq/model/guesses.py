"""Options and attributes that other libraries have, each with the way to write it here."""

from __future__ import annotations

from collections.abc import Mapping

_POLICY = "retry=RetryPolicy(max_attempts=…, wait=…)"
OF_A_TASK: Mapping[str, str] = {
    "acks_late": "nothing: a task does not end until its outcome is committed",
    "autoretry_for": _POLICY,
    "headers": "headers= in using(), for each call",
    "bind": "a first parameter annotated TaskContext",
    "default_retry_delay": _POLICY,
    "max_attempts": _POLICY,
    "max_retries": _POLICY,
    "rate_limit": "outboxq queue limit",
    "retries": _POLICY,
    "retry_backoff": _POLICY,
    "soft_time_limit": 'timeout= with timeout_action="raise"',
    "time_limit": 'timeout= with timeout_action="kill"',
}
"""Replacements for options that other libraries have for a declared task."""
OF_ONE_CALL: Mapping[str, str] = {
    "countdown": "delay=",
    "dedupe_key": "idempotency_key=",
    "eta": "run_after=",
    "execute_after": "delay= or run_after=",
    "exchange": "queue=",
    "job_id": "idempotency_key=",
    "link": "outbox.chain(…), or outbox.batch(then=…)",
    "link_error": "a Hook: Outbox(…, hooks=[…])",
    "lock": "partition_key=",
    "max_retries": "max_attempts=",
    "queueing_lock": "idempotency_key= with unique_until_finished=True",
    "retry": "retry= of @outbox.task",
    "retry_policy": "retry= of @outbox.task",
    "routing_key": "queue=",
    "schedule_at": "run_after=",
    "schedule_in": "delay=",
    "soft_time_limit": "timeout= of @outbox.task",
    "task_id": "idempotency_key=",
    "time_limit": "timeout= of @outbox.task",
}
"""Replacements for options that other libraries have for one call of a task."""
_OF_EACH_TASK = "retry= of each @outbox.task that subscribes"
OF_AN_EMIT: Mapping[str, str] = {
    **{name: OF_ONE_CALL[name] for name in ("countdown", "eta", "execute_after", "lock", "schedule_at", "schedule_in")},
    "dedupe_key": "idempotency_key=",
    "max_attempts": _OF_EACH_TASK,
    "max_retries": _OF_EACH_TASK,
    "priority": "priority= of each @outbox.task that subscribes",
    "queue": "queue= of each @outbox.task that subscribes",
    "retry": _OF_EACH_TASK,
}
"""Replacements for options that an emit does not accept, because they belong to the subscribing tasks or to other
libraries.
"""
OF_A_SCHEDULE: Mapping[str, str] = {
    "coalesce": 'catch_up="latest"',
    **dict.fromkeys(("seconds", "minutes", "hours", "days", "weeks", "run_every"), "every=timedelta(…)"),
    **dict.fromkeys(
        ("minute", "hour", "day_of_week", "day_of_month", "month_of_year"),
        'the rule as the first argument: @outbox.periodic("30 2 * * *")',
    ),
    "cron": 'the rule as the first argument: @outbox.periodic("30 2 * * *")',
    "crontab": 'the rule as the first argument: @outbox.periodic("30 2 * * *")',
    "expires": "grace=",
    "interval": "every=",
    "kwargs": "args=",
    "max_instances": 'overlap="skip" or "queue"',
    "misfire_grace_time": "grace=",
    "priority": "priority= of @outbox.task",
    "queue": "queue= of @outbox.task",
    "schedule": "the rule as the first argument, or every=",
    "timezone": "tz=",
}
"""Replacements for options that other libraries have for a periodic task."""
OF_A_BATCH: Mapping[str, str] = {
    "callback": "then=",
    "delay": "delay= in using(), for each call",
    "description": "name=",
    "on_complete": "then=",
    "on_finish": "then=",
    "on_success": "then=",
}
"""Replacements for options that other libraries have for a batch, a group or a chord."""
OF_A_WORKER: Mapping[str, str] = {
    "max_jobs": "max_tasks=",
    "max_tasks_per_child": "tasks_per_child=",
    "pool": 'isolation="thread" or "process"',
    "poll_interval": "poll=",
    "prefetch_multiplier": "prefetch=",
    "prefetch_count": "prefetch=",
    "processes": 'outboxq worker --processes, or isolation="process"',
    "threads": "concurrency=",
    "workers": "concurrency=",
    "worker_concurrency": "concurrency=",
    "worker_max_tasks_per_child": "tasks_per_child=",
    "worker_pool": 'isolation="thread" or "process"',
    "worker_prefetch_multiplier": "prefetch=",
    "hostname": "label=",
    "loglevel": "outboxq worker --log-level",
}
"""Replacements for options that other libraries have for a worker."""
OF_A_POLICY: Mapping[str, str] = {
    "backoff": "wait=tenacity.wait_random_exponential(…)",
    "default_retry_delay": "wait=",
    "interval": "wait=",
    "max": "max_attempts=, which counts the first attempt too",
    "max_backoff": "wait=tenacity.wait_random_exponential(max=…)",
    "max_retries": "max_attempts=, which counts the first attempt too",
    "min_backoff": "wait=tenacity.wait_random_exponential(min=…)",
    "retry_backoff": "wait=tenacity.wait_random_exponential(…)",
    "retry_when": "retry=tenacity.retry_if_exception(…)",
    "throws": "retry=tenacity.retry_if_not_exception_type(…)",
}
"""Replacements for options that other libraries have for retries."""
OF_A_RETRY: Mapping[str, str] = {
    "countdown": "Retry(30), in seconds",
    "eta": "at=",
    "exc": "raise Retry(30) from error",
    "max_retries": "retry=RetryPolicy(max_attempts=…) of @outbox.task",
}
"""Replacements for arguments with which other libraries ask for another attempt."""
OF_AN_OUTBOX: Mapping[str, str] = dict.fromkeys(
    ("broker", "broker_url", "backend", "result_backend"),
    "nothing: the database has both the tasks and their results",
)
"""Replacements for options that other libraries have for an application."""
OF_A_LIMIT: Mapping[str, str] = {
    "per_key": "concurrency_per_key=, or rate_per_key=",
    "rate_limit": "rate=(100, timedelta(minutes=1))",
}
"""Replacements for options of a queue's limits, under the names of the command line and of other libraries."""

_NOW, _LATER = "task.using(session).enqueue(…)", "task.using(session, delay=…).enqueue(…)"
_NAMED = "outbox.tasks.get(name).using(session).enqueue(…)"
_CALL, _MANY = "task.call(…), in a batch or a chain", "task.using(session).enqueue_many([(1,), (2,)])"
_IN_A_BATCH = "task.using(batch).enqueue(…) in the `with` block"
_CONTEXT = "ctx.task_id, ctx.attempt or ctx.headers in the function, whose first parameter is then ctx: TaskContext"
_HOOK = "a Hook: Outbox(…, hooks=[…])"
_STATUS, _RESULT = "outbox.store.get(handle.id).status", "handle.result(timeout=…)"
_LIST, _FAILURES = "outbox.store.tasks(status=…)", "outbox.store.dead_letters.list()"
_ROWS: Mapping[str, Mapping[str, str]] = {
    "a task": {
        "delay send defer enqueue_call aenqueue adelay asend defer_async delay_on_commit": _NOW,
        "apply_async send_with_options schedule enqueue_in configure apply_async_on_commit": _LATER,
        "enqueue_at": "task.using(session, run_after=…).enqueue(…)",
        "batch_defer chunks map starmap": _MANY,
        "apply call_local fn run": "task(…), which runs the function here and now",
        "s si signature subtask message message_with_options": _CALL,
        "retry": "raise Retry(30) in the function, or declare retry=RetryPolicy(…)",
        "request": _CONTEXT,
        "update_state": "ctx.progress(0.5) in the function, whose first parameter is then ctx: TaskContext",
        "AsyncResult": "outbox.result(id)",
        "max_retries default_retry_delay autoretry_for": "task.retry_policy",
        "rate_limit": "outbox.store.queues.limit(queue, rate=…)",
        "time_limit soft_time_limit": "task.options.timeout",
        "queue_name": "task.options.queue",
        "actor_name": "task.name",
        "on_failure on_success on_retry after_return before_start": _HOOK,
        "replace": "task.using(ctx).enqueue(…) in the function",
    },
    "an Outbox": {
        "enqueue send delay apply_async defer send_task enqueue_call": f"{_NOW}, or by name {_NAMED}",
        "enqueue_in enqueue_at": _LATER,
        "enqueue_many": _MANY,
        "shared_task actor job register_task declare_actor": "@outbox.task",
        "add_periodic_task cron cron_task schedule scheduled beat_schedule on_after_configure on_after_finalize periodic_task": (
            '@outbox.periodic("0 3 * * *"), or outbox.schedules.put(…)'
        ),
        "AsyncResult get get_result": "outbox.result(id), or outbox.store.get(id)",
        "fetch_job get_job get_task": "outbox.store.get(id)",
        "cancel revoke abort delete": "outbox.store.cancel(id)",
        "group chord GroupResult": "outbox.batch(using=session, then=…)",
        "pipeline signature": "outbox.chain(a.call(1), b.call()).using(session).enqueue()",
        "conf config_from_object autodiscover_tasks": "Outbox(…), @outbox.task(…) and outbox.worker(…), which take the options",
        "control": "outbox.store.queues, outbox.store.workers and outbox.store.cancel(id)",
        "inspect": "outbox.store.workers.list()",
        "queue queues get_queue": "queue= of @outbox.task or using(); outbox.store.queues",
        "retry requeue": "outbox.store.redrive(id)",
        "broker": "nothing: tasks are in the tables of outbox.store; outbox.relay(…) publishes events to a broker",
        "start run worker_main run_worker Worker": "outbox.worker().run()",
        "pause resume limit rate_limit": "outbox.store.queues.pause(queue), resume(queue) or limit(queue, rate=…)",
        "purge empty flush flush_all": "outbox.store.cancel_all(queue=…)",
        "failed failed_job_registry": _FAILURES,
        "jobs get_jobs job_ids get_job_ids list scheduled_job_registry started_job_registry finished_job_registry": _LIST,
        "count": "outbox.store.count_tasks()",
        "add_middleware middleware": _HOOK,
        "migrate create_all create_tables": "outbox.upgrade()",
        "get_actor": "outbox.tasks.get(name)",
    },
    "a handle": {
        "get wait join get_result return_value latest_result get_return_value": _RESULT,
        "state get_status info refresh ready is_ready finished successful failed is_finished is_failed is_queued is_started is_deferred "
        "is_scheduled is_canceled": _STATUS,
        "task_id job_id message_id key": "handle.id",
        "cancel revoke abort delete stop": "outbox.store.cancel(handle.id)",
        "retry requeue redrive": "outbox.store.redrive(handle.id)",
        "traceback exc_info": "outbox.store.attempts(handle.id)",
        "func_name actor_name name": "outbox.store.get(handle.id).task_name",
        "queue_name origin": "outbox.store.get(handle.id).queue",
        "date_done ended_at": "outbox.store.get(handle.id).completed_at",
        "retries": "outbox.store.get(handle.id).attempt",
        "meta save_meta": "outbox.store.progress([handle.id])",
        "children parent then": "outbox.chain(…) or outbox.batch(…)",
        "forget": "nothing: outbox.store.prune(…) or Outbox(retention=…) deletes results with their tasks",
        "collect": "handle.result(timeout=…) for each handle",
    },
    "a chain": {
        "delay apply_async run send apply": "outbox.chain(…).using(session).enqueue()",
        "get wait": "handle.result(timeout=…) of the handle that enqueue() returns",
    },
    "the schedules": {
        "add create update edit upsert": "outbox.schedules.put(name, task, rule)",
        "delete": "outbox.schedules.remove(name)",
        "run run_now": "outbox.schedules.trigger(name)",
        "disable": "outbox.schedules.pause(name)",
        "enable": "outbox.schedules.resume(name)",
    },
    "a task execution": {
        "state ready finished successful failed is_finished is_failed is_queued": "status, to compare with TaskStatus.COMPLETED",
        "traceback exc_info": "outbox.store.attempts(id)",
        "get wait": "outbox.result(id, timeout=…)",
        "cancel revoke": "outbox.store.cancel(id)",
        "retry requeue": "outbox.store.redrive(id)",
        "retries": "attempt",
        "func_name name": "task_name",
    },
    "a chain handle": {
        "get wait join get_result": _RESULT,
        "task_id": "handle.task_ids[-1]",
        "status state ready": "outbox.store.batches.get(handle.id).status",
        "cancel revoke": "outbox.store.batches.cancel(handle.id)",
    },
    "the batch": {
        "add append add_task add_tasks enqueue delay apply_async send extend": _IN_A_BATCH,
        "get wait join join_native": "batch.result(timeout=…) after the `with` block",
        "status state ready is_ready successful failed counts size pending completed completed_count waiting cancelled": (
            "outbox.store.batches.get(batch.id), which has the status and the counts"
        ),
        "results children": "the task that follows, passed as then=, which reads the results of its batch",
        "cancel revoke": "outbox.store.batches.cancel(batch.id)",
        "using": _IN_A_BATCH,
    },
    "the store": {
        "failed dead": _FAILURES,
        "list": "outbox.store.tasks()",
        "retry requeue": "outbox.store.redrive(id)",
        "revoke abort": "outbox.store.cancel(id)",
        "purge empty": "outbox.store.cancel_all(queue=…)",
        "fetch fetch_job status result": "outbox.store.get(id)",
        "inspect": "outbox.store.workers.list()",
        "emit_event publish": "outbox.emit(…)",
    },
    "a context": {
        "id request": "ctx.task_id, ctx.attempt or ctx.headers",
        "retry": "raise Retry(30)",
        "retries": "ctx.attempt, which counts from 1",
        "update_state set_progress meta": "ctx.progress(0.5)",
        "args kwargs": "the function's own parameters",
        "is_aborted should_abort": "ctx.should_stop",
        "replace enqueue": "task.using(ctx).enqueue(…)",
        "logger": "logging.getLogger(__name__), whose lines get the task's fields by TaskContextFilter",
    },
}
"""Replacements for attributes that other libraries' objects have, by our object. A key may list several names."""
CURES: Mapping[str, Mapping[str, str]] = {
    noun: {name: cure for names, cure in rows.items() for name in names.split()} for noun, rows in _ROWS.items()
}
"""The same table with a key for each name."""
