"""An example of each command, for its help. The words follow the program name: `outboxq`, `flask outboxq` or `manage.py
outboxq`.
"""

from __future__ import annotations

from typing import Final

_ID: Final = "0198c1d2"

EXAMPLES: Final[dict[str, str]] = {
    "actions": "--since 1d --operator ann",
    "batch cancel": "--reason 'wrong file' 0198c1d2-7f3a-8b4c-9d5e-0123456789ab",
    "batch list": "--open",
    "batch show": "0198c1d2-7f3a-8b4c-9d5e-0123456789ab",
    "check": "--max-age 10m --max-failed none -q mail",
    "completion": "bash",
    "db current": "--json",
    "db history": "",
    "db sizes": "",
    "db end-session": "4711@2026-11-23T02:30:00.123456Z",
    "db sql": "--from 0001 > upgrade.sql",
    "demo": "",
    "emit": """order.paid --payload '{"id": 7}'""",
    "enqueue": """shop.send_receipt --args '{"order_id": 7}' --delay 10m""",
    "failed discard": "--task shop.send_receipt --since 2h --dry-run",
    "failed list": "-q mail --since 1d",
    "failed redrive": "--exception ConnectionError --limit 300",
    "failed summary": "-q mail",
    "grants": "--role producer --with emit shop_web",
    "log": "--follow --event task_failed",
    "partition": "--every month --dry-run",
    "prune": "--older-than 90d --dry-run",
    "queue forget": "mial",
    "queue limit": "mail --concurrency 4 --rate 100/1m",
    "queue list": "",
    "queue order": "mail oldest",
    "queue pause": "mail",
    "queue resume": "mail",
    "queue show": "mail",
    "relay list": "",
    "relay pause": "orders --reason 'broker upgrade'",
    "relay remove": "orders --dry-run",
    "relay resume": "orders",
    "relay show": "orders",
    "relay run": "shop:outbox --name orders",
    "schedule add": "nightly shop.report '0 3 * * *' --tz Europe/Berlin",
    "schedule add-retention": "90d",
    "schedule backfill": "nightly --from 2026-11-01 --to 2026-11-08",
    "schedule edit": "nightly --rule '30 4 * * *' --reason 'the export is late'",
    "schedule list": "",
    "schedule next": "'0 3 * * *' --tz Europe/Berlin -n 3",
    "schedule pause": "nightly",
    "schedule plant": "--ahead 10m",
    "schedule remove": "nightly",
    "schedule resume": "nightly",
    "schedule show": "nightly",
    "schedule trigger": "nightly",
    "status": "--watch 5 --by task --window 10m",
    "subscription list": "",
    "subscription remove": "shop.old_report --dry-run",
    "task cancel": "-q mail --dry-run",
    "task discard": f"{_ID} --reason 'the order was cancelled'",
    "task explain": _ID,
    "task history": _ID,
    "task list": "--status failed -q mail --since 2h",
    "task priority": f"{_ID} 50",
    "task redrive": _ID,
    "task rerun": f"{_ID} --from charge --dry-run",
    "task reschedule": f"{_ID} --in 2h",
    "task run-now": _ID,
    "task recover": _ID,
    "task show": f"{_ID} --traceback",
    "task state-at": f"{_ID} 2026-11-23T02:30Z",
    "task steps": f"{_ID} --show-results",
    "upgrade": "shop:outbox",
    "verify": "",
    "web": "--port 8080",
    "worker": "shop:outbox -q mail -c 8",
    "workers list": "",
    "workers quiet": 'web-1:4711 --reason "new release"',
    "workers resume": "web-1:4711",
    "workers stacks": "web-1:4711",
    "workers recover": 'web-1:4711 --reason "the machine is gone"',
    "workers stop": "0198c1d2-7f3a-7b4c-9d5e-0123456789ab",
    "workers show": "0198c1d2-7f3a-7b4c-9d5e-0123456789ab",
}
"""The words after the command, by command."""


def example_of(path: str) -> str | None:
    """Return the text below the help of the command that a user types as `path`. None for a group."""
    words = path.split()
    for place in range(len(words)):
        if (found := EXAMPLES.get(" ".join(words[place:]))) is not None:
            return f"\b\nExample:\n  {f'{path} {found}'.rstrip()}"
    return None
