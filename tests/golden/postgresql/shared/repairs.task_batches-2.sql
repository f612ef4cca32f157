SELECT counted.id
FROM (/* checks.counted-1 */) AS counted
JOIN task_batches ON counted.id = task_batches.id
WHERE task_batches.size = counted.present AND task_batches.stage != counted.following
