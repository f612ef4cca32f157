SELECT
    workers.id,
    workers.label,
    workers.queues,
    workers.topics,
    workers.concurrency,
    workers.task_names,
    workers.unknown_tasks,
    workers.started_at,
    workers.last_seen_at,
    workers.ended_at,
    workers.host,
    workers.pid,
    workers.version,
    workers.release,
    workers.busy,
    workers.isolation,
    workers.receivers,
    workers.asked_to,
    workers.state,
    workers.stacks_asked_at,
    workers.stacks_at,
    workers.failure,
    workers.failing_since
FROM workers
WHERE workers.last_seen_at >= %(live_since)s::TIMESTAMP WITH TIME ZONE
ORDER BY workers.started_at, workers.id
