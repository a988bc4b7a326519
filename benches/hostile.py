"""Cost of hostile peers for other clients: throughput, latency and memory during each attack of tests/hostile.

    maturin develop --release
    python benches/hostile.py
    python benches/hostile.py --only flood --seconds 5

The broker is a process of its own. A well-behaved client publishes saved messages with confirmations, ``--window`` at a
time, and consumes them on a second connection. Its throughput during an attack is compared with that before it, which
is measured anew for each attack. Attackers and client share the machine's cores with the broker, so the shares are
lower bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import mqcore  # noqa: E402
from authority import Authority  # noqa: E402
from hostile.attacks import ATTACKS, LISTENERS  # noqa: E402
from mqcore import QueueOptions, QueueStatus  # noqa: E402
from served import ServedBroker, serving  # noqa: E402
from test_unfinished_input import url  # noqa: E402

SAVING = QueueOptions(status=QueueStatus.ROUND_ROBIN, request_acknowledge=True, delivery_handler="at-least-once")


def memory(broker: ServedBroker) -> int:
    """MiB of memory of the broker's process."""
    status = Path(f"/proc/{broker.process.pid}/status").read_text(encoding="ascii")
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert found
    return int(found[1]) >> 10


async def load(broker: ServedBroker, seconds: float, window: int) -> tuple[float, float]:
    """Confirmed and consumed messages a second, and the 99th percentile of the time to a confirmation in ms."""
    latencies: list[float] = []
    async with mqcore.connect(url(broker, "tmqp")) as producer, mqcore.connect(url(broker, "tmqp")) as consumer:
        await producer.declare("calm", 1, SAVING)
        end = time.monotonic() + seconds

        async def produce() -> None:
            while (start := time.monotonic()) < end:
                await producer.publish("calm/1", b"x" * 100, confirm=True)
                latencies.append(time.monotonic() - start)

        async def consume() -> None:
            async with consumer.queue("calm/1").consume(bytes, prefetch=window, idle_timeout=1.0) as messages:
                async for message in messages:
                    await message.ack()

        await asyncio.gather(consume(), *(produce() for _ in range(window)))
    latencies.sort()
    return len(latencies) / seconds, latencies[len(latencies) * 99 // 100] * 1000


def attack(name: str, broker: ServedBroker, is_over: threading.Event, pause: float) -> None:
    """Continue an attack until it is over."""
    with ExitStack() as stack:
        step = ATTACKS[name](broker, stack)
        while not is_over.wait(pause):
            try:
                step()
            except (ConnectionError, TimeoutError):
                is_over.wait()


def main() -> None:
    """Measure, and print a line for each attack."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each measurement (default 3)")
    parser.add_argument("--window", type=int, default=16, help="messages published at a time (default 16)")
    parser.add_argument("--pause", type=float, default=0.002, help="seconds between steps of an attack (default 0.002)")
    parser.add_argument("--only", default="", help="attacks whose names contain this")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        tls = ("--tls-cert", str(Authority(directory / "certificates").issue()))
        listen = [argument for each in LISTENERS for argument in ("--listen", each)]
        others = ("--admin", "http://127.0.0.1:0", "--auto-create", "--data-dir", str(directory / "data"))
        print(f"{'attack':44} {'before/s':>9} {'during/s':>9} {'share':>6} {'p99 before':>10} {'p99':>8} {'MiB':>6}")
        with serving(*listen, *others, *tls) as broker:
            asyncio.run(load(broker, 1.0, chosen.window))
            for name in (each for each in ATTACKS if chosen.only in each):
                before, usual = asyncio.run(load(broker, chosen.seconds, chosen.window))
                held = memory(broker)
                is_over = threading.Event()
                attacker = threading.Thread(target=attack, args=(name, broker, is_over, chosen.pause))
                attacker.start()
                during, p99 = asyncio.run(load(broker, chosen.seconds, chosen.window))
                grown = memory(broker) - held
                is_over.set()
                attacker.join()
                rates = f"{before:9.0f} {during:9.0f} {during / before:6.0%}"
                print(f"{name:44} {rates} {usual:8.1f}ms {p99:6.1f}ms {grown:+6}", flush=True)


if __name__ == "__main__":
    main()
