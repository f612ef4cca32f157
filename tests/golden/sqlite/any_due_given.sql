WITH RECURSIVE queues AS MATERIALIZED
(SELECT queues_rows."key" AS ordinal, json_extract(queues_rows.value, '$[0]') AS queue
FROM json_each(:queues) AS queues_rows),
pairs(queue, priority) AS
(SELECT queues.queue AS queue, (SELECT entry.priority
FROM task_outbox AS entry
WHERE entry.queue = queues.queue AND entry.partition_key IS NULL
ORDER BY entry.priority DESC
  LIMIT :param_1 OFFSET :param_2) AS priority
FROM queues
WHERE queues.queue IS NOT NULL
UNION ALL SELECT pairs.queue AS queue, (SELECT entry.priority
FROM task_outbox AS entry
WHERE entry.queue = pairs.queue AND entry.partition_key IS NULL AND entry.priority < pairs.priority
ORDER BY entry.priority DESC
  LIMIT :param_3 OFFSET :param_4) AS anon_1
FROM pairs
WHERE pairs.priority IS NOT NULL)
  SELECT pairs.queue
FROM pairs
WHERE EXISTS (SELECT entry_due.id
FROM task_outbox AS entry_due
WHERE entry_due.partition_key IS NULL AND entry_due.queue = pairs.queue AND entry_due.priority = pairs.priority AND
    entry_due.available_at <= :now
ORDER BY entry_due.available_at, entry_due.id)
  LIMIT :param_5 OFFSET :param_6
