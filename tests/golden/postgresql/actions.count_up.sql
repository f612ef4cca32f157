UPDATE operator_actions
SET changed=(operator_actions.changed + %(changed)s::BIGINT)
WHERE operator_actions.id = %(id)s::UUID
RETURNING operator_actions.id
