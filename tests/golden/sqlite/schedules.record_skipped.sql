-- event
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS pipeline_execution_id,
        json_extract(given_rows.value, '$[1]') AS data
    FROM json_each(:given) AS given_rows
)
INSERT INTO execution_events (pipeline_execution_id, event_type, event_data, created_at)
SELECT given.pipeline_execution_id, 'schedule_skipped', given.data, :now AS anon_1
FROM given
