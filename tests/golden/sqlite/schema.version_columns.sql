SELECT columns.name
FROM pragma_table_info(:pragma_table_info_1) AS columns
