SELECT missing.id
FROM (
    SELECT expected.name AS id
    FROM (
        SELECT to_regclass(%(to_regclass_1)s) AS "table", 'pk_dead_letters' AS name, true AS is_unique
        UNION ALL
        SELECT
            to_regclass(%(to_regclass_2)s) AS "table",
            'ix_dead_letters_failed_at' AS name,
            false AS is_unique
        UNION ALL
        SELECT
            to_regclass(%(to_regclass_3)s) AS "table",
            'ix_execution_events_other' AS name,
            false AS is_unique
        UNION ALL
        SELECT
            to_regclass(%(to_regclass_4)s) AS "table",
            'uq_execution_events_claim' AS name,
            true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_5)s) AS "table", 'uq_execution_events_end' AS name, true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_6)s) AS "table", 'pk_idempotency_keys' AS name, true AS is_unique
        UNION ALL
        SELECT
            to_regclass(%(to_regclass_7)s) AS "table",
            'ix_idempotency_keys_task_execution_id' AS name,
            false AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_8)s) AS "table", 'pk_inbox_messages' AS name, true AS is_unique
        UNION ALL
        SELECT
            to_regclass(%(to_regclass_9)s) AS "table",
            'ix_inbox_messages_expires_at' AS name,
            false AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_10)s) AS "table", 'pk_key_rates' AS name, true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_11)s) AS "table", 'ix_key_rates_full_at' AS name, false AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_12)s) AS "table", 'pk_maintenance_jobs' AS name, true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_13)s) AS "table", 'pk_operator_actions' AS name, true AS is_unique
        UNION ALL
        SELECT
            to_regclass(%(to_regclass_14)s) AS "table",
            'ix_operator_actions_target' AS name,
            false AS is_unique
        UNION ALL
        SELECT
            to_regclass(%(to_regclass_15)s) AS "table",
            'uq_partition_claims_task_execution_id' AS name,
            true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_16)s) AS "table", 'pk_partition_claims' AS name, true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_17)s) AS "table", 'pk_queue_samples' AS name, true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_18)s) AS "table", 'pk_queue_settings' AS name, true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_19)s) AS "table", 'pk_relay_messages' AS name, true AS is_unique
        UNION ALL
        SELECT
            to_regclass(%(to_regclass_20)s) AS "table",
            'ix_relay_messages_relay' AS name,
            false AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_21)s) AS "table", 'pk_relay_shards' AS name, true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_22)s) AS "table", 'pk_relays' AS name, true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_23)s) AS "table", 'pk_schedule_ticks' AS name, true AS is_unique
        UNION ALL
        SELECT
            to_regclass(%(to_regclass_24)s) AS "table",
            'ix_schedule_ticks_task_execution_id' AS name,
            false AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_25)s) AS "table", 'pk_sleeping_workers' AS name, true AS is_unique
        UNION ALL
        SELECT
            to_regclass(%(to_regclass_26)s) AS "table",
            'ix_sleeping_workers_queue' AS name,
            false AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_27)s) AS "table", 'pk_task_batch_changes' AS name, true AS is_unique
        UNION ALL
        SELECT
            to_regclass(%(to_regclass_28)s) AS "table",
            'ix_task_batch_changes_xact_id' AS name,
            false AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_29)s) AS "table", 'pk_task_batches' AS name, true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_30)s) AS "table", 'ix_task_batches_open' AS name, false AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_31)s) AS "table", 'pk_task_executions' AS name, true AS is_unique
        UNION ALL
        SELECT
            to_regclass(%(to_regclass_32)s) AS "table",
            'ix_task_executions_pipeline' AS name,
            false AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_33)s) AS "table", 'pk_task_leases' AS name, true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_34)s) AS "table", 'pk_task_metrics' AS name, true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_35)s) AS "table", 'ix_task_metrics_at' AS name, false AS is_unique
        UNION ALL
        SELECT
            to_regclass(%(to_regclass_36)s) AS "table",
            'uq_task_outbox_task_execution_id' AS name,
            true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_37)s) AS "table", 'pk_task_outbox' AS name, true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_38)s) AS "table", 'ix_task_outbox_due' AS name, false AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_39)s) AS "table", 'ix_task_outbox_key' AS name, false AS is_unique
        UNION ALL
        SELECT
            to_regclass(%(to_regclass_40)s) AS "table",
            'ix_task_outbox_key_due' AS name,
            false AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_41)s) AS "table", 'pk_task_schedules' AS name, true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_42)s) AS "table", 'pk_task_steps' AS name, true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_43)s) AS "table", 'pk_task_subscriptions' AS name, true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_44)s) AS "table", 'pk_workers' AS name, true AS is_unique
        UNION ALL
        SELECT to_regclass(%(to_regclass_45)s) AS "table", 'ix_workers_present' AS name, false AS is_unique
    ) AS expected
    WHERE
        expected."table" IS NOT NULL
        AND NOT (
            EXISTS (
                SELECT pg_catalog.pg_index.indexrelid
                FROM pg_catalog.pg_index
                JOIN pg_catalog.pg_class ON pg_catalog.pg_class.oid = pg_catalog.pg_index.indexrelid
                WHERE
                    pg_catalog.pg_index.indrelid = expected."table"
                    AND pg_catalog.pg_class.relname = expected.name
                    AND pg_catalog.pg_index.indisvalid
                    AND (pg_catalog.pg_index.indisunique OR NOT expected.is_unique)
            )
        )
    UNION ALL
    SELECT 'task_outbox_notify'
    WHERE NOT (
        EXISTS (
            SELECT pg_catalog.pg_trigger.tgname
            FROM pg_catalog.pg_trigger
            WHERE
                pg_catalog.pg_trigger.tgrelid = to_regclass(%(to_regclass_46)s)
                AND pg_catalog.pg_trigger.tgname = 'task_outbox_notify'
                AND pg_catalog.pg_trigger.tgenabled IN ('O', 'A')
        )
    )
    UNION ALL
    SELECT 'task_executions_batch'
    WHERE
        to_regclass(%(to_regclass_47)s) IS NOT NULL
        AND (
            NOT (
                EXISTS (
                    SELECT pg_catalog.pg_trigger.tgname
                    FROM pg_catalog.pg_trigger
                    WHERE
                        pg_catalog.pg_trigger.tgrelid = to_regclass(%(to_regclass_48)s)
                        AND pg_catalog.pg_trigger.tgname = 'task_executions_batch'
                        AND pg_catalog.pg_trigger.tgenabled IN ('O', 'A')
                )
            )
                OR (
                    EXISTS (
                        SELECT partition.inhrelid
                        FROM pg_catalog.pg_inherits AS partition
                        WHERE
                            partition.inhparent = to_regclass(%(to_regclass_49)s)
                            AND NOT (
                                EXISTS (
                                    SELECT pg_catalog.pg_trigger.tgname
                                    FROM pg_catalog.pg_trigger
                                    WHERE
                                        pg_catalog.pg_trigger.tgrelid = partition.inhrelid
                                        AND pg_catalog.pg_trigger.tgname = 'task_executions_batch'
                                        AND pg_catalog.pg_trigger.tgenabled IN ('O', 'A')
                                )
                            )
                    )
                )
        )
    UNION ALL
    SELECT 'task_batch_changes_count'
    WHERE
        to_regclass(%(to_regclass_50)s) IS NOT NULL
        AND (
            NOT (
                EXISTS (
                    SELECT pg_catalog.pg_trigger.tgname
                    FROM pg_catalog.pg_trigger
                    WHERE
                        pg_catalog.pg_trigger.tgrelid = to_regclass(%(to_regclass_51)s)
                        AND pg_catalog.pg_trigger.tgname = 'task_batch_changes_count'
                        AND pg_catalog.pg_trigger.tgenabled IN ('O', 'A')
                )
            )
                OR (
                    EXISTS (
                        SELECT partition.inhrelid
                        FROM pg_catalog.pg_inherits AS partition
                        WHERE
                            partition.inhparent = to_regclass(%(to_regclass_52)s)
                            AND NOT (
                                EXISTS (
                                    SELECT pg_catalog.pg_trigger.tgname
                                    FROM pg_catalog.pg_trigger
                                    WHERE
                                        pg_catalog.pg_trigger.tgrelid = partition.inhrelid
                                        AND pg_catalog.pg_trigger.tgname = 'task_batch_changes_count'
                                        AND pg_catalog.pg_trigger.tgenabled IN ('O', 'A')
                                )
                            )
                    )
                )
        )
    UNION ALL
    SELECT 'task_batches_advance'
    WHERE
        to_regclass(%(to_regclass_53)s) IS NOT NULL
        AND (
            NOT (
                EXISTS (
                    SELECT pg_catalog.pg_trigger.tgname
                    FROM pg_catalog.pg_trigger
                    WHERE
                        pg_catalog.pg_trigger.tgrelid = to_regclass(%(to_regclass_54)s)
                        AND pg_catalog.pg_trigger.tgname = 'task_batches_advance'
                        AND pg_catalog.pg_trigger.tgenabled IN ('O', 'A')
                )
            )
                OR (
                    EXISTS (
                        SELECT partition.inhrelid
                        FROM pg_catalog.pg_inherits AS partition
                        WHERE
                            partition.inhparent = to_regclass(%(to_regclass_55)s)
                            AND NOT (
                                EXISTS (
                                    SELECT pg_catalog.pg_trigger.tgname
                                    FROM pg_catalog.pg_trigger
                                    WHERE
                                        pg_catalog.pg_trigger.tgrelid = partition.inhrelid
                                        AND pg_catalog.pg_trigger.tgname = 'task_batches_advance'
                                        AND pg_catalog.pg_trigger.tgenabled IN ('O', 'A')
                                )
                            )
                    )
                )
        )
    UNION ALL
    SELECT 'relay_messages_notify'
    WHERE
        to_regclass(%(to_regclass_56)s) IS NOT NULL
        AND (
            NOT (
                EXISTS (
                    SELECT pg_catalog.pg_trigger.tgname
                    FROM pg_catalog.pg_trigger
                    WHERE
                        pg_catalog.pg_trigger.tgrelid = to_regclass(%(to_regclass_57)s)
                        AND pg_catalog.pg_trigger.tgname = 'relay_messages_notify'
                        AND pg_catalog.pg_trigger.tgenabled IN ('O', 'A')
                )
            )
                OR (
                    EXISTS (
                        SELECT partition.inhrelid
                        FROM pg_catalog.pg_inherits AS partition
                        WHERE
                            partition.inhparent = to_regclass(%(to_regclass_58)s)
                            AND NOT (
                                EXISTS (
                                    SELECT pg_catalog.pg_trigger.tgname
                                    FROM pg_catalog.pg_trigger
                                    WHERE
                                        pg_catalog.pg_trigger.tgrelid = partition.inhrelid
                                        AND pg_catalog.pg_trigger.tgname = 'relay_messages_notify'
                                        AND pg_catalog.pg_trigger.tgenabled IN ('O', 'A')
                                )
                            )
                    )
                )
        )
    UNION ALL
    SELECT concat('primary key of ', pg_catalog.pg_class.relname) AS id
    FROM pg_catalog.pg_class
    WHERE
        (
            pg_catalog.pg_class.oid = to_regclass(%(to_regclass_59)s)
                OR pg_catalog.pg_class.oid IN (
                    SELECT pg_catalog.pg_inherits.inhrelid
                    FROM pg_catalog.pg_inherits
                    WHERE pg_catalog.pg_inherits.inhparent = to_regclass(%(to_regclass_59)s)
                )
        )
        AND pg_catalog.pg_class.relkind = 'r'
        AND NOT (
            EXISTS (
                SELECT pg_catalog.pg_constraint.conname
                FROM pg_catalog.pg_constraint
                WHERE
                    pg_catalog.pg_constraint.conrelid = pg_catalog.pg_class.oid
                    AND pg_catalog.pg_constraint.contype = 'p'
            )
        )
) AS missing
