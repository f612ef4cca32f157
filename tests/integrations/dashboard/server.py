"""A dashboard in a separate process, whose processor time can be measured: `server.py DATABASE_URL`.

It prints its address, and exits when its standard input is closed.
"""

from __future__ import annotations

import sys

from outboxq import Outbox
from outboxq.cli.console import leave_uncollected
from outboxq.web import application
from tests.integrations.dashboard.serving import Site

if __name__ == "__main__":
    with Site(application(Outbox(sys.argv[1]), allow_actions=True)) as site:
        leave_uncollected()  # as `outboxq web` does
        print(site.url, flush=True)
        sys.stdin.read()
