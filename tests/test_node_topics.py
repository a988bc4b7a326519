"""Messages of topics between brokers: which confirmation waits for which queues."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

import pytest

import mqcore
import mqcore.sync
from depth import choices, rounds
from mqcore import QueueOptions, QueueStatus
from ports import free_port
from served import ServedBroker, serving, wait_until
from slow_sync import slow_sync

KEPT = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once")
QUEUES = ("alpha", "beta", "gamma", "delta")
"""Channels on several shards; queue 0 of each is durable and bound to the event at the upstream node."""
EVENT = "news"
SHARDS = {"MQCORE_SHARDS": "4"}
KILLS = rounds("NODE_TOPIC", quick=2, full=20)


def listen(port: int = 0) -> tuple[str, ...]:
    return ("--listen", f"tmqp://127.0.0.1:{port}", "--listen", "mqks://127.0.0.1:0")


def mqks(broker: ServedBroker) -> str:
    return f"mqks://{broker.ready['listeners']['mqks']}"


def bind(broker: ServedBroker, *queues: str) -> None:
    with mqcore.sync.connect(broker.url) as client:
        for queue in queues:
            client.create_queue(f"{queue}/0", KEPT)
            client.bind(f"@topic:{EVENT}", f"{queue}/0")


def stored(broker: ServedBroker, queue: str) -> list[int]:
    with mqcore.sync.connect(broker.url) as client:
        count = client.queue_information(f"{queue}/0").messages
        return [int(message.raw) for message in client.queue(f"{queue}/0").pull(count)] if count else []


@pytest.mark.timeout(60 + 10 * KILLS)
def test_confirmed_messages_of_a_topic_are_in_all_queues_of_an_upstream_node_that_is_killed(tmp_path: Path) -> None:
    """Each sync takes 15 ms, so that journals of several shards are behind each other when the node is killed."""
    chance = choices(__name__)
    environment = SHARDS | slow_sync(tmp_path, milliseconds=15)
    port = free_port()
    up = (*listen(port), "--data-dir", str(tmp_path / "up"), "--node-name", "up")
    down = (
        *(*listen(), "--data-dir", str(tmp_path / "down"), "--node-name", "down"),
        *("--upstream", f"tmqp://127.0.0.1:{port}", "--keep-messages"),
    )
    number = 0
    with (
        serving(*down, environment=SHARDS) as downstream,
        mqcore.sync.connect(mqks(downstream)) as producer,
        contextlib.ExitStack() as now,
    ):
        upstream = now.enter_context(serving(*up, environment=environment))
        bind(upstream, *QUEUES)
        for _ in range(KILLS):
            until = time.monotonic() + chance.uniform(0.1, 0.4)
            while time.monotonic() < until:
                producer.publish_many(EVENT, [str(number + index) for index in range(5)])
                number += 5
            upstream.process.send_signal(signal.SIGKILL)
            now.close()
            upstream = now.enter_context(serving(*up, environment=environment))
        producer.publish(EVENT, str(number))
        for queue in QUEUES:
            seen: set[int] = set()

            def is_complete(queue: str = queue, seen: set[int] = seen) -> bool:
                seen.update(stored(upstream, queue))
                return number in seen

            wait_until(is_complete, limit=30.0, what=f"the last message in {queue}")
            missing = set(range(number)) - seen
            assert not missing, f"{queue}: {len(missing)} of {number} confirmed messages are lost, first {min(missing)}"


def test_confirmation_of_a_topic_does_not_wait_for_upstream_nodes(tmp_path: Path) -> None:
    """It waits for the queues of the own broker only; the journal of the link has the message."""
    port = free_port()
    up = ("--data-dir", str(tmp_path / "up"), "--node-name", "up")
    with serving(*listen(port), *up, environment=SHARDS) as upstream:
        bind(upstream, "alpha")
        down = ("--data-dir", str(tmp_path / "down"), "--upstream", f"tmqp://127.0.0.1:{port}", "--keep-messages")
        with serving(*listen(), *down, "--node-name", "down", environment=SHARDS) as downstream:
            bind(downstream, "beta")
            with mqcore.sync.connect(mqks(downstream)) as producer:
                producer.publish(EVENT, "0")
                wait_until(lambda: stored(upstream, "alpha") == [0], what="the message at the upstream node")
                upstream.process.send_signal(signal.SIGSTOP)
                try:
                    for number in range(1, 20):
                        producer.publish(EVENT, str(number), timeout="5s")
                    assert stored(downstream, "beta") == list(range(20))
                finally:
                    upstream.process.send_signal(signal.SIGCONT)
                wait_until(lambda: stored(upstream, "alpha")[-1:] == [19], what="the last one at the upstream node")
