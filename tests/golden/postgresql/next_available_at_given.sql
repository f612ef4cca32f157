WITH RECURSIVE clock AS MATERIALIZED
(SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now),
queues AS
(SELECT batch.queue AS queue, batch.ordinal AS ordinal
FROM unnest(%(queues_queue)s::TEXT[]) WITH ORDINALITY AS batch(queue, ordinal)),
pairs(queue, priority) AS
(SELECT queues.queue AS queue, (SELECT entry.priority
FROM task_outbox AS entry
WHERE entry.queue = queues.queue AND entry.partition_key IS NULL
ORDER BY entry.priority DESC
  LIMIT %(param_2)s::INTEGER) AS priority
FROM queues
WHERE queues.queue IS NOT NULL
UNION ALL SELECT pairs.queue AS queue, (SELECT entry.priority
FROM task_outbox AS entry
WHERE entry.queue = pairs.queue AND entry.partition_key IS NULL AND entry.priority < pairs.priority
ORDER BY entry.priority DESC
  LIMIT %(param_3)s::INTEGER) AS anon_1
FROM pairs
WHERE pairs.priority IS NOT NULL)
  SELECT min((SELECT entry_later.available_at
FROM task_outbox AS entry_later
WHERE entry_later.partition_key IS NULL AND entry_later.queue = pairs.queue AND entry_later.priority = pairs.priority
    AND entry_later.available_at > (SELECT clock.now
FROM clock)
ORDER BY entry_later.available_at, entry_later.id
  LIMIT %(param_1)s::INTEGER)) AS available_at
FROM pairs
