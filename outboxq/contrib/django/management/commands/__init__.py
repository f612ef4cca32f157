"""`manage.py outboxq_worker`, `outboxq_status` and `outboxq_prune`: the commands of outboxq on one of DATABASES."""
