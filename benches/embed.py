"""Cost of deciding in Python: the embedded broker under the load generator of `benches/`, and its memory while idle.

    cargo build --release -p mqcore-bench --bin load
    maturin develop --release
    python benches/embed.py --load target/release/load

The generator is Rust and runs in a process of its own; the broker runs in a Python process that it starts
(``embed.py serve``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

GOALS = {
    "policy": ("no Python method", None),
    "plain": ("one plain received_from_producer", 150_000),
    "many": ("one received_many with NumPy", None),
    "async": ("one async received_from_producer", None),
}
IDLE_GOAL_MIB = 30.0
CHECK_GOAL_NANOS = 500.0


def serve(style: str, arguments: list[str]) -> None:
    """Serve until standard input is closed, as `load` expects of the process under test."""
    import numpy

    import mqcore
    from mqcore import ChannelOptions, Decision, Decisions, DeliveryHandler, QueueOptions, QueueStatus

    class Plain(DeliveryHandler):
        def received_from_producer(
            self, queue: mqcore.QueueView, message: mqcore.Message, producer: mqcore.ClientView
        ) -> Decision:
            return Decision(allow=len(message) > 0)

    class Awaited(DeliveryHandler):
        async def received_from_producer(
            self, queue: mqcore.QueueView, message: mqcore.Message, producer: mqcore.ClientView
        ) -> Decision:
            return Decision(allow=len(message) > 0)

    class Many(DeliveryHandler):
        def received_many(self, queue: mqcore.QueueView, messages: mqcore.MessageBatch) -> Decisions:
            return Decisions(choices, numpy.asarray(messages.sizes) > 0)

    choices = (Decision(allow=False), Decision())
    status, acknowledge, shards, _workers = arguments
    broker = mqcore.Broker(
        listen="tmqp://127.0.0.1:0",
        admin="http://127.0.0.1:0",
        shards=int(shards),
        auto_create_channels=True,
        auto_create_queues=True,
        ping_interval="1h",
        channel=ChannelOptions(
            queue=QueueOptions(status=QueueStatus(status), request_acknowledge=acknowledge == "true")
        ),
    )
    if style != "policy":
        handlers = {"plain": Plain, "many": Many, "async": Awaited}
        broker.delivery_handlers["memory"] = handlers[style]()
    with broker:
        (url,) = broker.listeners
        admin = (broker.admin_url or "").removeprefix("http://")
        print(json.dumps({"tmqp": url.removeprefix("tmqp://"), "admin": admin}), flush=True)
        sys.stdin.read()


def round_robin(load: Path, style: str, runs: int, seconds: int) -> list[float]:
    """Messages a second, acknowledged, of each run."""
    server = f"{sys.executable} {Path(__file__).resolve()} --style {style}"
    plan = ["--runs", str(runs), "--seconds", str(seconds), "--no-peers", "--json", "--server", server]
    # Its exit code compares with the goal of the server without Python, which is not the one here.
    done = subprocess.run([load, *plan, "round-robin-ack"], capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"the load generator failed: {done.stderr}")
    values: list[float] = json.loads(done.stdout)["figures"][0]["values"]
    return values


# Memory of the process before the import of mqcore, after it, and with an idle broker.
IDLE = """
import asyncio, json, threading, logging, dataclasses, tomllib, pathlib
def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096
before = resident()
import mqcore
imported = resident()
with mqcore.Broker(listen="tmqp://127.0.0.1:0", admin="http://127.0.0.1:0") as broker:
    broker.stats()
    print(json.dumps([before, imported, resident()]))
"""


def idle_mib() -> tuple[float, float]:
    """MiB that an idle broker adds to a Python with the standard modules that it uses: import alone, and all."""
    done = subprocess.run([sys.executable, "-c", IDLE], capture_output=True, text=True, check=True)
    before, imported, running = json.loads(done.stdout)
    return (imported - before) / 2**20, (running - before) / 2**20


def check_nanos(runs: int) -> tuple[float, float]:
    """Nanoseconds of a check of `RateLimiter.local()`, by limiter and by bound limit, in the median run: 1,000 keys."""
    import time

    from mqcore.ratelimit import RateLimiter

    limiter = RateLimiter.local()
    # So slow to refill that every key stays: what has refilled is gone, and would be created again by each check.
    bound = limiter.bind("1000000/h")
    keys = [f"user:{number:011}" for number in range(1000)]

    def run(check: Any, *rest: str) -> float:
        began = time.perf_counter_ns()
        for _ in range(200):
            for key in keys:
                check(key, *rest)
        return (time.perf_counter_ns() - began) / 200_000

    whole = sorted(run(limiter.check, "1000000/h") for _ in range(runs))
    ready = sorted(run(bound.check) for _ in range(runs))
    return whole[runs // 2], ready[runs // 2]


def measure(load: Path, runs: int, seconds: int) -> dict[str, Any]:
    """All figures of this file."""
    figures: dict[str, Any] = {}
    for style in GOALS:
        values = sorted(round_robin(load, style, runs, seconds))
        figures[style] = {"values": values, "median": values[len(values) // 2]}
    figures["idle_import_mib"], figures["idle_mib"] = idle_mib()
    figures["check_ns"], figures["bound_check_ns"] = check_nanos(runs)
    return figures


def main() -> int:
    """Measure, print, and say by the exit code whether the goals are met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--load", type=Path, default=Path("target/release/load"), help="the load generator")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--style", choices=GOALS, default="plain", help="for `serve`")
    parser.add_argument("serve", nargs="*", help="serve STATUS ACKNOWLEDGE SHARDS WORKERS: for the load generator")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.style, arguments.serve[1:])
        return 0
    figures = measure(arguments.load, arguments.runs, arguments.seconds)
    if arguments.json:
        print(json.dumps(figures))
    else:
        for style, (what, goal) in GOALS.items():
            wanted = f"  (goal {goal:,})" if goal else ""
            print(f"round robin, acknowledged, {what:34} {figures[style]['median']:>11,.0f} messages/s{wanted}")
        print(f"RateLimiter.local().check {figures['check_ns']:.0f} ns  (goal {CHECK_GOAL_NANOS:.0f})")
        print(f"the same by a bound limit {figures['bound_check_ns']:.0f} ns")
        print(f"idle, over Python's own {figures['idle_mib']:.1f} MiB  (goal {IDLE_GOAL_MIB})")
    met = all(goal is None or figures[style]["median"] >= goal for style, (_, goal) in GOALS.items())
    met &= figures["check_ns"] <= CHECK_GOAL_NANOS
    return 0 if met and figures["idle_mib"] <= IDLE_GOAL_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
