SELECT missing.id
FROM (
    SELECT expected.name AS id
    FROM (
        SELECT 'dead_letters' AS "table", 'ix_dead_letters_failed_at' AS name, false AS is_unique
        UNION ALL
        SELECT 'execution_events' AS "table", 'ix_execution_events_other' AS name, false AS is_unique
        UNION ALL
        SELECT 'execution_events' AS "table", 'uq_execution_events_claim' AS name, true AS is_unique
        UNION ALL
        SELECT 'execution_events' AS "table", 'uq_execution_events_end' AS name, true AS is_unique
        UNION ALL
        SELECT
            'idempotency_keys' AS "table",
            'ix_idempotency_keys_task_execution_id' AS name,
            false AS is_unique
        UNION ALL
        SELECT 'inbox_messages' AS "table", 'ix_inbox_messages_expires_at' AS name, false AS is_unique
        UNION ALL
        SELECT 'key_rates' AS "table", 'ix_key_rates_full_at' AS name, false AS is_unique
        UNION ALL
        SELECT 'operator_actions' AS "table", 'ix_operator_actions_target' AS name, false AS is_unique
        UNION ALL
        SELECT 'relay_messages' AS "table", 'ix_relay_messages_relay' AS name, false AS is_unique
        UNION ALL
        SELECT 'schedule_ticks' AS "table", 'ix_schedule_ticks_task_execution_id' AS name, false AS is_unique
        UNION ALL
        SELECT 'sleeping_workers' AS "table", 'ix_sleeping_workers_queue' AS name, false AS is_unique
        UNION ALL
        SELECT 'task_batch_changes' AS "table", 'ix_task_batch_changes_xact_id' AS name, false AS is_unique
        UNION ALL
        SELECT 'task_batches' AS "table", 'ix_task_batches_open' AS name, false AS is_unique
        UNION ALL
        SELECT 'task_executions' AS "table", 'ix_task_executions_pipeline' AS name, false AS is_unique
        UNION ALL
        SELECT 'task_metrics' AS "table", 'ix_task_metrics_at' AS name, false AS is_unique
        UNION ALL
        SELECT 'task_outbox' AS "table", 'ix_task_outbox_due' AS name, false AS is_unique
        UNION ALL
        SELECT 'task_outbox' AS "table", 'ix_task_outbox_key' AS name, false AS is_unique
        UNION ALL
        SELECT 'task_outbox' AS "table", 'ix_task_outbox_key_due' AS name, false AS is_unique
        UNION ALL
        SELECT 'workers' AS "table", 'ix_workers_present' AS name, false AS is_unique
    ) AS expected
    WHERE NOT (
        EXISTS (
            SELECT sqlite_master.name
            FROM sqlite_master
            WHERE
                sqlite_master.type = 'index'
                AND sqlite_master.name = expected.name
                AND sqlite_master.tbl_name = expected."table"
        )
    )
    UNION ALL
    SELECT 'task_executions_batch'
    WHERE NOT (
        EXISTS (
            SELECT sqlite_master.name
            FROM sqlite_master
            WHERE
                sqlite_master.type = 'trigger'
                AND sqlite_master.name = 'task_executions_batch'
                AND sqlite_master.tbl_name = 'task_executions'
        )
    )
    UNION ALL
    SELECT 'task_batch_changes_count'
    WHERE NOT (
        EXISTS (
            SELECT sqlite_master.name
            FROM sqlite_master
            WHERE
                sqlite_master.type = 'trigger'
                AND sqlite_master.name = 'task_batch_changes_count'
                AND sqlite_master.tbl_name = 'task_batch_changes'
        )
    )
    UNION ALL
    SELECT 'task_batches_advance'
    WHERE NOT (
        EXISTS (
            SELECT sqlite_master.name
            FROM sqlite_master
            WHERE
                sqlite_master.type = 'trigger'
                AND sqlite_master.name = 'task_batches_advance'
                AND sqlite_master.tbl_name = 'task_batches'
        )
    )
) AS missing
