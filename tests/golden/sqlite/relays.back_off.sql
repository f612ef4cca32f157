UPDATE relays
SET
    failing_since=CASE
        WHEN (:restarts = 1 OR relays.failing_since IS NULL) THEN :now
        ELSE relays.failing_since
    END,
    failures=CASE WHEN (:restarts = 1 OR relays.failing_since IS NULL) THEN 1 ELSE relays.failures + 1 END,
    next_try_at=(
        strftime(
            :strftime_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(:pause_seconds * :param_2) AS INTEGER)
            ) / 1000000,
            :strftime_3
        ) || printf(
            :printf_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(:pause_seconds * :param_2) AS INTEGER)
            ) % 1000000
        )
    ),
    last_error=:error
WHERE relays.name = :relay AND (relays.next_try_at IS NULL OR relays.next_try_at <= :now)
