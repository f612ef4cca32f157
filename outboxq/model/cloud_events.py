"""An emitted event in the form of CloudEvents 1.0, which other programs receive. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from uuid import UUID

from ..errors import InvalidArgument
from .options import is_name

_EXTENSION = re.compile(r"[a-z0-9]{1,20}")
"""The names that CloudEvents allows for attributes."""


class Body(StrEnum):
    """The content of a message that carries an event."""

    CLOUDEVENT = "cloudevent"
    """The event in the JSON format of CloudEvents 1.0."""
    PAYLOAD = "payload"
    """Only the payload. The attributes of the event are in the headers of the message; a webhook has only the id there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CloudEvent:
    """An event that leaves the application."""

    id: UUID
    """The id of the emit. It is the same at every delivery."""
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
        """The attributes of the event by their names in CloudEvents. A header is an attribute if its name, in lower
        case, is allowed there.
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
        attributes = json.dumps(self.attributes, ensure_ascii=False, separators=(",", ":"))
        return f'{attributes[:-1]},"data":{self.data}}}'


_RESERVED = frozenset(
    {"specversion", "id", "source", "type", "time", "datacontenttype", "dataschema", "subject", "data", "partitionkey"}
    | {"authorization", "baggage", "cookie"}
)
"""Names that a header cannot take: those of CloudEvents, and headers that are not for other programs."""


def checked_source(source: object) -> str | None:
    """Return the source of an outbox's events. Raises InvalidArgument unless it is a URI or a name without spaces."""
    if source is None:
        return None
    if not is_name(source) or re.search(r"[\s\x00-\x20\x7f]", str(source)):
        raise InvalidArgument(
            f"source must be a URI or a name without spaces, such as 'shop' or 'https://shop.example', not {source!r}"
        )
    return str(source)
