"""The style sheet and scripts of the dashboard, read once from the package."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Request, Response

PREFIX: Final = "/static/"
"""The beginning of their paths below the dashboard."""

_FOR_EVER: Final = "public, max-age=31536000, immutable"
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticFile:
    """One file: its bytes, its media type and the beginning of its hash."""

    content: bytes
    media_type: str
    version: str


class StaticFiles:
    """Answers requests for the files. They are looked up by name in memory, so no path leads out of the package."""

    def __init__(self) -> None:
        self._files = _read()

    def path(self, name: str) -> str:
        """Return the path of the file below the dashboard. It changes with the content, so that browsers may keep the file."""
        return f"{PREFIX}{self._files[name].version}/{name}"

    def answer(self, request: Request) -> Response:
        """Return the file that the path names. A path with another version is that of another release: its file is not kept."""
        version, _, name = request.path.removeprefix(PREFIX).partition("/")
        found = self._files.get(name)
        if found is None:
            raise NotFound
        response = Response(found.content, mimetype=found.media_type)
        response.headers["Cache-Control"] = _FOR_EVER if version == found.version else "no-cache"
        response.set_etag(found.version)
        return response.make_conditional(request)


def _read() -> Mapping[str, StaticFile]:
    found = {}
    for one in files("outboxq.web").joinpath("static").iterdir():
        if one.is_file():
            content = one.read_bytes()
            suffix = one.name[one.name.rfind(".") :]
            media_type = _TYPES.get(suffix) or mimetypes.guess_type(one.name)[0] or "application/octet-stream"
            version = hashlib.sha256(content).hexdigest()[:16]
            found[one.name] = StaticFile(content=content, media_type=media_type, version=version)
    return found
