SELECT far.queue
FROM (/* due.far-1 */) AS far
WHERE far.free = 1 AND far.is_concurrency = 0 OR far.n = 1000
