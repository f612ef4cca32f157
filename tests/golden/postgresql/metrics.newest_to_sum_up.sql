SELECT task_metrics.at
FROM task_metrics
WHERE task_metrics.at < %(before)s::TIMESTAMP WITH TIME ZONE AND task_metrics.seconds < %(seconds)s::INTEGER
ORDER BY task_metrics.at DESC
LIMIT %(param_1)s::INTEGER
