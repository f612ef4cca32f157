SELECT candidate.id
FROM (/* due.far-1 */) AS far
JOIN LATERAL (
    SELECT
        near_ones.id AS id,
        near_ones.task_execution_id AS task_execution_id,
        near_ones.queue AS queue,
        near_ones.priority AS priority,
        near_ones.partition_key AS partition_key,
        near_ones.position AS position,
        near_ones.topic AS topic,
        near_ones.available_at AS available_at,
        near_ones.expires_at AS expires_at,
        near_ones.created_at AS created_at
    FROM (
        SELECT
            candidate_entry.id AS id,
            candidate_entry.task_execution_id AS task_execution_id,
            candidate_entry.queue AS queue,
            candidate_entry.priority AS priority,
            candidate_entry.partition_key AS partition_key,
            candidate_entry.position AS position,
            candidate_entry.topic AS topic,
            candidate_entry.available_at AS available_at,
            candidate_entry.expires_at AS expires_at,
            candidate_entry.created_at AS created_at
        FROM task_outbox AS candidate_entry
        WHERE candidate_entry.queue = far.queue AND candidate_entry.partition_key = far.partition_key
        ORDER BY candidate_entry.priority DESC, candidate_entry.position
        LIMIT 1000
    ) AS near_ones
    WHERE
        near_ones.available_at <= (SELECT clock.now FROM clock)
        AND (
            %(any_topic)s
                OR (
                    EXISTS (
                        SELECT topics.topic
                        FROM topics
                        WHERE
                            near_ones.topic = topics.topic
                            OR substr(topics.topic, length(topics.topic), 1) = '*'
                            AND substr(near_ones.topic, 1, length(topics.topic) - 1) = substr(
                                topics.topic,
                                1,
                                length(topics.topic) - 1
                            )
                    )
                )
        )
    ORDER BY near_ones.priority DESC, near_ones.position
    LIMIT %(param_1)s::INTEGER
) AS candidate ON true
WHERE far.free AND far.is_concurrency
