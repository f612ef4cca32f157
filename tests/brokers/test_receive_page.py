"""A reader follows docs/how-to/receive-messages.md with a real RabbitMQ."""

from __future__ import annotations

import pytest

from tests.docs.test_tutorials import ROOT, Reader

pytestmark = pytest.mark.apart


@pytest.mark.parametrize("bench", ["rabbitmq"], indirect=True)
def test_following_the_page_enqueues_the_message_once(bench, tmp_path):
    reader = Reader(tmp_path, "", **{"amqp://localhost/": bench.server.direct})
    reader.follow(ROOT / "docs" / "how-to" / "receive-messages.md")
    reader._type("outboxq task list --app billing:outbox --json  # order.paid")
    reader._type("python -c 'import billing; assert len(billing.outbox.store.tasks()) == 1; billing.engine.dispose()'")
