SELECT first.id, first.name, first.kind
FROM (/* overview.first-1: param_1 */) AS first
WHERE first.closed = 0
ORDER BY first.id
