DELETE FROM queue_samples
WHERE
    queue_samples.at >= :since
    AND queue_samples.at < :before
    AND queue_samples.at > (
        SELECT min(other.at) AS min_1
        FROM queue_samples AS other
        WHERE other.at >= (substr(queue_samples.at, 1, 14) || '00:00.000000+00:00')
    )
