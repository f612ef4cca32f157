SELECT found.id, found.args_not_an_object, found.result_not_json, found.lease_too_long, found.hold_without_key
FROM (SELECT task_executions.id AS id, coalesce(CASE WHEN (json_valid(task_executions.args) = 1) THEN
    json_type(task_executions.args) ELSE '' END != 'object', 0) AS args_not_an_object, coalesce(task_executions.result
    IS NOT NULL AND json_valid(task_executions.result) != 1, 0) AS result_not_json,
    coalesce(task_executions.lease_seconds > 3153600000.0 OR task_executions.timeout_seconds > 3153600000.0, 0) AS
    lease_too_long, coalesce(task_executions.on_dead_letter = 'hold' AND task_executions.partition_key IS NULL, 0) AS
    hold_without_key
FROM task_executions) AS found
WHERE found.args_not_an_object = 1 OR found.result_not_json = 1 OR found.lease_too_long = 1 OR found.hold_without_key =
    1
