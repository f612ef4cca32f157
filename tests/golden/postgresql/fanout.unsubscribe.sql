WITH given AS (
    SELECT batch.topic AS topic, batch.task_name AS task_name, batch.ordinal AS ordinal
    FROM unnest(%(given_topic)s::TEXT[], %(given_task_name)s::TEXT[]) WITH ORDINALITY AS batch(
        topic,
        task_name,
        ordinal
    )
)
DELETE FROM task_subscriptions
WHERE (task_subscriptions.topic, task_subscriptions.task_name) IN (
    SELECT given.topic, given.task_name FROM given
)
