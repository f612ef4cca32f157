WITH RECURSIVE search(low, high) AS (
    SELECT
        (SELECT min(execution_events.sequence_num) AS min_1 FROM execution_events) AS low,
        (
            SELECT max(execution_events.sequence_num) + %(max_1)s::BIGINT AS anon_1
            FROM execution_events
        ) AS high
    UNION ALL
    SELECT
        CASE
            WHEN (
                (
                    SELECT execution_events.created_at
                    FROM execution_events
                    WHERE execution_events.sequence_num >= (search.low + search.high) / %(param_1)s::BIGINT
                    ORDER BY execution_events.sequence_num
                    LIMIT %(param_2)s::INTEGER
                ) < %(search_from)s::TIMESTAMP WITH TIME ZONE
            ) THEN (search.low + search.high) / %(param_1)s::BIGINT + %(param_3)s::BIGINT
            ELSE search.low
        END AS anon_2,
        CASE
            WHEN (
                (
                    SELECT execution_events.created_at
                    FROM execution_events
                    WHERE execution_events.sequence_num >= (search.low + search.high) / %(param_1)s::BIGINT
                    ORDER BY execution_events.sequence_num
                    LIMIT %(param_2)s::INTEGER
                ) < %(search_from)s::TIMESTAMP WITH TIME ZONE
            ) THEN search.high
            ELSE (search.low + search.high) / %(param_1)s::BIGINT
        END AS anon_3
    FROM search
    WHERE search.low < search.high
)
SELECT search.low AS first
FROM search
WHERE search.low = search.high
