SELECT 'task_outbox' AS id
WHERE coalesce(
    (
        SELECT sqlite_sequence.seq
        FROM sqlite_sequence
        WHERE sqlite_sequence.name = 'task_outbox'
    ),
    0
) < (SELECT max(task_executions.position) AS max_1 FROM task_executions)
