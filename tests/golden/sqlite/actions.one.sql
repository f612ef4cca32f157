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
WHERE operator_actions.id = :id
