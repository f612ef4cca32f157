SELECT task_metrics.at
FROM task_metrics
WHERE task_metrics.at < :before AND task_metrics.seconds < :seconds
ORDER BY task_metrics.at DESC
LIMIT :param_1
OFFSET :param_2
