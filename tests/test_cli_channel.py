"""`mqcore channel create`: allowed queues, and defaults of the channel's queues."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mqcore
import programs
from served import clean_environment


def run(broker: mqcore.Broker, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mqcore", "--url", broker.listeners[0], *arguments]
    return programs.run(command, capture_output=True, text=True, timeout=30, env=clean_environment())


def test_queues_of_a_channel_are_limited_and_inherit_its_defaults() -> None:
    with mqcore.Broker(listen=["tmqp://127.0.0.1:0"]) as broker:
        defaults = ("--queue-status", "pull", "--queue-acknowledge", "--queue-message-limit", "9")
        created = run(broker, "channel", "create", "orders", "--allow-queues", "1,7", "--queue-limit", "2", *defaults)
        assert created.returncode == 0, created.stderr
        for queue in ("orders/1", "orders/7"):
            assert run(broker, "queue", "create", queue).returncode == 0
            options = broker.stats().queue(queue).options
            assert (options.status, options.request_acknowledge, options.message_limit) == ("pull", True, 9)
        refused = run(broker, "queue", "create", "orders/2")
        assert refused.returncode == 1
        assert "does not allow queue 2" in refused.stderr
        with mqcore.sync.connect(broker) as client:
            information = client.channel_information("orders")
        assert (information.allowed_queues, information.queue_limit) == ((1, 7), 2)


@pytest.mark.parametrize("ids", ["1,x", "70000", "1,,2", "-1"])
def test_invalid_queue_ids_are_wrong_usage(ids: str) -> None:
    with mqcore.Broker(listen=["tmqp://127.0.0.1:0"]) as broker:
        result = run(broker, "channel", "create", "orders", f"--allow-queues={ids}")
        assert result.returncode == 2
        assert "invalid queue id" in result.stderr
        assert not broker.stats().channels
