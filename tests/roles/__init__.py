"""The operations of each database role on PostgreSQL."""
