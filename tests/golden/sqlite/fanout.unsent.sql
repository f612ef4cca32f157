SELECT relay_messages.event_id
FROM relay_messages
WHERE relay_messages.event_id = :pipeline_execution_id
LIMIT 1
OFFSET :param_1
