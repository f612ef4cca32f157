SELECT maintenance_jobs.name
FROM maintenance_jobs
WHERE maintenance_jobs.name = %(name)s::VARCHAR
FOR UPDATE SKIP LOCKED
