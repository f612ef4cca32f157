"""The transports for real brokers. Each of them needs a package, which is installed with an extra such as
``outboxq[rabbitmq]``.

Each class is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..model.guesses import Guess, instead_of, replacement

if TYPE_CHECKING:
    from .aws import Sns as Sns
    from .aws import Sqs as Sqs
    from .kafka import Kafka as Kafka
    from .nats_jetstream import NatsJetStream as NatsJetStream
    from .rabbitmq import RabbitMQ as RabbitMQ
    from .redis_streams import RedisStreams as RedisStreams

_HOMES = {
    "Kafka": "kafka",
    "NatsJetStream": "nats_jetstream",
    "RabbitMQ": "rabbitmq",
    "RedisStreams": "redis_streams",
    "Sns": "aws",
    "Sqs": "aws",
}
"""The module that defines each class."""

if not TYPE_CHECKING:  # a type checker would accept any name
    __all__ = list(_HOMES)

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            cure = replacement(Guess.NAME, __name__, name)
            # With a `name`, Python does not add a guess of its own.
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}{instead_of(cure)}",
                name=name if cure else None,
            )
        globals()[name] = found = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        return found
