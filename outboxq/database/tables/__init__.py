"""Define the tables in SQLAlchemy Core. The migrations create them, and all statements use them.

Statements name the tables without a schema, which is added when a statement is compiled (`dialects/plans.py`).
"""

# `as` makes a name public to type checkers.
from ..typed_table import metadata as metadata
from .messages import inbox_messages as inbox_messages
from .messages import relay_messages as relay_messages
from .messages import relay_shards as relay_shards
from .messages import relays as relays
from .operations import maintenance_jobs as maintenance_jobs
from .operations import operator_actions as operator_actions
from .operations import queue_samples as queue_samples
from .operations import task_metrics as task_metrics
from .tasks import VERSION_TABLE as VERSION_TABLE
from .tasks import dead_letters as dead_letters
from .tasks import execution_events as execution_events
from .tasks import idempotency_keys as idempotency_keys
from .tasks import key_rates as key_rates
from .tasks import partition_claims as partition_claims
from .tasks import queue_settings as queue_settings
from .tasks import sleeping_workers as sleeping_workers
from .tasks import task_executions as task_executions
from .tasks import task_leases as task_leases
from .tasks import task_outbox as task_outbox
from .tasks import task_position as task_position
from .tasks import task_subscriptions as task_subscriptions
from .tasks import version_table as version_table
from .tasks import workers as workers
from .workflows import schedule_ticks as schedule_ticks
from .workflows import task_batch_changes as task_batch_changes
from .workflows import task_batches as task_batches
from .workflows import task_schedules as task_schedules
from .workflows import task_steps as task_steps
