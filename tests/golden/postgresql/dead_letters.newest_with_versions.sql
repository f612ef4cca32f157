SELECT
    page.task_execution_id AS id,
    page.failed_at,
    page.queue,
    page.task_name,
    page.exception,
    (
        SELECT substr(task_executions.last_error, 1, 400) AS substr_1
        FROM task_executions
        WHERE task_executions.id = page.task_execution_id
    ) AS head,
    (
        SELECT workers.version
        FROM task_executions
        JOIN execution_events ON execution_events.task_execution_id = task_executions.id
            AND execution_events.lease_token = task_executions.lease_token
            AND execution_events.event_type = 'task_claimed'
        JOIN workers ON workers.id = execution_events.worker_id
        WHERE task_executions.id = page.task_execution_id
    ) AS version
FROM (/* dead_letters.page-1 */) AS page
ORDER BY page.failed_at DESC, page.task_execution_id DESC
