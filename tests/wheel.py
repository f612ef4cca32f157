"""Build the wheel, install it into a new environment, and use it from an empty directory: `python tests/wheel.py DIR`.

The tests run this program without a network: `--dependencies` lends the new environment the packages of another one.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def build(directory: Path) -> Path:
    """Build the wheel from the checkout with this environment's build backend."""
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory], cwd=ROOT)
    (wheel,) = directory.glob("outboxq-*.whl")
    return wheel


def install(wheel: Path, directory: Path, *, dependencies: Path | None) -> Path:
    """Install the wheel into a new environment, and return its Python. If `dependencies` is None, they come from the index."""
    python = environment(directory)
    offline = ["--no-deps", "--no-index"] if dependencies else []
    run([*installer(python), "install", "-q", *offline, wheel], cwd=directory)
    if dependencies:
        # Only the path is added, so .pth files in that directory, such as an editable install's, are not read.
        packages = sysconfig.get_path("purelib", vars={"base": str(directory), "platbase": str(directory)})
        Path(packages, "dependencies.pth").write_text(f"{dependencies}\n")
    return python


def environment(directory: Path) -> Path:
    """Create an empty environment, and return its Python."""
    venv.create(directory, with_pip=not _has_pip())
    return directory / "bin" / "python"


def installer(python: Path) -> list[str | Path]:
    """Return the pip command for an environment.

    This environment's pip avoids installing another one, which doubles the time. An environment created by uv has no pip.
    """
    pip = [sys.executable, "-m", "pip", "--python", python] if _has_pip() else [python, "-m", "pip"]
    return [*pip, "--disable-pip-version-check"]


def _has_pip() -> bool:
    return importlib.util.find_spec("pip") is not None


def check(python: Path, directory: Path, *, demo: bool) -> None:
    """Use outboxq as a user who has only the wheel would."""
    outboxq = python.parent / "outboxq"
    where = "import outboxq, pathlib; print(pathlib.Path(outboxq.__file__).parent)"
    package = Path(run([python, "-c", where], cwd=directory).strip())
    assert package.is_relative_to(python.parent.parent), f"another outboxq was imported: {package}"
    assert (package / "py.typed").is_file(), "py.typed is missing, so type checkers will ignore the package"

    run([outboxq, "--version"], cwd=directory)
    run([outboxq, "upgrade", "sqlite:///x.db"], cwd=directory)
    assert "every invariant holds" in run([outboxq, "verify", "--url", "sqlite:///x.db"], cwd=directory)

    ini = package / "_migrations" / "alembic.ini"
    run([python, "-m", "alembic", "-c", ini, "-x", "url=sqlite:///y.db", "upgrade", "head"], cwd=directory)
    run([python, "-m", "alembic", "-c", ini, "-x", "url=sqlite:///y.db", "check"], cwd=directory)
    assert "every invariant holds" in run([outboxq, "verify", "--url", "sqlite:///y.db"], cwd=directory)
    if demo:
        print(run([outboxq, "demo"], cwd=directory))


def run(command: list[str | Path], *, cwd: Path, **given: str) -> str:
    """Return the command's output, or raise an error that contains it.

    The command gets no Python or outboxq variables from this process's environment, except those in `given`.
    """
    hidden = ("PYTHON", "OUTBOXQ", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)} | given
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--dependencies", type=Path, help="The site-packages of an environment that contains them.")
    parser.add_argument("--demo", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args(arguments)
    directory = given.directory.resolve()
    for name in ("dist", "empty"):
        (directory / name).mkdir(parents=True)
    wheel = build(directory / "dist")
    python = install(wheel, directory / "venv", dependencies=given.dependencies)
    check(python, directory / "empty", demo=given.demo)
    print(f"{wheel.name} works on its own")


if __name__ == "__main__":
    main()
