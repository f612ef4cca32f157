WITH raised AS MATERIALIZED (
    SELECT
        behind.id AS id,
        setval(
            to_regclass(%(to_regclass_1)s),
            (SELECT max(task_executions.position) AS max_1 FROM task_executions)
        ) AS number
    FROM (
        SELECT 'task_position' AS id
        WHERE CASE
            WHEN has_sequence_privilege(to_regclass(%(to_regclass_2)s), 'USAGE, SELECT') THEN coalesce(
                pg_sequence_last_value(to_regclass(%(to_regclass_2)s)),
                0
            ) < (SELECT max(task_executions.position) AS max_2 FROM task_executions)
            ELSE false
        END
    ) AS behind
)
SELECT raised.id, raised.number
FROM raised
