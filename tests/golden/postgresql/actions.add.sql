WITH clock AS MATERIALIZED (
    SELECT coalesce(%(now)s::TIMESTAMP WITH TIME ZONE, clock_timestamp()) AS now
)
INSERT INTO operator_actions (id, operator, interface, action, target, details, reason, changed, at)
SELECT
    %(id)s::UUID AS anon_1,
    %(operator)s::VARCHAR AS anon_2,
    %(interface)s::VARCHAR AS anon_3,
    %(action)s::VARCHAR AS anon_4,
    %(named_target)s::VARCHAR AS anon_5,
    %(details)s::VARCHAR AS anon_6,
    %(reason)s::VARCHAR AS anon_7,
    %(changed)s::BIGINT AS anon_8,
    (SELECT clock.now FROM clock) AS anon_9
ON CONFLICT (id) DO UPDATE SET changed = (operator_actions.changed + excluded.changed)
