SELECT count(*) AS tasks
FROM (
    SELECT 1 AS one
    FROM (
        SELECT task_leases.task_execution_id AS id, task_leases.queue AS queue
        FROM task_leases
        WHERE
            task_leases.task_execution_id >= :from_id
            AND task_leases.task_execution_id < :to_id
            AND (:queue IS NULL OR task_leases.queue = :queue)
    ) AS looked
    WHERE
        (:queue IS NULL OR looked.queue = :queue)
        AND (
            :task_name IS NULL
                OR (
                    SELECT execution.task_name
                    FROM task_executions AS execution
                    WHERE execution.id = looked.id
                ) = :task_name
        )
        AND (
            :partition_key IS NULL
                OR (
                    SELECT execution.partition_key
                    FROM task_executions AS execution
                    WHERE execution.id = looked.id
                ) = :partition_key
        )
        AND (
            :topic IS NULL
                OR (
                    SELECT execution.topic
                    FROM task_executions AS execution
                    WHERE execution.id = looked.id
                ) = :topic
        )
    LIMIT :limit
    OFFSET :param_1
) AS some
