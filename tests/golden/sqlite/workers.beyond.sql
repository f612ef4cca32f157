SELECT execution_events.sequence_num
FROM execution_events
WHERE execution_events.sequence_num >= :first
ORDER BY execution_events.sequence_num
LIMIT 1
OFFSET :most
