SELECT sqlite_master.name
FROM sqlite_master
WHERE sqlite_master.type = :type_1 AND sqlite_master.name = :name_1
