DELETE FROM task_metrics
WHERE task_metrics.at < %(before)s::TIMESTAMP WITH TIME ZONE
