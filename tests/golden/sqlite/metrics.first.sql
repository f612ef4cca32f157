SELECT min(task_metrics.at) AS at FROM task_metrics
