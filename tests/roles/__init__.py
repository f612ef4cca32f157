"""What roles do on PostgreSQL, each operation by itself."""
