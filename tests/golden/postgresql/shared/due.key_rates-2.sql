SELECT far.queue
FROM (/* due.far-1 */) AS far
WHERE far.free AND NOT far.is_concurrency OR far.n = 1000
