WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    given AS (
        SELECT
            batch.id AS id,
            batch.kind AS kind,
            batch.name AS name,
            batch.on_failed AS on_failed,
            batch.size AS size,
            batch.closed AS closed,
            batch.then_tasks AS then_tasks,
            batch.links AS links,
            batch.ordinal AS ordinal
        FROM unnest(
            %(given_id)s::UUID[],
            %(given_kind)s::TEXT[],
            %(given_name)s::TEXT[],
            %(given_on_failed)s::TEXT[],
            %(given_size)s::INTEGER[],
            %(given_closed)s::BOOLEAN[],
            %(given_then_tasks)s::TEXT[],
            %(given_links)s::INTEGER[]
        ) WITH ORDINALITY AS batch(id, kind, name, on_failed, size, closed, then_tasks, links, ordinal)
    ),
    batch AS (
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
            given.id AS id,
            given.kind AS kind,
            given.name AS name,
            given.on_failed AS on_failed,
            given.size AS size,
            given.closed AS closed,
            given.then_tasks AS then_tasks,
            0,
            0,
            0,
            0,
            true,
            (SELECT clock.now FROM clock) AS anon_1,
            (SELECT clock.now FROM clock) AS anon_2
        FROM given
    )
INSERT INTO execution_events (pipeline_execution_id, event_type, event_data, created_at)
SELECT
    given.id,
    'batch_created',
    CAST(
        jsonb_strip_nulls(
            jsonb_build_object(
                'kind',
                given.kind,
                'name',
                given.name,
                'on_failed',
                given.on_failed,
                'links',
                given.links
            )
        ) AS TEXT
    ) AS jsonb_strip_nulls_1,
    (SELECT clock.now FROM clock) AS anon_3
FROM given
