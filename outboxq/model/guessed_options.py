"""Other libraries' options, each with its replacement in outboxq."""

from __future__ import annotations

from collections.abc import Mapping

_POLICY = "retry=RetryPolicy(max_attempts=…, wait=…)"
A_HOOK = "a Hook: Outbox(…, hooks=[…])"
_PERIODIC = '@outbox.periodic("30 2 * * *") above @outbox.task'
A_CHAIN = "outbox.chain(a.call(1), b.call())"
_KEPT = "Outbox(retention=…), which deletes ended tasks with their results"
_JSON = "it is not needed: arguments and results are stored as JSON"
_CONTEXT_PARAMETER = "a first parameter annotated TaskContext"


def instead_of(cure: str | None) -> str:
    """Return the end of a message about an unknown name: "; write …", or the reason why nothing needs to be written.
    Returns "" if there is no replacement.
    """
    if not cure:
        return ""
    return f"; {cure}" if cure.startswith(("it is not needed", "mount ", "include ")) else f"; write {cure}"


def _each(names: str, instead: str) -> Mapping[str, str]:
    """Return the same replacement for each of the names."""
    return dict.fromkeys(names.split(), instead)


def _of_each_call(names: str) -> Mapping[str, str]:
    return {name: f"{name}= in using(), for each call" for name in names.split()}


OF_A_TASK: Mapping[str, str] = {
    "acks_late": "it is not needed: a task does not end until its outcome is committed",
    "actor_name": "name=",
    "options": "each option by name",
    "base": f"it is not needed: a task is a plain function. For code around each task, write {A_HOOK}",
    "broker": "it is not needed: the tasks are in the database",
    "job_timeout": "timeout=",
    "queue_name": "queue=",
    "reject_on_worker_lost": "it is not needed: another worker runs the tasks of a worker that died",
    "serializer": _JSON,
    "soft_time_limit": 'timeout= with timeout_action="raise"',
    "throws": "retry=RetryPolicy(retry=tenacity.retry_if_not_exception_type(…))",
    "time_limit": 'timeout= with timeout_action="kill"',
    "track_started": "it is not needed: the start of each attempt is recorded",
    **_each(
        "autoretry_for backoff default_retry_delay dont_autoretry_for max_attempts max_backoff max_retries "
        "min_backoff retries retry_backoff retry_backoff_max retry_delay retry_jitter retry_kwargs retry_when",
        _POLICY,
    ),
    **_each("bind context pass_context", _CONTEXT_PARAMETER),
    **_each("cron crontab every interval run_every schedule", _PERIODIC),
    **_each("concurrency max_concurrency rate_limit", "outbox.store.queues.limit(queue, …), or outboxq queue limit"),
    **_each("failure_ttl result_expires result_ttl", _KEPT),
    **_each("ignore_result store_results", "it is not needed: a function that returns nothing stores no result"),
    **_each("on_failure on_retry on_success", A_HOOK),
    "depends_on": A_CHAIN,
    "countdown": "delay= in using(), for each call",
    "eta": "run_after= in using(), for each call",
    "lock": "partition_key= in using(), for each call",
    "queueing_lock": "idempotency_key= and unique_until_finished= in using(), for each call",
    "unique": "idempotency_key= in using(), for each call",
    **_each("max_age ttl", "expires= in using(), for each call"),
    **_of_each_call(
        "concurrency_key delay expires headers idempotency_key partition_key run_after unique_for unique_until_finished"
    ),
}
"""Replacements for other libraries' options for a declared task."""
OF_ONE_CALL: Mapping[str, str] = {
    **_each("in_ countdown schedule_in", "delay="),
    **_each("using connection db session transaction", "it as the first argument: using(session)"),
    "args": "the arguments themselves: enqueue(1, 2)",
    "at_front": "priority=",
    **_each("exchange routing_key", "queue="),
    "key": "partition_key= to keep tasks in order, or idempotency_key= to create only one task",
    "kwargs": "the arguments themselves: enqueue(order_id=1)",
    "link": "outbox.chain(…), or outbox.batch(then=…)",
    **_each("max_retries retries", "max_attempts="),
    "queueing_lock": "idempotency_key= with unique_until_finished=True",
    "serializer": _JSON,
    **_each("at eta run_at schedule_at scheduled_at", "run_after="),
    **_each("correlation_id description meta metadata tags", "headers="),
    **_each(
        "dedupe_key deduplication_id job_id message_id singleton task_id unique unique_key workflow_id",
        "idempotency_key=",
    ),
    **_each("depends_on pipe_target", A_CHAIN),
    **_each("execute_after schedule", "delay= or run_after="),
    **_each("expires_in max_age ttl", "expires="),
    **_each("failure_ttl result_ttl", _KEPT),
    **_each("group_id lock", "partition_key="),
    "ignore_result": "it is not needed: a function that returns nothing stores no result",
    **_each("job_timeout soft_time_limit time_limit timeout", "timeout= of @outbox.task"),
    **_each("link_error on_failure on_success", A_HOOK),
    **_each("retry retry_delay retry_policy", "retry= of @outbox.task"),
}
"""Replacements for other libraries' options for one call to a task."""
_OF_EACH_TASK = "retry= of each @outbox.task that subscribes"
OF_AN_EMIT: Mapping[str, str] = {
    **_each("body data message", "the payload as the second argument: outbox.emit(topic, payload, …)"),
    "dedupe_key": "idempotency_key=",
    "key": OF_ONE_CALL["key"],
    **_each("connection db session", "using="),
    **_each("max_attempts max_retries retry", _OF_EACH_TASK),
    "priority": "priority= of each @outbox.task that subscribes",
    "queue": "queue= of each @outbox.task that subscribes",
    **{name: OF_ONE_CALL[name] for name in ("countdown", "eta", "execute_after", "lock", "schedule_at", "schedule_in")},
}
"""Replacements for options that an emit does not accept, because they belong to the subscribing tasks or to other
libraries.
"""
OF_A_SCHEDULE: Mapping[str, str] = {
    "coalesce": 'catch_up="latest"',
    **_each("seconds minutes hours days weeks run_every", "every=timedelta(…)"),
    **_each(
        "minute hour day_of_week day_of_month month_of_year cron crontab",
        'the rule as the first argument: @outbox.periodic("30 2 * * *")',
    ),
    **_each("expires misfire_grace_time", "grace="),
    "interval": "every=",
    "kwargs": "args=",
    "max_instances": 'overlap="skip" or "queue"',
    "priority": "priority= of @outbox.task",
    "queue": "queue= of @outbox.task",
    "schedule": "the rule as the first argument, or every=",
    "timezone": "tz=",
}
"""Replacements for other libraries' options for a periodic task."""
IN_A_BATCH = "task.using(batch).enqueue(…) in the `with` block"
OF_A_BATCH: Mapping[str, str] = {
    **_each("body callback completion_callbacks on_complete on_finish on_success success", "then="),
    **_each("connection db session", "using="),
    "delay": "delay= in using(), for each call",
    "description": "name=",
    **_each("header jobs messages tasks", IN_A_BATCH),
}
"""Replacements for other libraries' batch, group and chord options."""
OF_A_CHAIN: Mapping[str, str] = {
    **_each("connection db session using", "outbox.chain(…).using(session).enqueue()"),
    **_each("delay link then", "each option in its call: a.using(delay=5).call(1), b.call()"),
    "link_error": A_HOOK,
    "description": "name=",
}
"""Replacements for other libraries' chain and pipeline options."""
OF_A_WORKER: Mapping[str, str] = {
    "max_jobs": "max_tasks=",
    **_each("max_tasks_per_child worker_max_tasks_per_child", "tasks_per_child="),
    **_each("pool worker_pool", 'isolation="thread" or "process"'),
    **_each("poll_interval fetch_job_polling_interval", "poll="),
    **_each("prefetch_multiplier prefetch_count worker_prefetch_multiplier", "prefetch="),
    "processes": 'outboxq worker --processes, or isolation="process"',
    **_each("threads workers worker_concurrency num_workers", "concurrency="),
    **_each("hostname name", "label="),
    "loglevel": "outboxq worker --log-level",
    "burst": "outbox.worker(…).run(burst=True)",
    "delete_jobs": _KEPT,
    "install_signal_handlers": "start() and stop(), which handle no signals, instead of run()",
    "listen_notify": "notifications=",
    "queue": 'queues=["mail"]',
    "wait": "outbox.worker(…).run(burst=True), which does not wait for more tasks",
    **_each("beat periodic scheduler with_scheduler", "it is not needed: every worker enqueues the tasks of schedules"),
    **_each("consumer_timeout shutdown_graceful_timeout timeout", "drain_timeout="),
}
"""Replacements for other libraries' worker options."""
OF_A_RUN: Mapping[str, str] = {
    **_each("drain once run_once until_empty", "burst=True"),
    "wait": "burst=True, which does not wait for more tasks",
    "with_scheduler": "it is not needed: every worker enqueues the tasks of schedules",
    **_each("concurrency max_jobs queues", "it as an option of outbox.worker(…)"),
}
"""Replacements for other libraries' options for running a worker."""
_EXPONENTIAL = "wait=tenacity.wait_random_exponential(…)"
OF_A_POLICY: Mapping[str, str] = {
    "linear_wait": "wait=tenacity.wait_incrementing(…)",
    "min_backoff": "wait=tenacity.wait_random_exponential(min=…)",
    "retry_when": "retry=tenacity.retry_if_exception(…)",
    "throws": "retry=tenacity.retry_if_not_exception_type(…)",
    "timeout": "stop=tenacity.stop_after_delay(…)",
    **_each("backoff backoff_factor exponential exponential_wait jitter retry_backoff", _EXPONENTIAL),
    **_each("countdown default_retry_delay delay interval retry_delay", "wait="),
    **_each("max max_retries retries", "max_attempts=, which counts the first attempt too"),
    **_each("max_backoff max_delay retry_backoff_max", "wait=tenacity.wait_random_exponential(max=…)"),
    **_each(
        "autoretry_for exceptions retry_exceptions retry_for retry_on",
        "retry=tenacity.retry_if_exception_type(…)",
    ),
}
"""Replacements for other libraries' retry options."""
_SPANS = ("weeks", "days", "hours", "minutes", "seconds")
OF_A_RETRY: Mapping[str, str] = {
    "eta": "at=",
    "exc": "raise Retry(30) from error",
    **_each("max max_retries", "retry=RetryPolicy(max_attempts=…) of @outbox.task"),
    **_each("after countdown interval seconds wait", "Retry(30), in seconds"),
    **{span: f"Retry(timedelta({span}=…))" for span in _SPANS if span != "seconds"},
}
"""Replacements for other libraries' arguments that request another attempt."""
OF_A_SNOOZE: Mapping[str, str] = {
    **_each("after countdown seconds wait", "Snooze(30), in seconds"),
    **_each("at eta until", "ctx.retry_at(moment) or raise Snooze(moment - now)"),
    **{span: f"Snooze(timedelta({span}=…))" for span in _SPANS if span != "seconds"},
}
"""Replacements for other libraries' arguments that postpone a task."""
OF_AN_ADVANCE: Mapping[str, str] = {
    **_each("delta time", "advance(timedelta(days=7)), or a number of seconds"),
    **_each("to until", "drain(until=…)"),
    "queue": 'queues=["mail"]',
    **{span: f"advance(timedelta({span}=…))" for span in _SPANS},
}
"""Replacements for other libraries' arguments that move a test's clock."""
OF_A_DRAIN: Mapping[str, str] = {
    "queue": 'queues=["mail"]',
    **_each("max max_jobs max_tasks", "limit="),
    **_each("delay with_scheduled", "until=timedelta(…)"),
    **_each("fail_fast with_safety", "raises="),
}
"""Replacements for other libraries' arguments that run a test's tasks."""
OF_A_HARNESS: Mapping[str, str] = {
    **_each("connection db session transaction", "using="),
    "app": "flask= for a Flask application, or the Outbox as the first argument",
    "inline": "with harness.inline()",
}
"""Replacements for other libraries' test options."""
_DATABASE = 'the database as the first argument: Outbox("postgresql+psycopg://…")'
OF_AN_OUTBOX: Mapping[str, str] = {
    **_each(
        "backend broker broker_url result_backend",
        "it is not needed: both the tasks and their results are in the database",
    ),
    **_each("connection connector database_url db dsn engine url", _DATABASE),
    **_each("middleware middlewares", "hooks="),
    **_each("queue queues", "queue= of @outbox.task"),
    **_each("import_paths imports include", "the imports in the module that `outboxq worker` names"),
    **_each("result_expires result_ttl", "retention="),
    **_each("immediate task_always_eager", "harness.inline() in a test"),
    "async_": "it is not needed: outboxq is synchronous",
    "namespace": "schema=",
    "serializer": _JSON,
    "timezone": "tz= of @outbox.periodic",
}
"""Replacements for other libraries' application options."""
OF_A_RELAY: Mapping[str, str] = {
    **_each("broker destination endpoint transport", "to="),
    **_each("event events topic topics", 'the topics as the first argument: outbox.relay("order.*", …)'),
    "url": "to=Webhook(url, …)",
}
"""Replacements for other libraries' relay options."""
OF_A_LIMIT: Mapping[str, str] = {
    "per_key": "concurrency_per_key=, or rate_per_key=",
    "rate_limit": "rate=(100, timedelta(minutes=1))",
}
"""Replacements for the names that the command line and other libraries use for the options that limit a queue."""
OF_REDIS: Mapping[str, str] = {
    **_each("client connection db host password port username", 'url="redis://:password@host:6379/0"'),
    **_each("max_len maxlen", "max_length="),
    **_each("consumer_group group_name groupname", "group="),
    **_each("channel key queue stream_name topic", "stream="),
    **_each("claim_interval idle min_idle_time", "claim_after="),
}
"""Replacements for the options of Redis clients."""
OF_RABBITMQ: Mapping[str, str] = {
    **_each("host parameters password port username virtual_host", 'url="amqp://user:password@host:5672/"'),
    "queue_name": "queue=",
    "prefetch_count": "prefetch=",
    **_each("topic key", "routing_key="),
}
"""Replacements for the options of RabbitMQ clients."""
OF_KAFKA: Mapping[str, str] = {
    **_each("bootstrap_servers brokers host hosts url", 'servers="host:9092"'),
    **_each("config conf", "options="),
    **_each("consumer_group group_id", "group="),
    "topics": "topic=",
}
"""Replacements for the options of Kafka clients."""
OF_NATS: Mapping[str, str] = {
    **_each("host url", 'servers="nats://user:password@host:4222"'),
    **_each("consumer durable_name group", "durable="),
    "topic": "subject=",
}
"""Replacements for the options of NATS clients."""
_OF_BOTO3 = _each("endpoint_url region region_name", 'options={"region_name": …}, for boto3.client()')
OF_SQS: Mapping[str, str] = {**_each("queue queue_name url", "queue_url="), **_OF_BOTO3}
OF_SNS: Mapping[str, str] = {**_each("arn topic", "topic_arn="), **_OF_BOTO3}
"""Replacements for the options of AWS clients."""
