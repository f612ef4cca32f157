-- hop
WITH RECURSIVE
    topics AS MATERIALIZED (
        SELECT topics_rows."key" AS ordinal, topics_rows.value AS topic
        FROM json_each(:topics) AS topics_rows
    ),
    given AS MATERIALIZED (
        SELECT
            given_rows."key" AS ordinal,
            json_extract(given_rows.value, '$[0]') AS queue,
            json_extract(given_rows.value, '$[1]') AS "after",
            json_extract(given_rows.value, '$[2]') AS upto
        FROM json_each(:given) AS given_rows
    ),
    keys(place, queue, upto, task_execution_id, partition_key, available_at, topic, n) AS (
        SELECT
            given.ordinal AS place,
            given.queue AS queue,
            given.upto AS upto,
            head.task_execution_id AS task_execution_id,
            head.partition_key AS partition_key,
            head.available_at AS available_at,
            head.topic AS topic,
            1 AS n
        FROM given
        JOIN task_outbox AS head ON head.id = (
            SELECT head_entry.id
            FROM task_outbox AS head_entry
            WHERE head_entry.queue = given.queue AND head_entry.partition_key > given."after"
            ORDER BY head_entry.partition_key, head_entry.priority DESC, head_entry.position
            LIMIT :param_1
            OFFSET :param_2
        )
        WHERE given.upto IS NULL OR head.partition_key <= given.upto
        UNION ALL
        SELECT
            keys.place AS place,
            keys.queue AS queue,
            keys.upto AS upto,
            following.task_execution_id AS task_execution_id,
            following.partition_key AS partition_key,
            following.available_at AS available_at,
            following.topic AS topic,
            keys.n + 1 AS anon_1
        FROM keys
        JOIN task_outbox AS following ON following.id = (
            SELECT following_entry.id
            FROM task_outbox AS following_entry
            WHERE following_entry.queue = keys.queue AND following_entry.partition_key > keys.partition_key
            ORDER BY following_entry.partition_key, following_entry.priority DESC, following_entry.position
            LIMIT :param_3
            OFFSET :param_4
        )
        WHERE keys.n < :budget AND (keys.upto IS NULL OR following.partition_key <= keys.upto)
    )
SELECT
    keys.task_execution_id AS id,
    keys.queue,
    keys.partition_key,
    keys.place,
    keys.n,
    keys.available_at <= :now
        AND (
            :any_topic = 1
                OR (
                    EXISTS (
                        SELECT topics.topic
                        FROM topics
                        WHERE
                            keys.topic = topics.topic
                            OR substr(topics.topic, length(topics.topic), 1) = '*'
                            AND substr(keys.topic, 1, length(topics.topic) - 1) = substr(
                                topics.topic,
                                1,
                                length(topics.topic) - 1
                            )
                    )
                )
        )
        AND (
            SELECT claims.queue
            FROM partition_claims AS claims
            WHERE claims.queue = keys.queue AND claims.partition_key = keys.partition_key
        ) IS NULL AS free
FROM keys;

-- won
WITH hop AS MATERIALIZED (
    SELECT
        hop_rows."key" AS ordinal,
        json_extract(hop_rows.value, '$[0]') AS id,
        json_extract(hop_rows.value, '$[1]') AS queue,
        json_extract(hop_rows.value, '$[2]') AS partition_key,
        json_extract(hop_rows.value, '$[3]') AS place,
        json_extract(hop_rows.value, '$[4]') AS n,
        json_extract(hop_rows.value, '$[5]') AS free
    FROM json_each(:hop) AS hop_rows
)
INSERT INTO partition_claims (queue, partition_key, task_execution_id, held)
SELECT locked.queue, locked.partition_key, locked.id, 0 AS anon_1
FROM (/* partition_keys.locked-1: param_1, param_2 */) AS locked
ORDER BY locked.queue, locked.partition_key
ON CONFLICT DO NOTHING
RETURNING task_execution_id AS id, held AS won
