SELECT schedule_ticks.tick
FROM schedule_ticks
WHERE schedule_ticks.schedule = :name AND schedule_ticks.tick >= :first AND schedule_ticks.tick <= :last
