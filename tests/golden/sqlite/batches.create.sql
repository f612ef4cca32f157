-- batch
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS id,
        json_extract(given_rows.value, '$[1]') AS kind,
        json_extract(given_rows.value, '$[2]') AS name,
        json_extract(given_rows.value, '$[3]') AS on_failed,
        json_extract(given_rows.value, '$[4]') AS size,
        json_extract(given_rows.value, '$[5]') AS closed,
        json_extract(given_rows.value, '$[6]') AS then_tasks
    FROM json_each(:given) AS given_rows
)
INSERT INTO task_batches (
    id,
    kind,
    name,
    on_failed,
    size,
    closed,
    then_tasks,
    completed,
    failed,
    cancelled,
    stage,
    runs_then,
    created_at,
    updated_at
)
SELECT
    given.id,
    given.kind,
    given.name,
    given.on_failed,
    given.size,
    given.closed,
    given.then_tasks,
    0,
    0,
    0,
    0,
    true,
    :now AS anon_1,
    :now AS anon_2
FROM given;

-- event
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS id,
        json_extract(given_rows.value, '$[1]') AS kind,
        json_extract(given_rows.value, '$[2]') AS name,
        json_extract(given_rows.value, '$[3]') AS on_failed,
        json_extract(given_rows.value, '$[4]') AS links
    FROM json_each(:given) AS given_rows
)
INSERT INTO execution_events (pipeline_execution_id, event_type, event_data, created_at)
SELECT
    given.id,
    'batch_created',
    json_patch(
        '{}',
        json_object(
            'kind',
            given.kind,
            'name',
            given.name,
            'on_failed',
            given.on_failed,
            'links',
            given.links
        )
    ) AS json_patch_1,
    :now AS anon_1
FROM given
