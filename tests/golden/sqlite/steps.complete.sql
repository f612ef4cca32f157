-- held
SELECT
    task_leases.task_execution_id AS id,
    task_leases.lease_token,
    CASE
        WHEN (CAST(:delay_seconds AS DOUBLE) IS NOT NULL) THEN strftime(
            :strftime_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(CAST(:delay_seconds AS DOUBLE) * :param_2) AS INTEGER)
            ) / 1000000,
            :strftime_3
        ) || printf(
            :printf_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(CAST(:delay_seconds AS DOUBLE) * :param_2) AS INTEGER)
            ) % 1000000
        )
    END AS due_at
FROM task_leases
WHERE
    task_leases.task_execution_id = :task_id
    AND task_leases.lease_token = :lease_token
    AND task_leases.worker_id = :worker_id;

-- step
WITH held AS MATERIALIZED (
    SELECT
        held_rows."key" AS ordinal,
        json_extract(held_rows.value, '$[0]') AS id,
        json_extract(held_rows.value, '$[1]') AS lease_token,
        json_extract(held_rows.value, '$[2]') AS due_at
    FROM json_each(:held) AS held_rows
)
INSERT INTO task_steps (task_execution_id, name, number, lease_token, result, due_at, created_at)
SELECT
    held.id,
    :name AS anon_1,
    :number AS anon_2,
    held.lease_token,
    :result AS anon_3,
    held.due_at,
    :now AS anon_4
FROM held
WHERE held.id IS NOT NULL
ON CONFLICT DO NOTHING
RETURNING task_execution_id AS id, number, due_at;

-- event
WITH step AS MATERIALIZED (
    SELECT
        step_rows."key" AS ordinal,
        json_extract(step_rows.value, '$[0]') AS id,
        json_extract(step_rows.value, '$[1]') AS number,
        json_extract(step_rows.value, '$[2]') AS due_at
    FROM json_each(:step) AS step_rows
)
INSERT INTO execution_events (
    pipeline_execution_id,
    task_execution_id,
    event_type,
    event_data,
    worker_id,
    lease_token,
    created_at
)
SELECT
    :pipeline_id AS anon_1,
    step.id,
    'step_completed',
    json_patch('{}', json_object('step', :name, 'number', step.number, 'ms', :ms, 'due_at', step.due_at)) AS json_patch_1,
    :worker_id AS anon_2,
    NULL AS anon_3,
    :now AS anon_4
FROM step
