"""The inbox, which accepts each message of another program once."""

from __future__ import annotations

from datetime import timedelta

from ..errors import InvalidTarget
from ..integration.ambient import CURRENT, OutboxRef, resolve_target
from ..store.messages.inbox import KEPT


class Inbox:
    """The messages that consumers in this application have accepted, each once."""

    def __init__(self, outbox: OutboxRef) -> None:
        self._outbox = outbox

    def accept(
        self,
        consumer: str,
        message_id: str,
        *,
        source: str = "",
        keep: timedelta | float = KEPT,
        using: object = CURRENT,
    ) -> bool:
        """Record in the transaction of `using` that the consumer has this message. Returns False if it already had it.

        The transaction must also contain what the consumer does about the message. It then has an effect only once, no
        matter how often the message arrives. If the transaction is rolled back, the message is not accepted, and its
        next arrival is handled. If another transaction is accepting the message, the call waits until it ends.

        Args:
            consumer: The name of the part of the application that handles the message. Several consumers of the same
                message each accept it once.
            message_id: The id that the message keeps when it is delivered again, such as the CloudEvents `id`.
            source: The program that chose the id, such as the CloudEvents `source`. Two programs may use the same ids.
            keep: The shortest time for which the message is remembered: a timedelta or seconds. It must be longer than
                the time in which the message can arrive again. After that time, `prune` forgets the message.
            using: The Session or connection that owns the transaction, as in `Task.using`. If it is omitted, the current
                transaction of the task or the framework is used.

        Raises InvalidArgument for a value that is out of range, and InvalidTarget if there is no transaction to write in.
        """
        what = f"inbox.accept({consumer!r})"
        if using is self._outbox:
            raise InvalidTarget(
                f"{what}: a message must be accepted in the transaction of the work that it causes, or it is lost if that "
                "work fails; write using=session with the session or connection that owns the transaction"
            )
        with resolve_target(self._outbox, using, what, is_option=True) as target:
            return self._outbox.store.inbox.accept(consumer, message_id, source=source, keep=keep, using=target)
