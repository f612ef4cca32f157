"""Put the files of an example on its page, so that a reader of the site needs no repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

LANGUAGES = {".py": "python", ".ini": "ini", ".txt": "text"}
"""The kinds of files that belong to an example. Databases and logs of a run do not."""
HERE = "In this directory"
"""The words of a README that mean the directory of the repository."""


def files(example: Path) -> Iterator[Path]:
    """Yield the files of an example in the order of their paths, except for the README."""
    for path in sorted(example.rglob("*.*")):
        inside = path.relative_to(example)
        if path.suffix in LANGUAGES and not any(part.startswith(".") for part in inside.parts):
            yield path


def with_files(text: str, example: Path, archive: str) -> str:
    """Return the README as a page that ends with the files, where `archive` is the link to all of them.

    Raises LookupError for a README that does not say where its commands are run.
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
    """Write the files of an example to a ZIP file, which is the same for the same files."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with ZipFile(archive, "w") as packed:
        for path in files(example):
            entry = ZipInfo(str(path.relative_to(example.parent)))
            entry.external_attr = 0o644 << 16
            packed.writestr(entry, path.read_bytes(), ZIP_DEFLATED)
