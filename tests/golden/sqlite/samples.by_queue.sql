WITH
    steps AS MATERIALIZED (
        SELECT
            steps_rows."key" AS ordinal,
            json_extract(steps_rows.value, '$[0]') AS begins_at,
            json_extract(steps_rows.value, '$[1]') AS ends_at
        FROM json_each(:steps) AS steps_rows
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
LIMIT :most
OFFSET :param_1
