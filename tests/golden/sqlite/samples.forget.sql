DELETE FROM queue_samples WHERE queue_samples.at < :before
