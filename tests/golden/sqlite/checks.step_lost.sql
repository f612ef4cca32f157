SELECT found.id, found.step_lost, found.step_completed_twice, found.step_outside_claim
FROM (
    SELECT
        completed.id AS id,
        coalesce(
            completed.lasts = 1
                AND NOT (
                    EXISTS (
                        SELECT task_steps.name
                        FROM task_steps
                        WHERE task_steps.task_execution_id = completed.id AND task_steps.name = completed.name
                    )
                ),
            0
        ) AS step_lost,
        coalesce(completed.lasts = 1 AND completed.sequence_num < completed.latest, 0) AS step_completed_twice,
        coalesce(completed.was_held = 0, 0) AS step_outside_claim
    FROM (/* checks.completed-1 */) AS completed
) AS found
WHERE found.step_lost = 1 OR found.step_completed_twice = 1 OR found.step_outside_claim = 1
