"""The database: its engine, its tables, and the SQL that is sent to it."""
