SELECT
    open_queues.queue AS queue,
    due.partition_key AS partition_key,
    min(due.available_at) AS first,
    count(*) AS entries
FROM (
    /* due.open_queues-1: count_1, strftime_1, strftime_2, substr_1, substr_2, param_1, substr_3, substr_4, param_2, strftime_3, printf_1, strftime_4, strftime_5, substr_5, substr_6, param_3, substr_7, substr_8, param_4, strftime_6, printf_2, param_5, param_6 */
) AS open_queues
JOIN task_outbox AS due ON due.id IN (
    SELECT due_entry.id
    FROM task_outbox AS due_entry
    WHERE
        due_entry.queue = open_queues.queue
        AND due_entry.partition_key IS NOT NULL
        AND due_entry.available_at <= :now
    ORDER BY due_entry.available_at, due_entry.id
    LIMIT 32
    OFFSET :param_7
)
GROUP BY open_queues.queue, due.partition_key
