SELECT sqlite_master.name AS id FROM sqlite_master WHERE 0 = 1
