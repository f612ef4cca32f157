WITH
    given AS (/* schedules.given-1 */),
    created AS (
        INSERT INTO task_schedules (
            name,
            task_name,
            args,
            queue,
            priority,
            max_attempts,
            lease_seconds,
            timeout_seconds,
            on_dead_letter,
            rule,
            tz,
            overlap,
            catch_up,
            catch_up_limit,
            grace_seconds,
            jitter_seconds,
            starts_at,
            ends_at,
            declared_by,
            declaration,
            planted_until,
            paused_at,
            pause_reason,
            created_at,
            updated_at
        )
        SELECT
            given.name AS name,
            given.task_name AS task_name,
            given.args AS args,
            given.queue AS queue,
            given.priority AS priority,
            given.max_attempts AS max_attempts,
            given.lease_seconds AS lease_seconds,
            given.timeout_seconds AS timeout_seconds,
            given.on_dead_letter AS on_dead_letter,
            given.rule AS rule,
            given.tz AS tz,
            given.overlap AS overlap,
            given.catch_up AS catch_up,
            given.catch_up_limit AS catch_up_limit,
            given.grace_seconds AS grace_seconds,
            given.jitter_seconds AS jitter_seconds,
            given.starts_at AS starts_at,
            given.ends_at AS ends_at,
            given.declared_by AS declared_by,
            given.declaration AS declaration,
            given.planted_until AS planted_until,
            given.paused_at AS paused_at,
            given.pause_reason AS pause_reason,
            given.created_at AS created_at,
            given.updated_at AS updated_at
        FROM given
        WHERE given.name IS NOT NULL
        ON CONFLICT DO NOTHING
        RETURNING task_schedules.name AS id
    )
SELECT created.id
FROM created
