SELECT found.id, found.step_lost, found.step_completed_twice, found.step_outside_claim
FROM (
    SELECT
        completed.task_execution_id AS id,
        coalesce(
            NOT (
                EXISTS (
                    SELECT rewound.sequence_num
                    FROM execution_events AS rewound
                    WHERE
                        rewound.task_execution_id = completed.task_execution_id
                        AND rewound.lease_token IS NULL
                        AND rewound.event_type = 'task_rewound'
                        AND rewound.sequence_num > completed.sequence_num
                        AND CAST((CAST(rewound.event_data AS JSONB) ->> 'number') AS INTEGER) <= CAST(
                            (CAST(completed.event_data AS JSONB) ->> 'number') AS INTEGER
                        )
                )
            )
                AND NOT (
                    EXISTS (
                        SELECT task_steps.name
                        FROM task_steps
                        WHERE
                            task_steps.task_execution_id = completed.task_execution_id
                            AND task_steps.name = (CAST(completed.event_data AS JSONB) ->> 'step')
                    )
                ),
            false
        ) AS step_lost,
        coalesce(
            NOT (
                EXISTS (
                    SELECT rewound.sequence_num
                    FROM execution_events AS rewound
                    WHERE
                        rewound.task_execution_id = completed.task_execution_id
                        AND rewound.lease_token IS NULL
                        AND rewound.event_type = 'task_rewound'
                        AND rewound.sequence_num > completed.sequence_num
                        AND CAST((CAST(rewound.event_data AS JSONB) ->> 'number') AS INTEGER) <= CAST(
                            (CAST(completed.event_data AS JSONB) ->> 'number') AS INTEGER
                        )
                )
            )
                AND (
                    EXISTS (
                        SELECT again.sequence_num
                        FROM execution_events AS again
                        WHERE
                            again.task_execution_id = completed.task_execution_id
                            AND again.lease_token IS NULL
                            AND again.event_type = 'step_completed'
                            AND again.sequence_num > completed.sequence_num
                            AND (CAST(again.event_data AS JSONB) ->> 'step') = (
                                CAST(completed.event_data AS JSONB) ->> 'step'
                            )
                    )
                ),
            false
        ) AS step_completed_twice,
        coalesce(
            NOT (
                EXISTS (
                    SELECT claim.sequence_num
                    FROM execution_events AS claim
                    WHERE
                        claim.task_execution_id = completed.task_execution_id
                        AND claim.event_type = 'task_claimed'
                        AND claim.sequence_num < completed.sequence_num
                        AND NOT (
                            EXISTS (
                                SELECT ended.sequence_num
                                FROM execution_events AS ended
                                WHERE
                                    ended.task_execution_id = claim.task_execution_id
                                    AND ended.lease_token = claim.lease_token
                                    AND ended.event_type != 'task_claimed'
                                    AND ended.lease_token IS NOT NULL
                                    AND ended.sequence_num < completed.sequence_num
                            )
                        )
                )
            ),
            false
        ) AS step_outside_claim
    FROM execution_events AS completed
    WHERE completed.lease_token IS NULL AND completed.event_type = 'step_completed'
) AS found
WHERE found.step_lost OR found.step_completed_twice OR found.step_outside_claim
