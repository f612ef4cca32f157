SELECT 1 AS found
WHERE
    (
        EXISTS (
            SELECT task_outbox.queue
            FROM task_outbox
            WHERE task_outbox.queue = :queue
        )
    )
    OR (
        EXISTS (
            SELECT task_leases.queue
            FROM task_leases
            WHERE task_leases.queue = :queue
        )
    )
    OR (
        EXISTS (
            SELECT dead_letters.queue
            FROM dead_letters
            WHERE dead_letters.queue = :queue
        )
    )
