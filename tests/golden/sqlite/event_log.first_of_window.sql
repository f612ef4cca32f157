WITH RECURSIVE search(low, high) AS (
    SELECT
        (SELECT min(execution_events.sequence_num) AS min_1 FROM execution_events) AS low,
        (
            SELECT max(execution_events.sequence_num) + :max_1 AS anon_1
            FROM execution_events
        ) AS high
    UNION ALL
    SELECT
        CASE
            WHEN (
                (
                    SELECT execution_events.created_at
                    FROM execution_events
                    WHERE execution_events.sequence_num >= (search.low + search.high) / :param_1
                    ORDER BY execution_events.sequence_num
                    LIMIT :param_2
                    OFFSET :param_3
                ) < :search_from
            ) THEN (search.low + search.high) / :param_1 + :param_4
            ELSE search.low
        END AS anon_2,
        CASE
            WHEN (
                (
                    SELECT execution_events.created_at
                    FROM execution_events
                    WHERE execution_events.sequence_num >= (search.low + search.high) / :param_1
                    ORDER BY execution_events.sequence_num
                    LIMIT :param_2
                    OFFSET :param_5
                ) < :search_from
            ) THEN search.high
            ELSE (search.low + search.high) / :param_1
        END AS anon_3
    FROM search
    WHERE search.low < search.high
)
SELECT search.low AS first
FROM search
WHERE search.low = search.high
