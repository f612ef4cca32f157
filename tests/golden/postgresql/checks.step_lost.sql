SELECT found.id, found.step_lost, found.step_completed_twice, found.step_outside_claim
FROM (
    SELECT
        completed.id AS id,
        coalesce(
            completed.lasts
                AND NOT (
                    EXISTS (
                        SELECT task_steps.name
                        FROM task_steps
                        WHERE task_steps.task_execution_id = completed.id AND task_steps.name = completed.name
                    )
                ),
            false
        ) AS step_lost,
        coalesce(completed.lasts AND completed.sequence_num < completed.latest, false) AS step_completed_twice,
        coalesce(NOT completed.was_held, false) AS step_outside_claim
    FROM (/* checks.completed-1 */) AS completed
) AS found
WHERE found.step_lost OR found.step_completed_twice OR found.step_outside_claim
