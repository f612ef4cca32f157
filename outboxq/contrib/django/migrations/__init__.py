"""Django's migrations: one for each release point of outboxq's own, which they run."""
