SELECT nextval(CAST(pg_get_serial_sequence(%(table)s::VARCHAR, 'sequence_num') AS REGCLASS)) AS number
