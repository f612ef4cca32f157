INSERT INTO operator_actions (id, operator, interface, action, target, details, reason, changed, at)
SELECT
    :id AS anon_1,
    :operator AS anon_2,
    :interface AS anon_3,
    :action AS anon_4,
    :named_target AS anon_5,
    :details AS anon_6,
    :reason AS anon_7,
    :changed AS anon_8,
    :now AS anon_9
ON CONFLICT (id) DO UPDATE SET changed = (operator_actions.changed + excluded.changed)
