SELECT found.id, found.args_not_an_object, found.result_not_json, found.lease_too_long, found.hold_without_key
FROM (SELECT task_executions.id AS id, coalesce(NOT CASE WHEN (task_executions.args ~ '^\{(?:"[^"\\]*":
    ?(?:"[^"\\]*"|-?[0-9.]+|true|false|null),? ?)*\}$') THEN true ELSE (regexp_replace(task_executions.args,
    '"([^"\\]|\\.)*"', '0', 'g') ~
    '^[[:space:]]*\{([][{}:,[:space:]]|-?[0-9][0-9.eE+-]*|true|false|null)*\}[[:space:]]*$') AND
    length(translate(regexp_replace(task_executions.args, '"([^"\\]|\\.)*"', '0', 'g'), '{[', '')) =
    length(translate(regexp_replace(task_executions.args, '"([^"\\]|\\.)*"', '0', 'g'), '}]', '')) END, false) AS
    args_not_an_object, coalesce(task_executions.result IS NOT NULL AND NOT CASE WHEN (task_executions.result ~
    '^(?:"[^"\\]*"|-?[0-9.]+|true|false|null)$') THEN true ELSE (regexp_replace(task_executions.result,
    '"([^"\\]|\\.)*"', '0', 'g') ~ '^([][{}:,[:space:]]|-?[0-9][0-9.eE+-]*|true|false|null)+$') AND
    length(translate(regexp_replace(task_executions.result, '"([^"\\]|\\.)*"', '0', 'g'), '{[', '')) =
    length(translate(regexp_replace(task_executions.result, '"([^"\\]|\\.)*"', '0', 'g'), '}]', '')) END, false) AS
    result_not_json, coalesce(task_executions.lease_seconds > 3153600000.0 OR task_executions.timeout_seconds >
    3153600000.0, false) AS lease_too_long, coalesce(task_executions.on_dead_letter = 'hold' AND
    task_executions.partition_key IS NULL, false) AS hold_without_key
FROM task_executions) AS found
WHERE found.args_not_an_object OR found.result_not_json OR found.lease_too_long OR found.hold_without_key
