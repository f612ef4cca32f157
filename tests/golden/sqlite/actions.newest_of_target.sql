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
    operator_actions.id < :before
    AND (:action IS NULL OR operator_actions.action = :action)
    AND (:operator IS NULL OR operator_actions.operator = :operator)
    AND (:since IS NULL OR operator_actions.at >= :since)
    AND operator_actions.target = :named_target
ORDER BY operator_actions.id DESC
LIMIT :limit
OFFSET :param_1
