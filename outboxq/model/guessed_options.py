"""Options that other libraries have, each with the way to write it here."""

from __future__ import annotations

from collections.abc import Mapping

_POLICY = "retry=RetryPolicy(max_attempts=…, wait=…)"
A_HOOK = "a Hook: Outbox(…, hooks=[…])"
_PERIODIC = '@outbox.periodic("30 2 * * *") above @outbox.task'
A_CHAIN = "outbox.chain(a.call(1), b.call())"
_KEPT = "Outbox(retention=…), which deletes ended tasks with their results"
_JSON = "nothing: arguments and results are stored as JSON"
_CONTEXT_PARAMETER = "a first parameter annotated TaskContext"


def _of_each_call(names: str) -> Mapping[str, str]:
    return {name: f"{name}= in using(), for each call" for name in names.split()}


OF_A_TASK: Mapping[str, str] = {
    "acks_late": "nothing: a task does not end until its outcome is committed",
    "actor_name": "name=",
    "options": "each option by name",
    "base": f"nothing: a task is a plain function. For code around each task, write {A_HOOK}",
    "broker": "nothing: the database has the tasks",
    "job_timeout": "timeout=",
    "queue_name": "queue=",
    "reject_on_worker_lost": "nothing: another worker runs the tasks of a worker that died",
    "serializer": _JSON,
    "soft_time_limit": 'timeout= with timeout_action="raise"',
    "throws": "retry=RetryPolicy(retry=tenacity.retry_if_not_exception_type(…))",
    "time_limit": 'timeout= with timeout_action="kill"',
    "track_started": "nothing: the start of each attempt is recorded",
    **dict.fromkeys(
        (
            *(
                "autoretry_for",
                "backoff",
                "default_retry_delay",
                "dont_autoretry_for",
                "max_attempts",
                "max_backoff",
                "max_retries",
            ),
            *(
                "min_backoff",
                "retries",
                "retry_backoff",
                "retry_backoff_max",
                "retry_delay",
                "retry_jitter",
                "retry_kwargs",
            ),
            "retry_when",
        ),
        _POLICY,
    ),
    **dict.fromkeys(("bind", "context", "pass_context"), _CONTEXT_PARAMETER),
    **dict.fromkeys(("cron", "crontab", "every", "interval", "run_every", "schedule"), _PERIODIC),
    **dict.fromkeys(
        ("concurrency", "max_concurrency", "rate_limit"), "outbox.store.queues.limit(queue, …), or outboxq queue limit"
    ),
    **dict.fromkeys(("failure_ttl", "result_expires", "result_ttl"), _KEPT),
    **dict.fromkeys(("ignore_result", "store_results"), "nothing: a function that returns nothing stores no result"),
    **dict.fromkeys(("on_failure", "on_retry", "on_success"), A_HOOK),
    "depends_on": A_CHAIN,
    **_of_each_call(
        "concurrency_key delay expires headers idempotency_key partition_key run_after unique_for unique_until_finished"
    ),
    "countdown": "delay= in using(), for each call",
    "eta": "run_after= in using(), for each call",
    "lock": "partition_key= in using(), for each call",
    "queueing_lock": "idempotency_key= and unique_until_finished= in using(), for each call",
    "unique": "idempotency_key= in using(), for each call",
    **dict.fromkeys(("max_age", "ttl"), "expires= in using(), for each call"),
}
"""Replacements for options that other libraries have for a declared task."""
OF_ONE_CALL: Mapping[str, str] = {
    "in_": "delay=",
    "using": "it as the first argument: using(session)",
    "args": "the arguments themselves: enqueue(1, 2)",
    "at_front": "priority=",
    "exchange": "queue=",
    "key": "partition_key= for the order of tasks, or idempotency_key= for a single task",
    "kwargs": "the arguments themselves: enqueue(order_id=1)",
    "link": "outbox.chain(…), or outbox.batch(then=…)",
    "max_retries": "max_attempts=",
    "queueing_lock": "idempotency_key= with unique_until_finished=True",
    "retries": "max_attempts=",
    "routing_key": "queue=",
    "serializer": _JSON,
    **dict.fromkeys(("at", "eta", "run_at", "schedule_at", "scheduled_at"), "run_after="),
    **dict.fromkeys(("connection", "db", "session", "transaction"), "it as the first argument: using(session)"),
    **dict.fromkeys(("correlation_id", "description", "meta", "metadata", "tags"), "headers="),
    **dict.fromkeys(("countdown", "schedule_in"), "delay="),
    **dict.fromkeys(
        (
            "dedupe_key",
            "deduplication_id",
            "job_id",
            "message_id",
            "singleton",
            "task_id",
            "unique",
            "unique_key",
            "workflow_id",
        ),
        "idempotency_key=",
    ),
    **dict.fromkeys(("depends_on", "pipe_target"), A_CHAIN),
    **dict.fromkeys(("execute_after", "schedule"), "delay= or run_after="),
    **dict.fromkeys(("expires_in", "max_age", "ttl"), "expires="),
    **dict.fromkeys(("failure_ttl", "result_ttl"), _KEPT),
    **dict.fromkeys(("group_id", "lock"), "partition_key="),
    "ignore_result": "nothing: a function that returns nothing stores no result",
    **dict.fromkeys(("job_timeout", "soft_time_limit", "time_limit", "timeout"), "timeout= of @outbox.task"),
    **dict.fromkeys(("link_error", "on_failure", "on_success"), A_HOOK),
    **dict.fromkeys(("retry", "retry_delay", "retry_policy"), "retry= of @outbox.task"),
}
"""Replacements for options that other libraries have for one call of a task."""
_OF_EACH_TASK = "retry= of each @outbox.task that subscribes"
OF_AN_EMIT: Mapping[str, str] = {
    **{name: OF_ONE_CALL[name] for name in ("countdown", "eta", "execute_after", "lock", "schedule_at", "schedule_in")},
    **dict.fromkeys(("body", "data", "message"), "the payload as the second argument: outbox.emit(topic, payload, …)"),
    "dedupe_key": "idempotency_key=",
    "key": OF_ONE_CALL["key"],
    **dict.fromkeys(("connection", "db", "session"), "using="),
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
IN_A_BATCH = "task.using(batch).enqueue(…) in the `with` block"
OF_A_BATCH: Mapping[str, str] = {
    **dict.fromkeys(
        ("body", "callback", "completion_callbacks", "on_complete", "on_finish", "on_success", "success"), "then="
    ),
    **dict.fromkeys(("connection", "db", "session"), "using="),
    "delay": "delay= in using(), for each call",
    "description": "name=",
    **dict.fromkeys(("header", "jobs", "messages", "tasks"), IN_A_BATCH),
}
"""Replacements for options that other libraries have for a batch, a group or a chord."""
OF_A_CHAIN: Mapping[str, str] = {
    **dict.fromkeys(("connection", "db", "session", "using"), "outbox.chain(…).using(session).enqueue()"),
    **dict.fromkeys(("delay", "link", "then"), "each option in its call: a.using(delay=5).call(1), b.call()"),
    "link_error": A_HOOK,
    "description": "name=",
}
"""Replacements for options that other libraries have for a chain or a pipeline."""
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
    "burst": "outbox.worker(…).run(burst=True)",
    "delete_jobs": _KEPT,
    "fetch_job_polling_interval": "poll=",
    "install_signal_handlers": "start() and stop(), which handle no signals, instead of run()",
    "listen_notify": "notifications=",
    "name": "label=",
    "num_workers": "concurrency=",
    "queue": 'queues=["mail"]',
    "wait": "outbox.worker(…).run(burst=True), which does not wait for more tasks",
    **dict.fromkeys(
        ("beat", "periodic", "scheduler", "with_scheduler"), "nothing: every worker enqueues the tasks of schedules"
    ),
    **dict.fromkeys(("consumer_timeout", "shutdown_graceful_timeout", "timeout"), "drain_timeout="),
}
"""Replacements for options that other libraries have for a worker."""
OF_A_RUN: Mapping[str, str] = {
    **dict.fromkeys(("drain", "once", "run_once", "until_empty"), "burst=True"),
    "wait": "burst=True, which does not wait for more tasks",
    "with_scheduler": "nothing: every worker enqueues the tasks of schedules",
    **dict.fromkeys(("concurrency", "max_jobs", "queues"), "it as an option of outbox.worker(…)"),
}
"""Replacements for options that other libraries have for the run of a worker."""
_EXPONENTIAL = "wait=tenacity.wait_random_exponential(…)"
OF_A_POLICY: Mapping[str, str] = {
    "linear_wait": "wait=tenacity.wait_incrementing(…)",
    "min_backoff": "wait=tenacity.wait_random_exponential(min=…)",
    "retry_when": "retry=tenacity.retry_if_exception(…)",
    "throws": "retry=tenacity.retry_if_not_exception_type(…)",
    "timeout": "stop=tenacity.stop_after_delay(…)",
    **dict.fromkeys(
        ("backoff", "backoff_factor", "exponential", "exponential_wait", "jitter", "retry_backoff"), _EXPONENTIAL
    ),
    **dict.fromkeys(("countdown", "default_retry_delay", "delay", "interval", "retry_delay"), "wait="),
    **dict.fromkeys(("max", "max_retries", "retries"), "max_attempts=, which counts the first attempt too"),
    **dict.fromkeys(("max_backoff", "max_delay", "retry_backoff_max"), "wait=tenacity.wait_random_exponential(max=…)"),
    **dict.fromkeys(
        ("autoretry_for", "exceptions", "retry_exceptions", "retry_for", "retry_on"),
        "retry=tenacity.retry_if_exception_type(…)",
    ),
}
"""Replacements for options that other libraries have for retries."""
_SPANS = ("weeks", "days", "hours", "minutes", "seconds")
OF_A_RETRY: Mapping[str, str] = {
    "eta": "at=",
    "exc": "raise Retry(30) from error",
    **dict.fromkeys(("max", "max_retries"), "retry=RetryPolicy(max_attempts=…) of @outbox.task"),
    **dict.fromkeys(("after", "countdown", "interval", "seconds", "wait"), "Retry(30), in seconds"),
    **{span: f"Retry(timedelta({span}=…))" for span in _SPANS if span != "seconds"},
}
"""Replacements for arguments with which other libraries ask for another attempt."""
OF_A_SNOOZE: Mapping[str, str] = {
    **dict.fromkeys(("after", "countdown", "seconds", "wait"), "Snooze(30), in seconds"),
    **dict.fromkeys(("at", "eta", "until"), "ctx.retry_at(moment) or raise Snooze(moment - now)"),
    **{span: f"Snooze(timedelta({span}=…))" for span in _SPANS if span != "seconds"},
}
"""Replacements for arguments with which other libraries put a task off."""
OF_AN_ADVANCE: Mapping[str, str] = {
    **{span: f"advance(timedelta({span}=…))" for span in _SPANS},
    **dict.fromkeys(("delta", "time"), "advance(timedelta(days=7)), or a number of seconds"),
    **dict.fromkeys(("to", "until"), "drain(until=…)"),
    "queue": 'queues=["mail"]',
}
"""Replacements for arguments with which other libraries move a test's clock."""
OF_A_DRAIN: Mapping[str, str] = {
    "queue": 'queues=["mail"]',
    **dict.fromkeys(("max", "max_jobs", "max_tasks"), "limit="),
    **dict.fromkeys(("delay", "with_scheduled"), "until=timedelta(…)"),
    **dict.fromkeys(("fail_fast", "with_safety"), "raises="),
}
"""Replacements for arguments with which other libraries run the tasks of a test."""
OF_A_HARNESS: Mapping[str, str] = {
    **dict.fromkeys(("connection", "db", "session", "transaction"), "using="),
    "app": "flask= for a Flask application, or the Outbox as the first argument",
    "inline": "with harness.inline()",
}
"""Replacements for options that other libraries have for a test."""
_DATABASE = 'the database as the first argument: Outbox("postgresql+psycopg://…")'
OF_AN_OUTBOX: Mapping[str, str] = {
    **dict.fromkeys(
        ("backend", "broker", "broker_url", "result_backend"),
        "nothing: the database has both the tasks and their results",
    ),
    **dict.fromkeys(("connection", "connector", "database_url", "db", "dsn", "engine", "url"), _DATABASE),
    **dict.fromkeys(("middleware", "middlewares"), "hooks="),
    **dict.fromkeys(("queue", "queues"), "queue= of @outbox.task"),
    **dict.fromkeys(("import_paths", "imports", "include"), "the imports in the module that `outboxq worker` names"),
    **dict.fromkeys(("result_expires", "result_ttl"), "retention="),
    **dict.fromkeys(("immediate", "task_always_eager"), "harness.inline() in a test"),
    "async_": "nothing: outboxq is synchronous",
    "namespace": "schema=",
    "serializer": _JSON,
    "timezone": "tz= of @outbox.periodic",
}
"""Replacements for options that other libraries have for an application."""
OF_A_RELAY: Mapping[str, str] = {
    **dict.fromkeys(("broker", "destination", "endpoint", "transport"), "to="),
    **dict.fromkeys(
        ("event", "events", "topic", "topics"), 'the topics as the first argument: outbox.relay("order.*", …)'
    ),
    "url": "to=Webhook(url, …)",
}
"""Replacements for options that other libraries have for a relay."""
OF_A_LIMIT: Mapping[str, str] = {
    "per_key": "concurrency_per_key=, or rate_per_key=",
    "rate_limit": "rate=(100, timedelta(minutes=1))",
}
"""Replacements for options of a queue's limits, under the names of the command line and of other libraries."""
OF_REDIS: Mapping[str, str] = {
    **dict.fromkeys(
        ("client", "connection", "db", "host", "password", "port", "username"), 'url="redis://:password@host:6379/0"'
    ),
    **dict.fromkeys(("max_len", "maxlen"), "max_length="),
    **dict.fromkeys(("consumer_group", "group_name", "groupname"), "group="),
    **dict.fromkeys(("channel", "key", "queue", "stream_name", "topic"), "stream="),
    **dict.fromkeys(("claim_interval", "idle", "min_idle_time"), "claim_after="),
}
"""Replacements for options that clients of Redis have."""
OF_RABBITMQ: Mapping[str, str] = {
    **dict.fromkeys(
        ("host", "parameters", "password", "port", "username", "virtual_host"), 'url="amqp://user:password@host:5672/"'
    ),
    "queue_name": "queue=",
    "prefetch_count": "prefetch=",
    **dict.fromkeys(("topic", "key"), "routing_key="),
}
"""Replacements for options that clients of RabbitMQ have."""
OF_KAFKA: Mapping[str, str] = {
    **dict.fromkeys(("bootstrap_servers", "brokers", "host", "hosts", "url"), 'servers="host:9092"'),
    **dict.fromkeys(("config", "conf"), "options="),
    **dict.fromkeys(("consumer_group", "group_id"), "group="),
    "topics": "topic=",
}
"""Replacements for options that clients of Kafka have."""
OF_NATS: Mapping[str, str] = {
    **dict.fromkeys(("host", "url"), 'servers="nats://user:password@host:4222"'),
    **dict.fromkeys(("consumer", "durable_name", "group"), "durable="),
    "topic": "subject=",
}
"""Replacements for options that clients of NATS have."""
_OF_BOTO3 = dict.fromkeys(("endpoint_url", "region", "region_name"), 'options={"region_name": …}, for boto3.client()')
OF_SQS: Mapping[str, str] = {**_OF_BOTO3, **dict.fromkeys(("queue", "queue_name", "url"), "queue_url=")}
OF_SNS: Mapping[str, str] = {**_OF_BOTO3, **dict.fromkeys(("arn", "topic"), "topic_arn=")}
"""Replacements for options that clients of AWS have."""
