SELECT relays.name FROM relays LIMIT 1 OFFSET :param_1
