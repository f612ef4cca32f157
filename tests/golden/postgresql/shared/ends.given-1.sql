SELECT
    batch.id AS id,
    batch.lease_token AS lease_token,
    batch.event_type AS event_type,
    batch.status AS status,
    batch.available_at AS available_at,
    batch.delay_seconds AS delay_seconds,
    batch.error AS error,
    batch.result AS result,
    batch.data AS data,
    batch.partition_key AS partition_key,
    batch.ordinal AS ordinal
FROM unnest(
    %(given_id)s::UUID[],
    %(given_lease_token)s::BIGINT[],
    %(given_event_type)s::TEXT[],
    %(given_status)s::TEXT[],
    %(given_available_at)s::TIMESTAMP WITH TIME ZONE[],
    %(given_delay_seconds)s::DOUBLE PRECISION[],
    %(given_error)s::TEXT[],
    %(given_result)s::TEXT[],
    %(given_data)s::TEXT[],
    %(given_partition_key)s::TEXT[]
) WITH ORDINALITY AS batch(
    id,
    lease_token,
    event_type,
    status,
    available_at,
    delay_seconds,
    error,
    result,
    data,
    partition_key,
    ordinal
)
