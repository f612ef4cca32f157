-- gone
WITH given AS MATERIALIZED (
    SELECT
        given_rows."key" AS ordinal,
        json_extract(given_rows.value, '$[0]') AS topic,
        json_extract(given_rows.value, '$[1]') AS task_name
    FROM json_each(:given) AS given_rows
)
DELETE FROM task_subscriptions
WHERE (task_subscriptions.topic, task_subscriptions.task_name) IN (
    SELECT given.topic, given.task_name FROM given
)
