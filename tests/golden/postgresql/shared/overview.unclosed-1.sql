SELECT first.id AS id, first.name AS name, first.kind AS kind
FROM (/* overview.first-1 */) AS first
WHERE NOT first.closed
ORDER BY first.id
