WITH given AS (
    SELECT
        batch.name AS name,
        batch.planted_until AS planted_until,
        batch.updated_at AS updated_at,
        batch.ordinal AS ordinal
    FROM unnest(
        %(given_name)s::TEXT[],
        %(given_planted_until)s::TIMESTAMP WITH TIME ZONE[],
        %(given_updated_at)s::TIMESTAMP WITH TIME ZONE[]
    ) WITH ORDINALITY AS batch(name, planted_until, updated_at, ordinal)
)
UPDATE task_schedules
SET planted_until=given.planted_until, updated_at=coalesce(given.updated_at, task_schedules.updated_at)
FROM given
WHERE task_schedules.name = given.name AND task_schedules.planted_until < given.planted_until
