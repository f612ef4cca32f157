"""The program with two outboxes in docs/sqlalchemy.md: it is copied to an empty directory and run with the page's commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests import forked
from tests.forked import ROOT

PAGE = (ROOT / "docs" / "sqlalchemy.md").read_text()


def test_each_command_uses_the_named_outbox(tmp_path: Path) -> None:
    [program] = re.findall(r"^```python\n(# company\.py: .*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    [commands] = re.findall(r"^```console\n(\$ outboxq upgrade company:.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "company.py").write_text(program)

    def type_(line: str) -> str:
        name, *words = shlex.split(line)
        command = [sys.executable, *([] if name == "python" else ["-m", name]), *words]
        return forked.run(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True, timeout=120
        ).stdout

    for line in commands.replace("$ ", "").splitlines():
        type_(f"{line} --burst" if " worker " in line else line)
    for outbox, task in (("orders", "orders.ship"), ("ledger", "ledger.close_month")):
        [row] = type_(f"outboxq task list --app company:{outbox}").splitlines()[1:]
        assert task in row
        assert "completed" in row
