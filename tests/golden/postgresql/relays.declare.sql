WITH
    clock AS MATERIALIZED (
        SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
    ),
    given AS (
        SELECT
            batch.name AS name,
            batch.shards AS shards,
            batch.on_refused AS on_refused,
            batch.ordinal AS ordinal
        FROM unnest(%(given_name)s::TEXT[], %(given_shards)s::INTEGER[], %(given_on_refused)s::TEXT[]) WITH ORDINALITY AS batch(
            name,
            shards,
            on_refused,
            ordinal
        )
    )
INSERT INTO relays (name, shards, on_refused, failures, created_at)
SELECT
    given.name,
    given.shards,
    given.on_refused,
    0,
    (SELECT clock.now FROM clock) AS anon_1
FROM given
WHERE given.name IS NOT NULL
ORDER BY given.name
ON CONFLICT (name) DO UPDATE SET shards = excluded.shards, on_refused = excluded.on_refused
