DELETE FROM operator_actions
WHERE operator_actions.id IN (
    SELECT operator_actions.id
    FROM operator_actions
    WHERE
        operator_actions.at < :older
        AND operator_actions.at < (
            strftime(
                :strftime_1,
                (
                    CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                        substr(:now, :substr_3, :substr_4) AS INTEGER
                    ) + CAST(round(:least * :param_2) AS INTEGER)
                ) / 1000000,
                :strftime_3
            ) || printf(
                :printf_1,
                (
                    CAST(strftime(:strftime_2, substr(:now, :substr_1, :substr_2)) AS INTEGER) * :param_1 + CAST(
                        substr(:now, :substr_3, :substr_4) AS INTEGER
                    ) + CAST(round(:least * :param_2) AS INTEGER)
                ) % 1000000
            )
        )
    LIMIT :limit
    OFFSET :param_3
)
RETURNING id
