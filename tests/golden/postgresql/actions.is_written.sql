SELECT operator_actions.id
FROM operator_actions
WHERE operator_actions.id = %(id)s::UUID
