WITH names AS MATERIALIZED (
    SELECT names_rows."key" AS ordinal, names_rows.value AS name
    FROM json_each(:names) AS names_rows
)
SELECT ranked.schedule, ranked.tick, ranked.comes
FROM (
    SELECT
        found.schedule AS schedule,
        found.tick AS tick,
        found.comes AS comes,
        row_number() OVER (PARTITION BY found.schedule, found.comes ORDER BY found.tick) AS place
    FROM (
        SELECT
            schedule_ticks.schedule AS schedule,
            schedule_ticks.tick AS tick,
            EXISTS (
                SELECT task_executions.id
                FROM task_executions
                WHERE
                    task_executions.id = schedule_ticks.task_execution_id
                    AND task_executions.status = 'Ready'
                    AND task_executions.first_started_at IS NULL
            ) AS comes
        FROM schedule_ticks
        WHERE
            schedule_ticks.schedule IN (SELECT names.name FROM names)
            AND schedule_ticks.tick > :moment
    ) AS found
) AS ranked
WHERE ranked.comes = 0 OR ranked.place <= :limit
ORDER BY ranked.schedule, ranked.tick
