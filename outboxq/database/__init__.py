"""The database: its engine, its tables, and what SQL is sent to it."""
