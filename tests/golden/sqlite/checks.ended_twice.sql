SELECT execution_events.task_execution_id AS id
FROM execution_events
WHERE execution_events.event_type != 'task_claimed' AND execution_events.lease_token IS NOT NULL
GROUP BY execution_events.task_execution_id, execution_events.lease_token
HAVING count(*) > :count_1
