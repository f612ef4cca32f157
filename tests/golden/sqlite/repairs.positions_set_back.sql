-- added
INSERT INTO sqlite_sequence (name, seq)
SELECT 'task_outbox', 0
WHERE NOT (
    EXISTS (
        SELECT sqlite_sequence.name
        FROM sqlite_sequence
        WHERE sqlite_sequence.name = 'task_outbox'
    )
);

-- raised
UPDATE sqlite_sequence
SET seq=(SELECT max(task_executions.position) AS max_1 FROM task_executions)
WHERE
    sqlite_sequence.name = 'task_outbox'
    AND coalesce(
        (
            SELECT sqlite_sequence.seq
            FROM sqlite_sequence
            WHERE sqlite_sequence.name = 'task_outbox'
        ),
        0
    ) < (SELECT max(task_executions.position) AS max_2 FROM task_executions)
RETURNING 'task_outbox' AS id
