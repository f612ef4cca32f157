"""`manage.py outboxq_worker`, `outboxq_status` and `outboxq_prune`: outboxq's own commands, on a database of the settings."""
