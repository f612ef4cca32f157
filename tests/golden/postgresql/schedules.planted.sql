SELECT schedule_ticks.tick
FROM schedule_ticks
WHERE
    schedule_ticks.schedule = %(name)s::VARCHAR
    AND schedule_ticks.tick >= %(first)s::TIMESTAMP WITH TIME ZONE
    AND schedule_ticks.tick <= %(last)s::TIMESTAMP WITH TIME ZONE
