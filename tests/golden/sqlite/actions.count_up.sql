UPDATE operator_actions
SET changed=(operator_actions.changed + :changed)
WHERE operator_actions.id = :id
RETURNING id
