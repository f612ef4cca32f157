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
    ) AS head
FROM (/* dead_letters.page-1 */) AS page
ORDER BY page.failed_at DESC, page.task_execution_id DESC
