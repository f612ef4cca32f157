DELETE FROM queue_samples
WHERE queue_samples.at < %(before)s::TIMESTAMP WITH TIME ZONE
