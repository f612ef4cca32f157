"""Events as other programs send and receive them, in the form of CloudEvents 1.0. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from uuid import UUID

from ..errors import InvalidArgument, MessageUnreadable
from .options import is_name

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""An encoder for all events. `json.dumps` would create an encoder for each event."""
_EXTENSION = re.compile(r"[a-z0-9]{1,20}")
"""The names that CloudEvents allows for attributes."""


class Body(StrEnum):
    """The content of a message that carries an event."""

    CLOUDEVENT = "cloudevent"
    """The event in the JSON format of CloudEvents 1.0."""
    PAYLOAD = "payload"
    """Only the payload. The message's headers contain the event's attributes; a webhook's headers contain only one of
    them, the id.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class CloudEvent:
    """An event that leaves the application."""

    id: UUID
    """The id of the emit. It is the same in every delivery."""
    source: str
    """The program that emitted the event. The source and the id together identify the event."""
    type: str
    """The topic."""
    time: datetime
    """The time of the emit, by the database's clock."""
    data: str = field(repr=False)
    """The payload as JSON, unchanged."""
    partition_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def attributes(self) -> dict[str, str]:
        """The event's attributes, by their CloudEvents names. A header is also an attribute if its name, converted to
        lower case, is a valid attribute name.
        """
        own = {
            "specversion": "1.0",
            "id": str(self.id),
            "source": self.source,
            "type": self.type,
            "time": self.time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "datacontenttype": "application/json",
        }
        if self.partition_key is not None:
            own["partitionkey"] = self.partition_key
        headers = {name.lower(): value for name, value in self.headers.items() if _EXTENSION.fullmatch(name.lower())}
        return {**{name: value for name, value in headers.items() if name not in _RESERVED}, **own}

    def as_json(self) -> str:
        """Return the event in the JSON format of CloudEvents. The payload is inserted as it is stored."""
        attributes = _ENCODER.encode(self.attributes)
        return f'{attributes[:-1]},"data":{self.data}}}'


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceivedEvent:
    """An event from another program."""

    id: str
    source: str
    type: str
    data: str = field(repr=False)
    """The payload as JSON, as it arrived."""
    partition_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The other headers and attributes. The names of CloudEvents attributes begin with ``ce_``, except `traceparent`
    and `tracestate`.
    """


def read_event(
    body: bytes, headers: Mapping[str, str], *, id: str | None = None, source: str = "", type: str | None = None
) -> ReceivedEvent:
    """Return the event in a message, which is either a CloudEvent (in the JSON format, or with its attributes in
    headers) or any other JSON.

    `headers` contains the attributes under names that begin with ``ce_``. `id`, `source` and `type` are used for
    attributes that the message does not contain. Raises MessageUnreadable.
    """
    try:
        text = body.decode()
        value = _DECODER.decode(text)
    except UnicodeDecodeError:
        raise MessageUnreadable("the body is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise MessageUnreadable(f"the body is not JSON: {error}") from None
    attributes = {name.removeprefix("ce_"): text for name, text in headers.items() if name.startswith("ce_")}
    others = {name: text for name, text in headers.items() if not name.startswith("ce_")}
    data = text.strip()
    if isinstance(value, dict) and "specversion" in value:
        if value.get("data_base64") is not None:
            raise MessageUnreadable("the event's data is binary (data_base64), but only JSON can be read")
        data = _member(text, "data") if "data" in value else "null"
        attributes = _attributes_of(value)
    found = {"id": attributes.pop("id", id), "type": attributes.pop("type", type)}
    origin = attributes.pop("source", source)
    for name, one in found.items():
        if not one:
            raise MessageUnreadable(f"the message has no {name}, so {_WITHOUT[name]}")
    key = attributes.pop("partitionkey", None)
    traced = {name: attributes.pop(name) for name in _TRACE if name in attributes}
    rest = {f"ce_{name}": one for name, one in attributes.items()}
    return ReceivedEvent(
        id=str(found["id"]),
        source=origin,
        type=str(found["type"]),
        data=data,
        partition_key=key,
        headers={**others, **rest, **traced},
    )


def _attributes_of(event: Mapping[str, object]) -> dict[str, str]:
    """Return the attributes of an event in the JSON format. An attribute that is null counts as missing."""
    given = {name: one for name, one in event.items() if name != "data" and one is not None}
    try:
        return {name: one if isinstance(one, str) else json.dumps(one) for name, one in given.items()}
    except RecursionError as error:  # writing a value takes a little more of the stack than reading it
        raise MessageUnreadable(f"an attribute is nested too deeply: {error}") from None


_TRACE = ("traceparent", "tracestate")
_WITHOUT = {"id": "a duplicate would not be recognized", "type": "its task is unknown"}
_SPACE = re.compile(r"[ \t\r\n]*")


def _refused(constant: str) -> object:
    raise ValueError(f"{constant} is not strict JSON")


_DECODER = json.JSONDecoder(parse_constant=_refused)


def _member(text: str, name: str) -> str:
    """Return the text of an object's last member with this name. `text` is the object as valid JSON.

    The member is not parsed and serialized again, so its numbers stay as they are.
    """
    found, at = "", _SPACE.match(text).end() + 1  # type: ignore[union-attr]
    while text[at - 1] != "}":
        key, end = _DECODER.raw_decode(text, _SPACE.match(text, at).end())  # type: ignore[union-attr]
        begin = _SPACE.match(text, text.index(":", end) + 1).end()  # type: ignore[union-attr]
        _, end = _DECODER.raw_decode(text, begin)
        if key == name:
            found = text[begin:end]
        at = _SPACE.match(text, end).end() + 1  # type: ignore[union-attr]
    return found


_RESERVED = frozenset(
    {"specversion", "id", "source", "type", "time", "datacontenttype", "dataschema", "subject", "data", "partitionkey"}
    | {"authorization", "baggage", "cookie"}
)
"""The headers that do not become attributes, because CloudEvents uses their names or because other programs must not
see their values.
"""


def checked_source(source: object) -> str | None:
    """Return the source of an outbox's events. Raises InvalidArgument unless the source is a URI or a name without
    spaces.
    """
    if source is None:
        return None
    if not is_name(source) or re.search(r"[\s\x00-\x20\x7f]", str(source)):
        raise InvalidArgument(
            f"source must be a URI or a name without spaces, such as 'shop' or 'https://shop.example', not {source!r}"
        )
    return str(source)
