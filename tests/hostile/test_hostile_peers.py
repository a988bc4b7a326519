"""Hostile peers of every kind: another client keeps working meanwhile, loses nothing, and memory stays bounded."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import mqcore
from authority import Authority
from depth import FULL, choices, rounds
from hostile.attacks import ATTACKS, LISTENERS
from mqcore import QueueOptions, QueueStatus
from served import ServedBroker, serving
from test_unfinished_input import resident, url

UNFINISHED = 128 << 20
"""The limit of unfinished frames of all clients, in bytes. Peers that lie about the size of a frame reach it."""
MEMORY = 4 * UNFINISHED
"""Bytes that the broker's process may grow by during an attack: buffers grow by doubling, and the allocator returns
memory that is free after some seconds.
"""
LIMIT = 10.0
"""Seconds for each answer to the client that means no harm."""
MESSAGES = 40
"""Messages of that client during an attack."""
PAUSE = 0.002
"""Seconds between the steps of an attack, so that this program's own threads are not what is measured."""
SAVING = QueueOptions(status=QueueStatus.PULL, request_acknowledge=True, delivery_handler="at-least-once")


def sampled() -> list[str]:
    """Random attacks of each kind."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in ATTACKS:
        kinds[name.partition(" ")[0]].append(name)
    chance = choices(__name__)
    return [name for kind in kinds.values() for name in chance.sample(kind, rounds("HOSTILE", quick=2, full=2))]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    """A broker with a listener of each protocol, which saves messages."""
    directory = tmp_path_factory.mktemp("hostile")
    certificate = Authority(directory / "certificates").issue()
    listen = [argument for each in LISTENERS for argument in ("--listen", each)]
    others = ("--admin", "http://127.0.0.1:0", "--auto-create", "--data-dir", str(directory / "data"))
    others += ("--node-name", "top")
    tls = ("--tls-cert", str(certificate))
    environment = {"MQCORE_HANDSHAKE_TIMEOUT": "2s", "MQCORE_UNFINISHED_BYTES_MAX": str(UNFINISHED)}
    with serving(*listen, *others, *tls, environment=environment) as running:
        yield running


async def exchange(mq: mqcore.Client, name: str, count: int) -> None:
    """Publish, receive and settle messages, one after the other."""
    await mq.declare("calm", 1, SAVING)
    async with mq.join("calm"):
        for number in range(count):
            body = f"{name} {number}".encode()
            async with asyncio.timeout(LIMIT):
                await mq.publish("calm/1", body, confirm=True)
                received = await mq.queue("calm/1").pull(1)
                assert [message.raw for message in received] == [body]
                assert await received[0].ack()


def check_health(broker: ServedBroker) -> None:
    for page in ("livez", "readyz"):
        with urllib.request.urlopen(f"{broker.admin_url}/{page}", timeout=LIMIT) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("name", ATTACKS if FULL else sampled())
async def test_other_clients_work_during_an_attack(name: str, broker: ServedBroker) -> None:
    before = resident(broker)
    is_over = threading.Event()
    failures: list[BaseException] = []
    steps = 0

    def attack(first: threading.Event) -> None:
        nonlocal steps
        try:
            with ExitStack() as stack:
                step = ATTACKS[name](broker, stack)
                while not is_over.is_set():
                    try:
                        step()
                    except (ConnectionError, TimeoutError):
                        # The broker has disconnected the attackers, or no longer reads from them.
                        is_over.wait()
                    steps += 1
                    first.set()
                    is_over.wait(PAUSE)
        except BaseException as error:
            failures.append(error)
        finally:
            first.set()

    has_begun = threading.Event()
    attacker = threading.Thread(target=attack, args=(has_begun,))
    async with mqcore.connect(url(broker, "tmqp")) as mq:
        attacker.start()
        try:
            await asyncio.to_thread(has_begun.wait, LIMIT)
            await exchange(mq, name, MESSAGES)
            await asyncio.to_thread(check_health, broker)
            grown = resident(broker) - before
        finally:
            is_over.set()
            await asyncio.to_thread(attacker.join, LIMIT)
        assert not failures, failures
        assert steps, "the attack did not begin"
        assert grown < MEMORY, f"{grown >> 20} MiB"
        assert broker.process.poll() is None
        await exchange(mq, f"{name}, over", 1)
    assert not [line for line in broker.stderr_lines if "panicked" in line]
