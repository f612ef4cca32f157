WITH
    steps AS (
        SELECT batch.begins_at AS begins_at, batch.ends_at AS ends_at, batch.ordinal AS ordinal
        FROM unnest(
            %(steps_begins_at)s::TIMESTAMP WITH TIME ZONE[],
            %(steps_ends_at)s::TIMESTAMP WITH TIME ZONE[]
        ) WITH ORDINALITY AS batch(begins_at, ends_at, ordinal)
    ),
    moments AS MATERIALIZED (
        SELECT
            steps.begins_at AS begins_at,
            (
                SELECT max(queue_samples.at) AS max_1
                FROM queue_samples
                WHERE queue_samples.at >= steps.begins_at AND queue_samples.at < steps.ends_at
            ) AS at
        FROM steps
    )
SELECT moments.begins_at AS begins_at, queue_samples.queue, queue_samples.due
FROM moments
JOIN queue_samples ON queue_samples.at = moments.at
ORDER BY moments.begins_at DESC
LIMIT %(most)s::BIGINT
