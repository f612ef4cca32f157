WITH given AS (
    SELECT
        batch.relay AS relay,
        batch.shard AS shard,
        batch.lease_token AS lease_token,
        batch.lease_expires_at AS lease_expires_at,
        batch.ordinal AS ordinal
    FROM unnest(
        %(given_relay)s::TEXT[],
        %(given_shard)s::INTEGER[],
        %(given_lease_token)s::BIGINT[],
        %(given_lease_expires_at)s::TIMESTAMP WITH TIME ZONE[]
    ) WITH ORDINALITY AS batch(relay, shard, lease_token, lease_expires_at, ordinal)
)
INSERT INTO relay_shards (relay, shard, lease_token, lease_expires_at)
SELECT given.relay, given.shard, given.lease_token, given.lease_expires_at
FROM given
