WITH those AS MATERIALIZED (
    SELECT task_executions.id AS id, task_executions.task_name AS task_name, task_executions.status AS status
    FROM task_executions
    WHERE
        task_executions.pipeline_execution_id = :batch_id
        AND task_executions.pipeline_execution_id != task_executions.id
        AND task_executions.status IN (:status, :other_status)
)
SELECT those.id, those.task_name, those.status
FROM those
ORDER BY those.id
LIMIT 1
OFFSET :param_1
