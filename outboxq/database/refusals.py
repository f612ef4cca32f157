"""Say what to pass instead of an object that is no transaction."""

from __future__ import annotations

from sqlalchemy import Engine

from .drivers import is_async_psycopg


def refusal(using: object) -> str:
    """Return the message for an object in whose transaction nothing can be written: it says what to pass instead."""
    kind = type(using)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(using, type):
        return f"{using.__name__} is a class and has no transaction; pass the instance whose transaction the task belongs to"
    if any(base.__module__ == "sqlalchemy.orm.session" and base.__name__ == "sessionmaker" for base in kind.__mro__):
        return "a sessionmaker has no transaction; pass the Session that it made, whose transaction the task belongs to"
    if isinstance(using, Engine):
        return "an Engine has no transaction; pass the Session or Connection whose transaction the task belongs to"
    if any(base.__module__ == "outboxq.outbox" for base in kind.__mro__):
        return "this task belongs to another Outbox; pass that one, or a Session or Connection to its database"
    if name.startswith("sqlalchemy.ext.asyncio"):
        return f"outboxq is synchronous; inside an {kind.__name__} write: await it.run_sync(lambda s: task.using(s).enqueue(…))"
    if is_async_psycopg(using):
        return "outboxq is synchronous; enqueue on a psycopg.Connection"
    return (
        f"cannot enqueue on {name}; pass a SQLAlchemy Session or Connection, a psycopg or sqlite3 connection, a Django "
        "connection or alias, or the context of a transactional task"
    )
