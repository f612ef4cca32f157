-- accepted
INSERT INTO inbox_messages (consumer, source, message_id, expires_at)
VALUES (
    :consumer,
    :source,
    :message_id,
    (
        strftime(
            :strftime_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(:keep_seconds * :param_2) AS INTEGER)
            ) / 1000000,
            :strftime_3
        ) || printf(
            :printf_1,
            (
                CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                    substr(:now, :substr_3, :substr_4) AS INTEGER
                ) + CAST(round(:keep_seconds * :param_2) AS INTEGER)
            ) % 1000000
        )
    )
)
ON CONFLICT DO NOTHING
RETURNING 1 AS id
