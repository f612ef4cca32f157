SELECT pg_catalog.pg_class.relname AS name
FROM pg_catalog.pg_class
WHERE
    pg_catalog.pg_class.relnamespace = coalesce(
        (
            SELECT pg_catalog.pg_class.relnamespace
            FROM pg_catalog.pg_class
            WHERE pg_catalog.pg_class.oid = to_regclass(%(to_regclass_1)s::VARCHAR)
        ),
        (
            SELECT pg_catalog.pg_namespace.oid
            FROM pg_catalog.pg_namespace
            WHERE pg_catalog.pg_namespace.nspname = CAST(current_schema() AS TEXT)
        )
    )
    AND pg_catalog.pg_class.relname IN (
        'task_schedules',
        'schedule_ticks',
        'task_metrics',
        'queue_samples',
        'maintenance_jobs',
        'task_executions',
        'task_outbox',
        'task_leases',
        'execution_events',
        'dead_letters',
        'idempotency_keys',
        'partition_claims',
        'task_subscriptions',
        'queue_settings',
        'workers',
        'sleeping_workers',
        'outboxq_alembic_version'
    )
