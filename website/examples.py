"""Put an example's files on its page, so that readers of the site do not need the repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

LANGUAGES = {".py": "python", ".ini": "ini", ".txt": "text"}
"""The types of files that belong to an example. Databases and log files from a run do not belong to it."""
HERE = "In this directory"
"""The words with which a README refers to its own directory in the repository."""


def files(example: Path) -> Iterator[Path]:
    """Yield the files of an example in the order of their paths, except for the README."""
    for path in sorted(example.rglob("*.*")):
        inside = path.relative_to(example)
        if path.suffix in LANGUAGES and not any(part.startswith(".") for part in inside.parts):
            yield path


def with_files(text: str, example: Path, archive: str) -> str:
    """Return the README as a page that ends with the files. `archive` is the link to an archive of all files.

    Raises LookupError if the README does not say where to run its commands.
    """
    if HERE not in text:
        raise LookupError(f"The README of {example.name} does not contain {HERE!r}.")
    parts = [
        text.replace(HERE, "In a directory with [these files](#the-files)"),
        f"## The files\n\n[Download all files]({archive}), or copy them from here.\n",
    ]
    for path in files(example):
        code = path.read_text()
        shown = f"```{LANGUAGES[path.suffix]}\n{code}```\n" if code else "This file is empty.\n"
        parts.append(f"### `{path.relative_to(example)}`\n\n{shown}")
    return "\n".join(parts)


def pack(example: Path, archive: Path) -> None:
    """Write an example's files to a ZIP file. The same files always result in the same ZIP file."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with ZipFile(archive, "w") as packed:
        for path in files(example):
            entry = ZipInfo(str(path.relative_to(example.parent)))
            entry.external_attr = 0o644 << 16
            packed.writestr(entry, path.read_bytes(), ZIP_DEFLATED)
