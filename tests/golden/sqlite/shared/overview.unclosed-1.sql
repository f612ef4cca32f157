SELECT first.id AS id, first.name AS name, first.kind AS kind
FROM (/* overview.first-1: param_1 */) AS first
WHERE first.closed = 0
ORDER BY first.id
