WITH given AS
(SELECT batch.event_type AS event_type, batch.task_name AS task_name, batch.ordinal AS ordinal
FROM unnest(%(given_event_type)s::TEXT[], %(given_task_name)s::TEXT[]) WITH ORDINALITY AS batch(event_type, task_name,
    ordinal))
  DELETE FROM task_subscriptions
WHERE (task_subscriptions.event_type, task_subscriptions.task_name) IN (SELECT given.event_type, given.task_name
FROM given)
