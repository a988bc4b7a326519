"""Cost of a router in Python: one producer, a router whose every message is asked about, one consumer.

    maturin develop --release
    python benches/routing.py

For comparison, the same with a router by rules, which calls no Python function.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

from loops import ROUTER, Address, publication, throughput

GOAL = 150_000


def serve() -> None:
    """Serve until standard input is closed."""
    import mqcore
    from mqcore import ChannelOptions, QueueOptions, QueueStatus

    class ToBench(mqcore.Router):
        def route(self, message: mqcore.Message, publisher: mqcore.ClientView) -> str | None:
            return "bench/0" if len(message) > 0 else None

    broker = mqcore.Broker(
        listen="tmqp://127.0.0.1:0",
        admin=None,
        auto_create_channels=True,
        auto_create_queues=True,
        channel=ChannelOptions(queue=QueueOptions(status=QueueStatus.BROADCAST)),
    )
    broker.routers["python"] = ToBench()
    broker.routers.add("rules")
    broker.routers.bind("rules", "bench/0")
    with broker:
        (url,) = broker.listeners
        print(url.rpartition(":")[2], flush=True)
        sys.stdin.read()


def main() -> int:
    """Measure, print, and say by the exit code whether the goal is met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return 0
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdin is not None
        assert broker.stdout is not None
        address = Address(int(broker.stdout.readline()))
        rates: dict[str, list[float]] = {"rules": [], "python": []}
        for _ in range(arguments.runs):
            for name, values in rates.items():
                values.append(throughput(address, publication(ROUTER, name.encode()), arguments.seconds))
        broker.stdin.close()
    rules = statistics.median(rates["rules"])
    print("one producer to one consumer by way of a router, messages a second: median, smallest..largest")
    for name, values in rates.items():
        middle = statistics.median(values)
        wanted = f"  (goal {GOAL:,})" if name == "python" else ""
        spread = f"{min(values):,.0f}..{max(values):,.0f}"
        print(f"  {name:8} {middle:12,.0f}   {spread:24} {middle / rules:6.0%}{wanted}")
    return 0 if statistics.median(rates["python"]) >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
