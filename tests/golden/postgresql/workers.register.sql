WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
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
    %(worker_id)s::UUID AS anon_1,
    %(label)s::VARCHAR AS anon_2,
    %(queues_json)s::VARCHAR AS anon_3,
    %(topics_json)s::VARCHAR AS anon_4,
    %(concurrency)s::INTEGER AS anon_5,
    %(task_names_json)s::VARCHAR AS anon_6,
    %(unknown_tasks_json)s::VARCHAR AS anon_7,
    (SELECT clock.now FROM clock) AS anon_8,
    (SELECT clock.now FROM clock) AS anon_9
ON CONFLICT (id) DO UPDATE SET label = excluded.label, queues = excluded.queues, topics = excluded.topics, concurrency = excluded.concurrency, task_names = excluded.task_names, unknown_tasks = excluded.unknown_tasks, last_seen_at = excluded.last_seen_at, ended_at = NULL
