WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    given AS (
        SELECT
            batch.pipeline_execution_id AS pipeline_execution_id,
            batch.data AS data,
            batch.ordinal AS ordinal
        FROM unnest(%(given_pipeline_execution_id)s::UUID[], %(given_data)s::TEXT[]) WITH ORDINALITY AS batch(
            pipeline_execution_id,
            data,
            ordinal
        )
    )
INSERT INTO execution_events (pipeline_execution_id, event_type, event_data, created_at)
SELECT
    given.pipeline_execution_id,
    'schedule_skipped',
    given.data,
    (SELECT clock.now FROM clock) AS anon_1
FROM given
