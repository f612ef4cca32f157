"""Log-ins with the dashboard's token."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from ..errors import ConfigurationError
from .addresses import Client
from .login_tries import LoginTries
from .signing import derived, matches, opened, sealed

log = logging.getLogger("outboxq.web")

COOKIE: Final = "outboxq"
SECONDS: Final = 12 * 3600
"""Seconds for which a log-in holds."""
_SHORTEST: Final = 16
"""Minimum number of characters of a token."""
_MOST_ENDED: Final = 10_000


class Sessions:
    """Checks the token, and the cookies of those who had it.

    A cookie holds a number and its end, signed with a key that comes from the token: every process with this token accepts it, and
    none does after the token was changed. A log-out is known to this process only; the browser forgets the cookie.
    """

    def __init__(self, token: str) -> None:
        """Raises ConfigurationError for a token that is short enough to be guessed, or that could not be typed."""
        if token != token.strip():
            raise ConfigurationError(
                "the dashboard's token begins or ends with a space or a line break; take those away"
            )
        if len(token) < _SHORTEST:
            raise ConfigurationError(
                f"the dashboard's token has {len(token)} characters, which can be guessed; take one of {_SHORTEST} or more, such as "
                "that of: python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
        self._token = token
        self.key = derived(token.encode(), "outboxq dashboard")
        """The key of what browsers keep."""
        self._tries = LoginTries()
        self._lock = threading.Lock()
        self._ended: OrderedDict[str, float] = OrderedDict()

    def check(self, token: str, client: Client) -> bool:
        """Return whether the token is right. Raises TooManyTries if this address, or all together, gave too many wrong ones."""
        wait = self._tries.begin(client.network)
        if wait is not None:
            raise TooManyTries(wait)
        if not matches(token, self._token):
            log.warning("a wrong token was given from %s", client.address or "an unknown address")
            return False
        self._tries.succeed(client.network)
        return True

    def begin(self) -> tuple[str, str]:
        """Return the id of a new session, and the value of its cookie."""
        session_id = secrets.token_hex(16)
        return session_id, sealed(self.key, session_id, seconds=SECONDS)

    def find(self, cookies: Mapping[str, str], client: Client) -> str | None:
        """Return the id of the session that the browser has. None: none, or one that is over."""
        session_id = opened(self.key, cookies.get(client.cookie(COOKIE), ""))
        with self._lock:
            return None if session_id in self._ended else session_id

    def end(self, session_id: str) -> None:
        """End a session before its time."""
        with self._lock:
            now = time.monotonic()
            self._ended[session_id] = now + SECONDS
            while self._ended and (len(self._ended) > _MOST_ENDED or next(iter(self._ended.values())) < now):
                self._ended.popitem(last=False)


class TooManyTries(Exception):
    """Too many wrong tokens were given; after `seconds` another one may be."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds
