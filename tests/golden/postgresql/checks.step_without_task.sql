SELECT
    found.id,
    found.step_without_task,
    found.step_not_recorded,
    found.step_without_claim,
    found.step_not_json
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
            false
        ) AS step_without_task,
        coalesce(
            (
                EXISTS (
                    SELECT task_executions.id
                    FROM task_executions
                    WHERE task_executions.id = task_steps.task_execution_id
                )
            )
                AND recorded.id IS NULL,
            false
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
            false
        ) AS step_without_claim,
        coalesce(
            task_steps.result IS NOT NULL
                AND NOT CASE
                    WHEN (task_steps.result ~ '^(?:"[^"\\]*"|-?[0-9.]+|true|false|null)$') THEN true
                    ELSE (
                        regexp_replace(task_steps.result, '"([^"\\]|\\.)*"', '0', 'g') ~ '^([][{}:,[:space:]]|-?[0-9][0-9.eE+-]*|true|false|null)+$'
                    )
                AND length(
                    translate(regexp_replace(task_steps.result, '"([^"\\]|\\.)*"', '0', 'g'), '{[', '')
                ) = length(
                    translate(regexp_replace(task_steps.result, '"([^"\\]|\\.)*"', '0', 'g'), '}]', '')
                )
                END,
            false
        ) AS step_not_json
    FROM task_steps
    LEFT OUTER JOIN (
        SELECT DISTINCT completed.id AS id, completed.name AS name
        FROM (/* checks.completed-1 */) AS completed
        WHERE completed.lasts
    ) AS recorded ON recorded.id = task_steps.task_execution_id
        AND task_steps.name = recorded.name
) AS found
WHERE found.step_without_task OR found.step_not_recorded OR found.step_without_claim OR found.step_not_json
