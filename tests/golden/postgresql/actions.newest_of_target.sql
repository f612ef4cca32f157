SELECT
    operator_actions.id,
    operator_actions.at,
    operator_actions.operator,
    operator_actions.interface,
    operator_actions.action,
    operator_actions.target,
    operator_actions.details,
    operator_actions.reason,
    operator_actions.changed
FROM operator_actions
WHERE
    operator_actions.id < %(before)s::UUID
    AND (%(action)s::VARCHAR IS NULL OR operator_actions.action = %(action)s::VARCHAR)
    AND (%(operator)s::VARCHAR IS NULL OR operator_actions.operator = %(operator)s::VARCHAR)
    AND (
        %(since)s::TIMESTAMP WITH TIME ZONE IS NULL
            OR operator_actions.at >= %(since)s::TIMESTAMP WITH TIME ZONE
    )
    AND operator_actions.target = %(named_target)s::VARCHAR
ORDER BY operator_actions.id DESC
LIMIT %(limit)s::BIGINT
