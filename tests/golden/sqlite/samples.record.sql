-- rows
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS queue,
        json_extract(given_rows.value, '$[1]') AS due,
        json_extract(given_rows.value, '$[2]') AS delayed,
        json_extract(given_rows.value, '$[3]') AS running,
        json_extract(given_rows.value, '$[4]') AS failed,
        json_extract(given_rows.value, '$[5]') AS oldest_due_at,
        json_extract(given_rows.value, '$[6]') AS exact
    FROM json_each(:given) AS given_rows
)
INSERT INTO queue_samples (at, queue, due, delayed, running, failed, oldest_due_at, exact)
SELECT
    :now AS anon_1,
    given.queue,
    given.due,
    given.delayed,
    given.running,
    given.failed,
    given.oldest_due_at,
    given.exact
FROM given
WHERE given.queue IS NOT NULL
ON CONFLICT DO NOTHING
