SELECT found.id, found.step_without_task, found.step_not_recorded, found.step_without_claim
FROM (
    SELECT
        task_steps.task_execution_id AS id,
        coalesce(
            NOT (
                EXISTS (
                    SELECT task_executions.id
                    FROM task_executions
                    WHERE task_executions.id = task_steps.task_execution_id
                )
            ),
            0
        ) AS step_without_task,
        coalesce(
            (
                EXISTS (
                    SELECT task_executions.id
                    FROM task_executions
                    WHERE task_executions.id = task_steps.task_execution_id
                )
            )
                AND NOT (
                    EXISTS (
                        SELECT event.sequence_num
                        FROM execution_events AS event
                        WHERE
                            event.task_execution_id = task_steps.task_execution_id
                            AND event.lease_token IS NULL
                            AND event.event_type = 'step_completed'
                            AND json_extract(event.event_data, '$.step') = task_steps.name
                            AND NOT (
                                EXISTS (
                                    SELECT rewound.sequence_num
                                    FROM execution_events AS rewound
                                    WHERE
                                        rewound.task_execution_id = event.task_execution_id
                                        AND rewound.lease_token IS NULL
                                        AND rewound.event_type = 'task_rewound'
                                        AND rewound.sequence_num > event.sequence_num
                                        AND CAST(json_extract(rewound.event_data, '$.number') AS INTEGER) <= CAST(
                                            json_extract(event.event_data, '$.number') AS INTEGER
                                        )
                                )
                            )
                    )
                ),
            0
        ) AS step_not_recorded,
        coalesce(
            (
                EXISTS (
                    SELECT task_executions.id
                    FROM task_executions
                    WHERE task_executions.id = task_steps.task_execution_id
                )
            )
                AND NOT (
                    EXISTS (
                        SELECT claim.sequence_num
                        FROM execution_events AS claim
                        WHERE
                            claim.task_execution_id = task_steps.task_execution_id
                            AND claim.lease_token = task_steps.lease_token
                            AND claim.event_type = 'task_claimed'
                    )
                ),
            0
        ) AS step_without_claim
    FROM task_steps
) AS found
WHERE found.step_without_task = 1 OR found.step_not_recorded = 1 OR found.step_without_claim = 1
