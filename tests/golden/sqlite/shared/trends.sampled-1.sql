SELECT
    moments.begins_at AS begins_at,
    sum(
        CAST(
            CASE
                WHEN (:queue IS NULL OR queue_samples.queue = :queue) THEN queue_samples.ready
                ELSE 0
            END AS DOUBLE
        )
    ) AS ready,
    sum(
        CAST(
            CASE
                WHEN (:queue IS NULL OR queue_samples.queue = :queue) THEN queue_samples.delayed
                ELSE 0
            END AS DOUBLE
        )
    ) AS delayed,
    sum(
        CAST(
            CASE
                WHEN (:queue IS NULL OR queue_samples.queue = :queue) THEN queue_samples.running
                ELSE 0
            END AS DOUBLE
        )
    ) AS running,
    sum(
        CAST(
            CASE
                WHEN (:queue IS NULL OR queue_samples.queue = :queue) THEN queue_samples.failed
                ELSE 0
            END AS DOUBLE
        )
    ) AS failed
FROM moments
JOIN queue_samples ON queue_samples.at = moments.at
GROUP BY moments.begins_at
