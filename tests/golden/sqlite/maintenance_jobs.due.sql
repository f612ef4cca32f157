SELECT CASE
    WHEN (maintenance_jobs.done_at > :now) THEN 0.0
    ELSE (
        (
            CAST(strftime(:strftime_1, substr(maintenance_jobs.due_at, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                substr(maintenance_jobs.due_at, :substr_3, :substr_4) AS INTEGER
            )
        ) - (
            CAST(strftime(:strftime_2, substr(:now, :substr_5, :substr_6)) AS INTEGER) * :param_2 + CAST(
                substr(:now, :substr_7, :substr_8) AS INTEGER
            )
        )
    ) / (1000000.0 + 0.0)
END AS seconds
FROM maintenance_jobs
WHERE maintenance_jobs.name = :name
