"""outboxq's values: statuses, event types, and the frozen records that are passed between the packages. No I/O."""

# `as` makes a name public to type checkers.
from .options import LONGEST as LONGEST
from .options import MAX_ATTEMPT as MAX_ATTEMPT
from .options import OnDeadLetter as OnDeadLetter
from .options import TaskOptions as TaskOptions
from .options import TimeoutAction as TimeoutAction
from .options import duration as duration
from .records import EARLIEST as EARLIEST
from .records import ENDS_CLAIM as ENDS_CLAIM
from .records import INTERRUPTED as INTERRUPTED
from .records import LATEST as LATEST
from .records import MAX_INTERRUPTIONS as MAX_INTERRUPTIONS
from .records import MAX_NUMBER as MAX_NUMBER
from .records import MAX_RECOVERIES as MAX_RECOVERIES
from .records import STATUS_AFTER as STATUS_AFTER
from .records import SUSPECT as SUSPECT
from .records import TERMINAL as TERMINAL
from .records import UNKNOWN_TASK as UNKNOWN_TASK
from .records import Cancel as Cancel
from .records import Claim as Claim
from .records import EventType as EventType
from .records import ExecutionEvent as ExecutionEvent
from .records import Handle as Handle
from .records import NewTask as NewTask
from .records import OnConflict as OnConflict
from .records import Outcome as Outcome
from .records import Retry as Retry
from .records import Snooze as Snooze
from .records import TaskExecution as TaskExecution
from .records import TaskStatus as TaskStatus
from .records import TaskTimeout as TaskTimeout
from .records import Waiting as Waiting
from .records import event_type_of as event_type_of
from .records import status_after as status_after
