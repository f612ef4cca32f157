-- renewed
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS relay,
        json_extract(given_rows.value, '$[1]') AS shard,
        json_extract(given_rows.value, '$[2]') AS token
    FROM json_each(:given) AS given_rows
)
UPDATE relay_shards
SET lease_expires_at=(
    strftime(
        :strftime_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(round(:lease_seconds * :param_2) AS INTEGER)
        ) / 1000000,
        :strftime_3
    ) || printf(
        :printf_1,
        (
            CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(:now, :substr_3, :substr_4) AS INTEGER
            ) + CAST(round(:lease_seconds * :param_2) AS INTEGER)
        ) % 1000000
    )
)
FROM given
WHERE
    relay_shards.relay = given.relay
    AND relay_shards.shard = given.shard
    AND relay_shards.lease_token = given.token
    AND relay_shards.worker_id = :worker_id
RETURNING relay, shard
