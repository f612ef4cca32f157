WITH RECURSIVE queues(queue) AS
(SELECT min(task_outbox.queue) AS queue
FROM task_outbox
WHERE task_outbox.partition_key IS NULL
UNION ALL SELECT (SELECT min(entry.queue) AS min_1
FROM task_outbox AS entry
WHERE entry.queue > queues.queue AND entry.partition_key IS NULL) AS anon_1
FROM queues
WHERE queues.queue IS NOT NULL),
pairs(queue, priority) AS
(SELECT queues.queue AS queue, (SELECT entry.priority
FROM task_outbox AS entry
WHERE entry.queue = queues.queue AND entry.partition_key IS NULL
ORDER BY entry.priority DESC
  LIMIT :param_3 OFFSET :param_4) AS priority
FROM queues
WHERE queues.queue IS NOT NULL
UNION ALL SELECT pairs.queue AS queue, (SELECT entry.priority
FROM task_outbox AS entry
WHERE entry.queue = pairs.queue AND entry.partition_key IS NULL AND entry.priority < pairs.priority
ORDER BY entry.priority DESC
  LIMIT :param_5 OFFSET :param_6) AS anon_2
FROM pairs
WHERE pairs.priority IS NOT NULL)
  SELECT min((SELECT entry_later.available_at
FROM task_outbox AS entry_later
WHERE entry_later.partition_key IS NULL AND entry_later.queue = pairs.queue AND entry_later.priority = pairs.priority
    AND entry_later.available_at > :now
ORDER BY entry_later.available_at, entry_later.id
  LIMIT :param_1 OFFSET :param_2)) AS available_at
FROM pairs
