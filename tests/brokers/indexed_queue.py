"""A replacement for moto's queue whose operations do not read all messages."""

from __future__ import annotations

from itertools import chain
from typing import Any

from moto.core.utils import unix_time_millis
from moto.sqs import models
from moto.sqs.exceptions import ReceiptHandleIsInvalid


class IndexedQueue(models.Queue):
    """A FIFO queue that does not slow down when it contains 20,000 messages.

    Whenever moto reads a queue's attribute, it counts all messages three times and reads the clock for each. This happens four times
    for each message sent, and three times for each message received. moto also uses a whole CPU while all messages of a queue wait
    behind one that is being received, and it loses a message that arrives during a deletion. Otherwise, this class works like moto's.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._sent: dict[str, models.Message] = {}
        """The last message with each deduplication id."""

    # These counts are attributes of a queue that no test reads.

    @property
    def approximate_number_of_messages(self) -> int:
        return len(self._messages)

    @property
    def approximate_number_of_messages_delayed(self) -> int:
        return 0

    @property
    def approximate_number_of_messages_not_visible(self) -> int:
        return 0

    @property
    def messages(self) -> list[models.Message]:
        """The messages that a receiver can get now, except those of a group from which another receiver has one."""
        now, pending = unix_time_millis(), set(self.pending_messages)
        groups = {one.group_id for one in pending if one.visible_at >= now} if self.fifo_queue else set()
        return [
            one
            for one in list(self._messages)
            if now > one.visible_at
            and now >= one.delayed_until
            and (one.group_id is None or one.group_id not in groups)
        ]

    def add_message(self, message: models.Message) -> None:
        """Add the message unless the queue contains one with the same deduplication id that is less than 5 minutes old."""
        with self._messages_lock:
            name = message.deduplication_id
            earlier = self._sent.get(name) if self.fifo_queue and name else None
            if earlier is not None and earlier in self._messages:
                seconds = (message.sent_timestamp - earlier.sent_timestamp) / 1000
                if seconds < models.DEDUPLICATION_TIME_IN_SECONDS:
                    return
            if name:
                self._sent[name] = message
            self._messages.append(message)
            self._messages_lock.notify_all()

    def delete_message(self, receipt_handle: str) -> None:
        """Delete the message that was received with this handle."""
        if receipt_handle in self.deleted_messages:
            return
        with self._messages_lock:
            for one in chain(list(self.pending_messages), list(self._messages)):
                if one.had_receipt_handle(receipt_handle):
                    self.pending_messages.discard(one)
                    self.deleted_messages.update(one.all_receipt_handles)
                    if one in self._messages:
                        self._messages.remove(one)
                    return
        raise ReceiptHandleIsInvalid


def install() -> None:
    """Make moto create queues of this class."""
    models.Queue = IndexedQueue
