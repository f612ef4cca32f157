SELECT
    open_queues.queue AS queue,
    due.partition_key AS partition_key,
    min(due.available_at) AS first,
    count(*) AS entries
FROM (/* due.open_queues-2: count_1, param_1 */) AS open_queues
JOIN LATERAL (/* due.due-1 */) AS due ON true
GROUP BY open_queues.queue, due.partition_key
