"""A project's outboxes: one for each database, each with a Store. They are created on first use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from django.apps import apps
from django.conf import settings
from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.utils.module_loading import import_string
from sqlalchemy import Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool, Pool

from ...database.drivers import is_unreached
from ...database.engine import make_engine, reserve
from ...database.privileges import Feature
from ...database.target import Target
from ...database.using import DjangoTarget, target_of
from ...errors import ConfigurationError, InvalidArgument, InvalidTarget, UnsupportedDatabase
from ...integration.hooks import Hook, HookCalls
from ...outbox import Outbox
from ...task import Task
from ..framework_store import FrameworkStore
from .integration import DjangoIntegration, DjangoRegistry

APP = "outboxq.contrib.django"
SETTINGS: Mapping[str, Any] = {
    "SCHEMA": None,
    "HOOKS": (),
    "VERSION": "",
    "RETENTION": None,
    "OUTAGE_TIMEOUT": 5,
    "SOURCE": None,
}
"""The keys of OUTBOXQ in the settings, with their defaults.

SCHEMA is the PostgreSQL schema for outboxq's tables. HOOKS are import paths of hooks or of their classes. VERSION,
RETENTION, OUTAGE_TIMEOUT and SOURCE are the `version`, the `retention`, the `outage_timeout` and the `source` of each
`Outbox`.
"""


class DjangoOutbox(Outbox):
    """An outbox in one of the databases in `DATABASES`. `task.enqueue()` writes through Django's own connection, in that
    connection's transaction.

    Outside `transaction.atomic()`, the call writes in a separate transaction, as a model's `save()` does.
    """

    tasks: DjangoRegistry

    def __init__(self, alias: str = "default") -> None:
        """Create the outbox. Raises ConfigurationError if OUTBOXQ in the settings has unknown keys or invalid values."""
        self.alias = alias
        self._chosen: tuple[str, DjangoStore] | None = None
        self._choosing = threading.Lock()
        try:
            super().__init__(
                schema=setting("SCHEMA"),
                integration=DjangoIntegration(alias),
                version=setting("VERSION"),
                retention=setting("RETENTION"),
                outage_timeout=setting("OUTAGE_TIMEOUT"),
                source=setting("SOURCE"),
            )
        except InvalidArgument as error:
            raise ConfigurationError(f"OUTBOXQ in the settings: {error}") from None

    def bind(self, database: str | URL | Engine) -> None:  # noqa: ARG002
        """Raise ConfigurationError, because DATABASES in the settings determines the database."""
        raise ConfigurationError(f"this outbox is in Django's database {self.alias!r}; change DATABASES to move it")

    @cached_property
    def hooks(self) -> HookCalls | None:
        """The hooks named in the settings. They are imported on first use, because their modules may need the project's
        models.

        Raises ConfigurationError for a path that does not lead to a hook.

        """
        return HookCalls.of(hooks_of_settings())

    @property
    def is_bound(self) -> bool:
        """True, because the settings name the database."""
        return True

    @property
    def store(self) -> DjangoStore:
        """The Store. Its methods use Django's connection only with ``using=``; without it, they create an engine.

        This property follows the settings: when a test changes the database's name, a new Store is created.
        """
        if self._stand_in is not None:
            return self._stand_in.store  # type: ignore[return-value]  # it works in the transaction of Django's connection
        database = repr(
            [connections[self.alias].settings_dict[key] for key in ("ENGINE", "NAME", "HOST", "PORT", "USER")]
        )
        with self._choosing:
            if self._chosen is None or self._chosen[0] != database:
                self._chosen = database, self._of_application(DjangoStore(alias=self.alias, schema=self.schema))
            return self._chosen[1]

    def task_of(self, task: object) -> Task[..., Any]:
        """Return this outbox's task for a schedule. The task may be a `django.tasks` task.

        Raises ConfigurationError for a Django task that belongs to another backend or database.
        """
        path = getattr(task, "module_path", None)
        if not isinstance(path, str) or isinstance(task, Task):
            return super().task_of(task)
        from .task_adapter import adapter_of

        adapter = adapter_of(task, self.alias)
        if adapter is None:
            why = f"its backend in TASKS is not an outboxq backend for the database {self.alias!r}"
            raise ConfigurationError(f"the task {path} does not use this outbox: {why}")
        return adapter

    def _registry(self) -> DjangoRegistry:
        return DjangoRegistry(self.alias)

    def _database_of_the_environment(self) -> None:
        return None  # OUTBOXQ_DATABASE_URL is for programs without settings


class DjangoStore(FrameworkStore):
    """A Store for one of the databases in `DATABASES`. It creates an engine only for work that Django's own connection
    cannot do.
    """

    def __init__(self, engine: Engine | None = None, *, alias: str | None = None, **options: Any) -> None:
        """Create the Store. If `alias` is None, the new Store is a worker's copy of another Store, with its own engine."""
        super().__init__(engine, **options)
        self.alias = alias
        self._migrated = alias
        self._making = threading.Lock()

    @property
    def bound_engine(self) -> Engine:
        """The engine. Raises ConfigurationError for a database that no worker can share."""
        if self.alias is not None:
            with self._making:
                if self.engine is None:
                    # No pool: the engine is rarely used, and an open connection would keep a test database from being dropped.
                    self.engine = engine_of(self.alias, poolclass=NullPool)
        return super().bound_engine

    def may_pass(self, error: BaseException) -> bool:
        cause = error.__cause__ if isinstance(error, Error) else None
        if is_unreached(cause):
            return True
        return super().may_pass(DBAPIError("", None, cause) if isinstance(cause, Exception) else error)

    def ensure_current_on_django(self) -> None:
        """Check the tables as `ensure_current` does, but on Django's connection, which must be inside `atomic()`."""
        self.check_schema(target_of(self.alias, schema=self.schema))

    def reserved(self, gone: threading.Event, *, hurried: bool = False) -> Self:
        made = super().reserved(gone, hurried=hurried)
        made._migrated = self._migrated  # noqa: SLF001 - of the same class
        return made

    def reserve_engine(self) -> Engine:
        return super().reserve_engine() if self.alias is None else reserve(engine_of(self.alias))

    def join(self, using: object, enqueues: frozenset[Feature] | None = None) -> Target:
        target = target_of(using, schema=self.schema)
        self.check_database(target)
        self._check_tables(target, enqueues)
        return target

    def check_database(self, target: Target) -> None:
        if self.alias is None or not isinstance(target, DjangoTarget):
            super().check_database(target)
            return
        there = target.connection
        if there.alias != self.alias and _place(there) != _place(connections[self.alias]):
            cure = f"a task must be stored with its business rows: declare it on outboxes[{there.alias!r}]"
            raise InvalidTarget(f"the connection is to {there.alias!r}, but the outbox is in {self.alias!r}; {cure}")

    @property
    def upgrade_command(self) -> str:
        other = "" if self._migrated in {None, DEFAULT_DB_ALIAS} else f" --database {self._migrated}"
        missing = "" if apps.is_installed(APP) else f", after you have added {APP!r} to INSTALLED_APPS"
        return f"manage.py migrate{other}{missing}"


class Outboxes:
    """The outboxes, keyed by alias, like `django.db.connections`. All threads share the outboxes, because an outbox
    contains the tasks.
    """

    def __init__(self) -> None:
        self._made: dict[str, DjangoOutbox] = {}
        self._making = threading.Lock()

    def __getitem__(self, alias: str) -> DjangoOutbox:
        """Return the outbox in the database with this alias. Raises ConfigurationError if DATABASES does not contain
        the alias.
        """
        with self._making:
            if alias not in self._made:
                if alias not in connections:
                    known = ", ".join(map(repr, connections))
                    raise ConfigurationError(f"DATABASES in the settings has no database {alias!r}; it has {known}")
                self._made[alias] = DjangoOutbox(alias)
            return self._made[alias]

    def forget_hooks(self) -> None:
        """Make each outbox read its hooks from the settings again."""
        for outbox in self._made.values():
            vars(outbox).pop("hooks", None)

    def made(self) -> list[str]:
        """Return the aliases whose outboxes have tasks."""
        return [alias for alias, outbox in self._made.items() if any(outbox.tasks)]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the aliases in DATABASES."""
        return iter(connections)


outboxes = Outboxes()


def setting(name: str) -> Any:
    """Return the value of one of SETTINGS. Raises ConfigurationError if OUTBOXQ is not a dict or has unknown keys."""
    given = getattr(settings, "OUTBOXQ", {})
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"OUTBOXQ in the settings takes a dict, not {given!r:.80}")
    unknown = sorted(set(given) - set(SETTINGS))
    if unknown:
        known = ", ".join(SETTINGS)
        raise ConfigurationError(
            f"OUTBOXQ in the settings has unknown keys: {', '.join(unknown)}; the known keys are {known}"
        )
    return given.get(name, SETTINGS[name])


def hooks_of_settings() -> list[Hook]:
    """Return the hooks named in the settings. Raises ConfigurationError for a path that does not lead to a hook."""
    paths = setting("HOOKS")
    if isinstance(paths, str) or not isinstance(paths, Iterable) or not all(isinstance(path, str) for path in paths):
        raise ConfigurationError("OUTBOXQ in the settings: HOOKS takes a list of paths, such as 'shop.hooks.Timing'")
    with _importing:
        # The import of a hook may ask for the hooks again, so the first one to be stored is the one that counts.
        return [_imported.get(path) or _imported.setdefault(path, _imported_hook(path)) for path in paths]


def _imported_hook(path: str) -> Hook:
    try:
        found = import_string(path)
    except ImportError as error:
        raise ConfigurationError(f"OUTBOXQ in the settings: the hook {path!r} cannot be imported: {error}") from error
    hook = found() if isinstance(found, type) and issubclass(found, Hook) else found
    if not isinstance(hook, Hook):
        raise ConfigurationError(f"OUTBOXQ in the settings: {path!r} is neither a hook nor a subclass of outboxq.Hook")
    return hook


def _forget(*, setting: str, **_: Any) -> None:
    """Reload the hooks after a test changes the settings."""
    if setting == "OUTBOXQ":
        outboxes.forget_hooks()


setting_changed.connect(_forget, dispatch_uid="outboxq.contrib.django.django_outbox")
_importing = threading.RLock()
_imported: dict[str, Hook] = {}
"""The hooks, keyed by path. All outboxes of the project share them."""


def _place(connection: Any) -> list[Any]:
    return [connection.vendor, *(str(connection.settings_dict[key] or "") for key in ("NAME", "HOST", "PORT"))]


def engine_of(alias: str, *, poolclass: type[Pool] | None = None) -> Engine:
    """Return an engine for one of Django's databases. The engine does not connect yet.

    Raises ConfigurationError for an in-memory database, and UnsupportedDatabase for a database that outboxq does not
    support.
    """
    connection = connections[alias]
    if connection.vendor not in _ENGINES:
        raise UnsupportedDatabase(
            f"the database {alias!r} is {connection.display_name}, which outboxq does not support"
        )
    return _ENGINES[connection.vendor](connection, poolclass)


def _sqlite(connection: Any, poolclass: type[Pool] | None) -> Engine:
    name = connection.settings_dict["NAME"]
    if connection.is_in_memory_db():
        cure = "store the database in a file (in tests, set DATABASES[…]['TEST']['NAME'])"
        raise ConfigurationError(f"a worker cannot share the in-memory SQLite database {connection.alias!r}; {cure}")
    if str(name).startswith("file:"):
        return make_engine(URL.create("sqlite", database=str(name), query={"uri": "true"}), poolclass=poolclass)
    return make_engine(URL.create("sqlite", database=str(Path(name).resolve())), poolclass=poolclass)


def _postgresql(connection: Any, poolclass: type[Pool] | None) -> Engine:
    """Return an engine that connects as Django does, including OPTIONS but not the parameters that Django adds for its
    own use.
    """
    alias = connection.alias
    engine = make_engine(_called(connection.settings_dict), poolclass=poolclass)

    def connecting(_dialect: Any, _record: Any, _given: Any, parameters: dict[str, Any]) -> None:
        parameters.update(_parameters(connections[alias]))  # read each time, because a password may be rotated

    event.listen(engine, "do_connect", connecting)
    return engine


def _called(settings: Mapping[str, Any]) -> URL:
    """Return the database's URL for messages and logs. The URL names the server, but does not contain the password."""
    url = URL.create("postgresql+psycopg", username=settings.get("USER") or None, database=settings["NAME"] or None)
    host, port = str(settings.get("HOST") or ""), str(settings.get("PORT") or "")
    if not host or "," in host:
        return url  # a URL cannot express libpq's default, its service file, or Django's list of servers
    if host.startswith("/"):
        return url.set(query={"host": host})
    return url.set(host=host, port=int(port) if port.isdigit() else None)


def _parameters(connection: Any) -> dict[str, Any]:
    given: Mapping[str, Any] = connection.settings_dict["OPTIONS"]
    parameters = dict(connection.get_connection_params())
    for own in ("cursor_factory", "context", "prepare_threshold"):
        parameters.pop(own, None)
    if "prepare_threshold" in given or connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
        parameters["prepare_threshold"] = given.get("prepare_threshold")  # for a pooler that does not keep sessions
    if role := given.get("assume_role"):
        escaped = "".join(f"\\{one}" if one in "\\ " else one for one in role)
        parameters["options"] = f"{parameters.get('options', '')} -c role={escaped}".strip()
    return parameters


_ENGINES: dict[str, Callable[[Any, type[Pool] | None], Engine]] = {"sqlite": _sqlite, "postgresql": _postgresql}
