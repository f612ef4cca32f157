INSERT INTO maintenance_jobs (name, due_at)
SELECT :name AS anon_1, :now AS anon_2
WHERE :name IS NOT NULL
ON CONFLICT DO NOTHING
