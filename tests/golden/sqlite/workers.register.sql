INSERT INTO workers (
    id,
    label,
    queues,
    topics,
    concurrency,
    task_names,
    unknown_tasks,
    started_at,
    last_seen_at
)
SELECT
    :worker_id AS anon_1,
    :label AS anon_2,
    :queues_json AS anon_3,
    :topics_json AS anon_4,
    :concurrency AS anon_5,
    :task_names_json AS anon_6,
    :unknown_tasks_json AS anon_7,
    :now AS anon_8,
    :now AS anon_9
ON CONFLICT (id) DO UPDATE SET label = excluded.label, queues = excluded.queues, topics = excluded.topics, concurrency = excluded.concurrency, task_names = excluded.task_names, unknown_tasks = excluded.unknown_tasks, last_seen_at = excluded.last_seen_at, ended_at = NULL
