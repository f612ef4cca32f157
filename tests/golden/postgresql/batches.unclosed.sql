SELECT first.id, first.name, first.kind
FROM (/* overview.first-1 */) AS first
WHERE NOT first.closed
ORDER BY first.id
