WITH RECURSIVE queues AS
(SELECT batch.queue AS queue, batch.ordinal AS ordinal
FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)),
pairs(queue, priority) AS
(SELECT queues.queue AS queue, (SELECT entry.priority
FROM task_outbox AS entry
WHERE entry.queue = queues.queue AND entry.partition_key IS NULL
ORDER BY entry.priority DESC
  LIMIT %(param_1)s::INTEGER) AS priority
FROM queues
WHERE queues.queue IS NOT NULL
UNION ALL SELECT pairs.queue AS queue, (SELECT entry.priority
FROM task_outbox AS entry
WHERE entry.queue = pairs.queue AND entry.partition_key IS NULL AND entry.priority < pairs.priority
ORDER BY entry.priority DESC
  LIMIT %(param_2)s::INTEGER) AS anon_1
FROM pairs
WHERE pairs.priority IS NOT NULL),
clock AS MATERIALIZED
(SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now)
  SELECT pairs.queue
FROM pairs
WHERE EXISTS (SELECT entry_due.id
FROM task_outbox AS entry_due
WHERE entry_due.partition_key IS NULL AND entry_due.queue = pairs.queue AND entry_due.priority = pairs.priority AND
    entry_due.available_at <= (SELECT clock.now
FROM clock)
ORDER BY entry_due.available_at, entry_due.id)
  LIMIT %(param_3)s::INTEGER
