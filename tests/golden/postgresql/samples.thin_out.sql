DELETE FROM queue_samples
WHERE
    queue_samples.at >= %(since)s::TIMESTAMP WITH TIME ZONE
    AND queue_samples.at < %(before)s::TIMESTAMP WITH TIME ZONE
    AND queue_samples.at > (
        SELECT min(other.at) AS min_1
        FROM queue_samples AS other
        WHERE other.at >= date_trunc('hour', queue_samples.at, 'UTC')
    )
