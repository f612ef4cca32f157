WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
DELETE FROM operator_actions
WHERE operator_actions.id IN (
    SELECT operator_actions.id
    FROM operator_actions
    WHERE
        operator_actions.at < %(older)s::TIMESTAMP WITH TIME ZONE
        AND operator_actions.at < (SELECT clock.now FROM clock) + %(least)s * interval '1 second'
    LIMIT %(limit)s::BIGINT
)
RETURNING operator_actions.id
