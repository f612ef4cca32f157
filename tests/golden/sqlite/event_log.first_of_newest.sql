SELECT min(newest.sequence_num) AS first
FROM (
    SELECT execution_events.sequence_num AS sequence_num
    FROM execution_events
    ORDER BY execution_events.sequence_num DESC
    LIMIT :limit
    OFFSET :param_1
) AS newest
