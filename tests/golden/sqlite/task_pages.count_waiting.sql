SELECT count(*) AS tasks
FROM (
    SELECT 1 AS one
    FROM (
        SELECT
            task_outbox.task_execution_id AS id,
            task_outbox.queue AS queue,
            task_outbox.partition_key AS partition_key,
            task_outbox.topic AS topic
        FROM task_outbox
        WHERE task_outbox.task_execution_id >= :from_id AND task_outbox.task_execution_id < :to_id
        LIMIT :scan
        OFFSET :param_1
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
        AND (:partition_key IS NULL OR looked.partition_key = :partition_key)
        AND (:topic IS NULL OR looked.topic = :topic)
    LIMIT :limit
    OFFSET :param_2
) AS some
