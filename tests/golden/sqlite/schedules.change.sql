-- changed
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS name,
        json_extract(given_rows.value, '$[1]') AS task_name,
        json_extract(given_rows.value, '$[2]') AS args,
        json_extract(given_rows.value, '$[3]') AS queue,
        json_extract(given_rows.value, '$[4]') AS priority,
        json_extract(given_rows.value, '$[5]') AS max_attempts,
        json_extract(given_rows.value, '$[6]') AS lease_seconds,
        json_extract(given_rows.value, '$[7]') AS timeout_seconds,
        json_extract(given_rows.value, '$[8]') AS on_dead_letter,
        json_extract(given_rows.value, '$[9]') AS rule,
        json_extract(given_rows.value, '$[10]') AS tz,
        json_extract(given_rows.value, '$[11]') AS overlap,
        json_extract(given_rows.value, '$[12]') AS catch_up,
        json_extract(given_rows.value, '$[13]') AS catch_up_limit,
        json_extract(given_rows.value, '$[14]') AS grace_seconds,
        json_extract(given_rows.value, '$[15]') AS jitter_seconds,
        json_extract(given_rows.value, '$[16]') AS starts_at,
        json_extract(given_rows.value, '$[17]') AS ends_at,
        json_extract(given_rows.value, '$[18]') AS declared_by,
        json_extract(given_rows.value, '$[19]') AS declaration,
        json_extract(given_rows.value, '$[20]') AS planted_until,
        json_extract(given_rows.value, '$[21]') AS paused_at,
        json_extract(given_rows.value, '$[22]') AS pause_reason,
        json_extract(given_rows.value, '$[23]') AS created_at,
        json_extract(given_rows.value, '$[24]') AS updated_at
    FROM json_each(:given) AS given_rows
)
UPDATE task_schedules
SET
    task_name=given.task_name,
    args=given.args,
    queue=given.queue,
    priority=given.priority,
    max_attempts=given.max_attempts,
    lease_seconds=given.lease_seconds,
    timeout_seconds=given.timeout_seconds,
    on_dead_letter=given.on_dead_letter,
    rule=given.rule,
    tz=given.tz,
    overlap=given.overlap,
    catch_up=given.catch_up,
    catch_up_limit=given.catch_up_limit,
    grace_seconds=given.grace_seconds,
    jitter_seconds=given.jitter_seconds,
    starts_at=given.starts_at,
    ends_at=given.ends_at,
    declared_by=given.declared_by,
    declaration=given.declaration,
    planted_until=given.planted_until,
    paused_at=given.paused_at,
    pause_reason=given.pause_reason,
    created_at=given.created_at,
    updated_at=given.updated_at
FROM given
WHERE task_schedules.name = given.name
