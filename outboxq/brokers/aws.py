"""Amazon SQS and SNS: publish in batches of ten, and receive from an SQS queue."""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, ClassVar

from ..errors import ConfigurationError
from ..model.cloud_events import Body
from ..model.transports import Confirmed, Message, Outcome, Refused, SourceConnection, Unsure
from ..model.unknown_options import naming_fields
from .letters import Destination, Letter, reason_of
from .transport import BrokerTransport, Publisher

_AT_ONCE = 10
"""The maximum number of messages in a batch."""
_BATCH_BYTES = 256 * 1024
"""The maximum size of a batch in bytes. Every region allows this size. A message above this limit is sent alone."""
_MOST_HEADERS = 10
_NAME = re.compile(r"(?!\.)(?!(?i:aws|amazon)\.)(?!.*\.\.)[\w.-]{1,256}(?<!\.)", re.ASCII)
_TIMEOUT = 10.0
"""The number of seconds within which a request must be answered."""
_SHORTEST_POLL = 1.0
"""The number of seconds that SQS waits for the first message, even if the deadline is earlier. With 0, SQS would answer
immediately, and an idle receiver would send billed requests without pausing.
"""
_LONGEST_POLL = 20.0
"""The longest wait that SQS accepts, in seconds."""
_THREADS = 8
"""The number of batches that are sent at the same time."""
_REFUSALS = frozenset(
    {"BatchRequestTooLong", "InvalidMessageContents", "InvalidParameter", "InvalidParameterValue"}
    | {"NonExistentQueue", "NotFound", "QueueDoesNotExist"}
)
"""The suffixes of the codes of errors that would recur on every attempt."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Service(BrokerTransport):
    """The settings and the batch handling that SQS and SNS share."""

    _client_package = "boto3"
    _extra = "aws"
    _name: ClassVar[str]
    """The service's name in boto3."""
    _called: ClassVar[str]
    """The noun for the destination."""
    body_argument: ClassVar[str]
    """The name of the argument for a message's body."""
    body: Body | str = Body.CLOUDEVENT
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # they may contain a secret
    """Arguments for ``boto3.client``, such as ``{"region_name": "eu-central-1"}``. boto3 itself looks up all other
    settings.
    """

    def _new_publisher(self) -> _Publisher:
        return _Publisher(self)

    def client(self) -> Any:
        """Return a new client, which does not retry requests."""
        import boto3
        from botocore.config import Config

        own = Config(connect_timeout=_TIMEOUT, read_timeout=_TIMEOUT * 3, retries={"total_max_attempts": 1})
        given = dict(self.options)
        config = own.merge(given.pop("config")) if "config" in given else own
        return boto3.client(self._name, config=config, **given)

    def __str__(self) -> str:
        to = self.destination
        return f"the {self._called} {to}" if isinstance(to, str) else f"the {self._called} of each event"

    @abstractmethod
    def send(self, client: Any, to: str, entries: Sequence[dict[str, Any]]) -> Any:
        """Send a batch, and return the answer."""


@naming_fields
@dataclass(frozen=True, kw_only=True, eq=False)
class Sqs(_Service):
    """An Amazon SQS queue that relays publish to, or that messages are received from.

    An event is confirmed when SQS has stored it. In a FIFO queue, the events with the same partition key are sent one
    after the other, and events without a key in any order. A FIFO queue drops a duplicate that arrives within five
    minutes. The deduplication id is a hash of the event's id, the kind of the body and the destination.
    """

    _name, _destination_field, _called, body_argument = "sqs", "queue_url", "SQS queue", "MessageBody"
    queue_url: Destination
    """The URL of the queue, in which ``{topic}`` stands for the event's topic, or a function that returns the URL for
    an event.
    """

    def send(self, client: Any, to: str, entries: Sequence[dict[str, Any]]) -> Any:
        """Send a batch, and return the answer."""
        return client.send_message_batch(QueueUrl=to, Entries=entries)

    def connect(self) -> SourceConnection:
        """Return a new connection that receives from the queue."""
        if not isinstance(self.queue_url, str) or "{topic}" in self.queue_url:
            raise ConfigurationError(f"cannot receive from {self}; write Sqs(queue_url='URL')")
        return _Consumer(self.client(), self.queue_url)


@naming_fields
@dataclass(frozen=True, kw_only=True, eq=False)
class Sns(_Service):
    """An Amazon SNS topic that relays publish to.

    An event is confirmed when SNS has stored it. In a FIFO topic, the events with the same partition key are sent one
    after the other, and events without a key in any order. The deduplication id is a hash of the event's id, the kind
    of the body and the destination.
    """

    _name, _destination_field, _called, body_argument = "sns", "topic_arn", "SNS topic", "Message"
    topic_arn: Destination
    """The ARN of the topic, in which ``{topic}`` stands for the event's topic, or a function that returns the ARN for
    an event.
    """

    def send(self, client: Any, to: str, entries: Sequence[dict[str, Any]]) -> Any:
        """Send a batch, and return the answer."""
        return client.publish_batch(TopicArn=to, PublishBatchRequestEntries=entries)


class _Publisher(Publisher[_Service]):
    """A transport's client, with threads that send its batches."""

    _threads: ThreadPoolExecutor | None = None

    def _send(self, letters: Sequence[Letter], outcomes: list[Outcome | None], deadline: float) -> str:
        try:
            if deadline > time.monotonic():
                self._send_in_turns(letters, outcomes, deadline)
        except Exception as error:  # noqa: BLE001 - credentials and regions raise errors of many kinds
            return reason_of(error)
        return "the service did not answer in time"

    def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _send_in_turns(self, letters: Sequence[Letter], outcomes: list[Outcome | None], deadline: float) -> None:
        if self._link is None:
            self._link = self._place.client()
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="outboxq-aws")
        assert self._threads is not None
        client, unsure = self._link, set[str]()
        for turn in _turns(letters):
            ready = [letter for letter in turn if _group(letter) not in unsure]
            sent = {self._threads.submit(self._send_batch, client, batch): batch for batch in _batches(ready)}
            done, _ = wait(sent, timeout=max(0.0, deadline - time.monotonic()))
            for future, batch in sent.items():
                for letter in batch:
                    found = future.result().get(letter.number) if future in done else None
                    outcomes[letter.number] = found
                    if found is None or isinstance(found, Unsure):
                        unsure.add(_group(letter))
        for letter in letters:
            if outcomes[letter.number] is None and _group(letter) in unsure and deadline > time.monotonic():
                outcomes[letter.number] = Unsure("an earlier event with the same partition key was not confirmed")

    def _send_batch(self, client: Any, batch: Sequence[Letter]) -> dict[int, Outcome]:
        """Send the batch, and return the outcomes, keyed by the letters' numbers."""
        from botocore.exceptions import BotoCoreError, ClientError

        place = self._place
        try:
            answer = place.send(client, batch[0].to, [_entry(one, place.body_argument) for one in batch])
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            is_final = code.rpartition(".")[2] in _REFUSALS
            return dict.fromkeys((one.number for one in batch), (Refused if is_final else Unsure)(reason_of(error)))
        except (BotoCoreError, OSError) as error:
            return dict.fromkeys((one.number for one in batch), Unsure(reason_of(error)))
        outcomes: dict[int, Outcome] = {int(one["Id"]): Confirmed() for one in answer.get("Successful", ())}
        for one in answer.get("Failed", ()):
            reason = reason_of(f"{one.get('Code')}: {one.get('Message', '')}")
            outcomes[int(one["Id"])] = Refused(reason) if one.get("SenderFault") else Unsure(reason)
        return outcomes

    def _fault_of(self, letter: Letter) -> str:
        headers = [name for name, value in letter.headers.items() if value]
        if len(headers) > _MOST_HEADERS:
            return f"the event has {len(headers)} headers, but the service accepts at most {_MOST_HEADERS}"
        wrong = next((name for name in headers if not _NAME.fullmatch(name)), None)
        return "" if wrong is None else f"the service does not accept the header name {wrong!r}"


def _group(letter: Letter) -> str:
    """Return the letter's group; the letters in one group stay in order. Each letter without a key has its own group."""
    key = letter.event.partition_key
    is_ordered = key is not None and letter.to.endswith(".fifo")
    return f"{letter.to} {key}" if is_ordered else f"{letter.to} {letter.event.id}"


def _turns(letters: Sequence[Letter]) -> Iterator[Sequence[Letter]]:
    """Divide the letters into successive parts, each of which has at most one letter from each group.

    Some events in a batch may fail. A later event from the same group in that batch would then overtake the failed
    event, and deduplication would preserve the wrong order.
    """
    turns: list[list[Letter]] = []
    used: defaultdict[str, int] = defaultdict(int)
    for letter in letters:
        number = used[_group(letter)]
        used[_group(letter)] += 1
        if number == len(turns):
            turns.append([])
        turns[number].append(letter)
    yield from turns


def _batches(letters: Sequence[Letter]) -> Iterator[Sequence[Letter]]:
    """Divide the letters into batches of at most ten letters and 256 KiB, each for one destination."""
    by_place: defaultdict[str, list[Letter]] = defaultdict(list)
    for letter in letters:
        by_place[letter.to].append(letter)
    for part in by_place.values():
        batch: list[Letter] = []
        size = 0
        for letter in part:
            own = len(letter.body) + sum(len(name) + len(value.encode()) + 6 for name, value in letter.headers.items())
            if batch and (len(batch) == _AT_ONCE or size + own > _BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(letter)
            size += own
        if batch:
            yield batch


def _entry(letter: Letter, body_argument: str) -> dict[str, Any]:
    event = letter.event
    entry: dict[str, Any] = {"Id": str(letter.number), body_argument: letter.body.decode()}
    if letter.headers:
        entry["MessageAttributes"] = {
            name: {"DataType": "String", "StringValue": value} for name, value in letter.headers.items() if value
        }
    if letter.to.endswith(".fifo"):
        entry |= {
            "MessageGroupId": str(event.id if event.partition_key is None else event.partition_key),
            "MessageDeduplicationId": sha256(letter.identity.encode()).hexdigest(),  # at most 128 characters
        }
    return entry


class _Consumer:
    """A connection that receives from an SQS queue."""

    def __init__(self, client: Any, queue_url: str) -> None:
        self._client, self._queue_url = client, queue_url

    def receive(self, limit: int, deadline: float) -> Sequence[Message]:
        found: list[Message] = []
        while len(found) < limit:
            seconds = 0 if found else int(max(_SHORTEST_POLL, min(_LONGEST_POLL, deadline - time.monotonic())))
            answer = self._client.receive_message(
                QueueUrl=self._queue_url,
                MaxNumberOfMessages=min(_AT_ONCE, limit - len(found)),
                WaitTimeSeconds=seconds,
                MessageAttributeNames=["All"],
            )
            arrived = answer.get("Messages", ())
            found += map(self._message, arrived)
            if not arrived or time.monotonic() >= deadline:
                break
        return found

    def acknowledge(self, messages: Sequence[Message]) -> None:
        for start in range(0, len(messages), _AT_ONCE):
            part = messages[start : start + _AT_ONCE]
            entries = [{"Id": str(number), "ReceiptHandle": one.tag} for number, one in enumerate(part)]
            answer = self._client.delete_message_batch(QueueUrl=self._queue_url, Entries=entries)
            if failed := answer.get("Failed"):
                raise ConnectionError(f"{len(failed)} messages were not deleted: {failed[0].get('Code')}")

    def close(self) -> None:
        with suppress(Exception):
            self._client.close()

    def _message(self, one: Mapping[str, Any]) -> Message:
        attributes = one.get("MessageAttributes", {})
        headers = {name: value["StringValue"] for name, value in attributes.items() if "StringValue" in value}
        name = self._queue_url.rpartition("/")[2]
        return Message(
            body=one["Body"].encode(),
            headers=headers,
            id=one["MessageId"],
            type=name,
            source=name,
            tag=one["ReceiptHandle"],
        )
