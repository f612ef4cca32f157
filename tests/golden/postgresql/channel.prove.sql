INSERT INTO task_outbox (task_execution_id)
SELECT CAST(NULL AS UUID) AS anon_1
WHERE set_config('outboxq.notify', %(word)s::VARCHAR, true) = ''
