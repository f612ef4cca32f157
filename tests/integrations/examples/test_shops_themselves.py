"""The READMEs of `examples/` are correct."""

from __future__ import annotations

import re
import subprocess

from tests import forked
from tests.integrations.examples.shops import Premises, of_each_shop


@of_each_shop
def test_the_tests_of_each_shop_pass(shop, tmp_path):
    premises = Premises(shop, tmp_path, f"sqlite:///{tmp_path}/shop.db")
    project = {"cwd": premises.home, "env": premises.environment}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = forked.run([*forked.PYTHON, *shop.test], warm=forked.FRAMEWORKS, **project, **streams, text=True)
    assert done.returncode == 0, done.stdout
    assert re.search("^(5 passed|Ran 5 tests)", done.stdout, re.MULTILINE), done.stdout


@of_each_shop
def test_the_readme_of_each_shop_has_its_commands(shop):
    """They differ only in `python -m`, the port, and the server's log level."""
    readme = (shop.directory / "README.md").read_text()
    for command in (shop.prepare, shop.serve, shop.work):
        words = " ".join(command).replace("--bind 127.0.0.1:{port} ", "").split(" --port ")[0].removeprefix("-m ")
        assert words in readme.replace("'", ""), f"{readme}\n{words}"


@of_each_shop
def test_the_files_in_each_readme_exist(shop):
    named = re.findall(r"^\* `([\w/]+\.py)`", (shop.directory / "README.md").read_text(), re.MULTILINE)
    assert named
    assert [name for name in named if not (shop.directory / name).is_file()] == []
