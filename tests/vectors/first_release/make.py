"""Makes the data directories of the first release that `tests/test_upgrade.py` opens.

Run it with a Python that has that release (commit d51063b), and with GNU cp and tar:

    python make.py DIRECTORY

It runs `mqcore serve` twice, fills it through the public API, and ends it once with SIGTERM and once with SIGKILL.
It writes `stopped.tar.gz`, `killed.tar.gz` and `manifest.json` to DIRECTORY. The manifest has what both contain.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mqcore
from mqcore import Binding, ChannelOptions, MasterConfig, NodeConfig, QueueOptions
from mqcore.jobs import Jobs
from mqcore.throttr import Algorithm, Rule, SyncClient

UPSTREAM = "127.0.0.1:19622"
"""The upstream broker, to which the messages of the channel `forwarded` go. Nothing listens there meanwhile."""

CONFIG = f"""
shards = 2
history = true
archive_interval = "500ms"
[node]
name = "first"
keep_messages = true
[[master]]
url = "tmqp://{UPSTREAM}"
send = {{allow = [{{channel = "forwarded"}}]}}
"""

LISTEN = (
    "tmqp://127.0.0.1:0",
    "mm2://127.0.0.1:0",
    "emqp://127.0.0.1:0",
    "throttr://127.0.0.1:0?value=uint32&persist=on",
)
YEARS = 10 * 365 * 24 * 3600
"""Seconds that nothing in the vector lasts shorter than, so that it can be opened for years."""

SAVING: dict[str, Any] = {"delivery_handler": "at-least-once", "request_acknowledge": True}
# To consume a queue is to join its channel, and so to receive from all of its queues that push: each has its own.
QUEUES: dict[str, dict[str, Any]] = {
    "orders/1": {**SAVING, "status": "pull", "tag": "first"},
    "turns/1": {**SAVING, "status": "roundrobin", "acknowledge_timeout": 30.0, "wait_for_acknowledge": True},
    "pushed/1": {**SAVING, "status": "push", "only_first_acquirer": True, "hide_client_names": True},
    "orders/4": {**SAVING, "status": "cache"},
    "orders/5": {**SAVING, "status": "broadcast", "message_size_limit": 4096},
    "orders/6": {**SAVING, "status": "paused", "message_limit": 100, "durability": "os"},
    "orders/7": {"status": "stopped", "use_message_id": False},
    "orders/8": {"status": "pull", "delivery_handler": "memory"},
    "retries/1": {**SAVING, "status": "roundrobin"},
    "graves/1": {**SAVING, "status": "pull"},
    "failing/1": {**SAVING, "status": "roundrobin", "put_back_limit": 0, "dead_letter": "graves/1"},
    "copies/1": {**SAVING, "status": "pull"},
    "forwarded/1": {**SAVING, "status": "pull"},
    "taken/1": {**SAVING, "status": "pull"},
    "limited/1": {**SAVING, "status": "pull", "publish_limit": "1000/s"},
    "limited/2": {**SAVING, "status": "pull", "message_timeout": 3600.0},
}
TOPICS = ("news.sport", "news.*")
BINDINGS = (
    {"target": "orders/1", "name": "main", "priority": 5, "interaction": "acknowledge"},
    {"target": "@topic:news.sport", "priority": -1, "content_type": 7},
)
PASSWORD = "correct horse"


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + 15
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


async def stored(mq: mqcore.Client, address: str, count: int) -> None:
    """Wait until a queue has so many messages."""
    async with asyncio.timeout(15):
        # Nothing reports that a message has arrived without consuming it.
        while (await mq.queue(address).information()).messages < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def run_mqcore(*arguments: str, text: str = "") -> str:
    """Run a command of that release and return its output."""
    command = [sys.executable, "-m", "mqcore", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


class Broker:
    """A `mqcore serve`, and what its ready line contains."""

    def __init__(self, directory: Path) -> None:
        config = directory.with_suffix(".toml")
        config.write_text(CONFIG)
        listen = [word for url in LISTEN for word in ("--listen", url)]
        arguments = ["--config", str(config), "--admin", "http://127.0.0.1:0", "--data-dir", str(directory)]
        command = [sys.executable, "-m", "mqcore", "serve", *listen, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.ready = json.loads(self.process.stdout.readline())
        listeners = self.ready["listeners"]
        self.tmqp = f"tmqp://{listeners['tmqp']}"
        self.mm2 = f"mm2://{listeners['mm2']}"
        self.throttr = f"throttr://{listeners['throttr']}?value=uint32"
        self.admin = f"http://{self.ready['admin']}"
        ports = [address.rpartition(":")[2] for name, address in listeners.items() if name.startswith("emqp")]
        backend, frontend, admin, _, subscribe = ports
        self.emqp = f"emqp://127.0.0.1:{backend}?frontend={frontend}&admin={admin}&subscribe={subscribe}"

    def read(self, page: str) -> str:
        """A page of the admin side."""
        with urllib.request.urlopen(f"{self.admin}{page}", timeout=10) as answer:
            return str(answer.read().decode())

    def end(self, number: signal.Signals) -> None:
        """Send this signal, and wait."""
        self.process.send_signal(number)
        code = self.process.wait(30)
        assert code == (0 if number == signal.SIGTERM else -number), code


# --- messages ---------------------------------------------------------------------------------------------------------


async def declare(mq: mqcore.Client) -> None:
    """Create channels and queues."""
    await mq.create_channel("Plain", ChannelOptions(allow_multiple_queues=False, client_limit=9, queue_limit=3))
    for address, options in QUEUES.items():
        channel, _, number = address.partition("/")
        await mq.declare(channel, int(number), QueueOptions(**options))


async def publish(mq: mqcore.Client) -> dict[str, list[dict[str, Any]]]:
    """Publish messages of both priorities, and settle some. Returns those that are left, in the order of delivery."""
    left: dict[str, list[dict[str, Any]]] = {"orders/1": []}
    for number in range(20):
        await mq.publish("orders/1", f"settled {number}", id=f"settled-{number}")
    for message in await mq.queue("orders/1").pull(20, str):
        assert await message.ack()
    await mq.publish_many("orders/1", [f"normal {number}" for number in range(5)], headers={"Kind": "normal"})
    await mq.publish("orders/1", b"\x00\xff bytes", id="bytes", headers=[("Kind", "bytes"), ("Kind", "twice")])
    await mq.publish("orders/1", "x" * 2_000, id="large")
    for number in range(2):
        await mq.publish("orders/1", f"urgent {number}", id=f"urgent-{number}", high_priority=True)
    left["orders/1"] = [
        *({"body": f"urgent {number}", "id": f"urgent-{number}", "high_priority": True} for number in range(2)),
        *({"body": f"normal {number}", "headers": [["Kind", "normal"]]} for number in range(5)),
        {"body_hex": b"\x00\xff bytes".hex(), "id": "bytes", "headers": [["Kind", "bytes"], ["Kind", "twice"]]},
        {"body": "x" * 2_000, "id": "large"},
    ]
    for address in ("turns/1", "pushed/1", "orders/6", "limited/1"):
        bodies = [f"{address} {number}" for number in range(3)]
        await mq.publish_many(address, bodies)
        left[address] = [{"body": body} for body in bodies]
    await mq.publish("orders/4", "old")
    await mq.publish("orders/4", "latest")
    left["orders/4"] = [{"body": "latest"}]
    await mq.publish("orders/8", "in memory")
    await mq.publish("forwarded/1", "for the upstream broker", id="forwarded")
    left["forwarded/1"] = [{"body": "for the upstream broker", "id": "forwarded"}]
    return left


async def fail(mq: mqcore.Client) -> dict[str, list[dict[str, Any]]]:
    """Reject messages: one is requeued, one becomes a dead letter. Returns both."""
    await mq.publish("retries/1", "requeued")
    await mq.publish("failing/1", "dead")
    for address in ("retries/1", "failing/1"):
        async with mq.queue(address).consume(str) as messages:
            async for message in messages:
                await message.nack("busy")
                break
    return {"retries/1": [{"body": "requeued", "attempts": 1}], "graves/1": [{"body": "dead"}]}


async def route(mq: mqcore.Client, broker: Broker) -> dict[str, list[dict[str, Any]]]:
    """Create a router and topic bindings, and send messages to the topics. Returns their copies."""
    await mq.create_router("Desk", "only-first")
    for binding in BINDINGS:
        await mq.bind("Desk", Binding(**binding))  # type: ignore[arg-type]
    for topic in TOPICS:
        await mq.bind(f"@topic:{topic}", "copies/1")
    async with mqcore.connect(broker.mm2) as publisher:
        await publisher.publish("topic/news.sport", "goal")
        await publisher.publish("topic/news.weather", "rain")
    await stored(mq, "copies/1", 2)
    return {"copies/1": [{"body": "goal"}, {"body": "rain"}]}


async def take_from_downstream(mq: mqcore.Client, broker: Broker) -> dict[str, list[dict[str, Any]]]:
    """Have another broker pass a message on to this one. Returns the message."""
    node = NodeConfig(name="till", masters=(MasterConfig(url=broker.tmqp),))
    async with (
        mqcore.Broker(node=node, auto_create_channels=True, auto_create_queues=True) as till,
        till.client() as seller,
    ):
        async with asyncio.timeout(15):
            while not any(found.connected for found in await seller.nodes()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await seller.publish("taken/1", "from downstream", id="taken")
        await stored(mq, "taken/1", 1)
    return {"taken/1": [{"body": "from downstream", "id": "taken"}]}


async def fill_queues(broker: Broker) -> dict[str, list[dict[str, Any]]]:
    """Create and fill everything that TMQP reaches."""
    async with mqcore.connect(broker.tmqp, name="maker") as mq:
        await declare(mq)
        left = await publish(mq) | await fail(mq) | await route(mq, broker) | await take_from_downstream(mq, broker)
        for address, messages in left.items():
            information = await mq.queue(address).information()
            count = information.messages + information.priority_messages
            assert count == len(messages), (address, count, messages)
        return left


# --- jobs, limits, users ----------------------------------------------------------------------------------------------


SHOP = """
from mqcore.jobs import Backoff, Jobs

jobs = Jobs()


@jobs.task(name="shop.fail", queue="work", retries=2, backoff=Backoff("3650d", max="3650d", jitter=0))
def fail() -> None:
    raise ValueError("not today")


@jobs.task(name="shop.nightly", queue="reports")
def nightly(region: str) -> None:
    pass
"""


def fill_jobs(broker: Broker, directory: Path) -> dict[str, Any]:
    """Leave jobs that wait, one that waits for its second attempt, and schedules. Returns what the manifest needs."""
    (directory / "shop.py").write_text(SHOP)
    sys.path.insert(0, str(directory))
    import shop  # type: ignore[import-not-found]

    with Jobs(broker.emqp) as jobs:
        # Without a worker, jobs of any queue go to this one.
        jobs.send("shop.send_email", ["ada@example.com"], {"subject": "hi"}, queue="default", result=False)
        jobs.send("shop.send_email", ["bob@example.com"], {}, queue="default", priority=1, result=False)
        jobs.every("1d", shop.nightly.bind("eu"), nohaste=True, catch_up="none")
        jobs.cron("0 3 1 1 *", shop.nightly.bind("us"), timezone="Europe/Berlin", runs=50, catch_up="none")
        jobs.send_schedules()
        wait_until(lambda: json.loads(broker.read("/schedules"))["total"] == 2, "the schedules")
        fail_once(broker, directory, jobs)
    found = json.loads(broker.read("/schedules"))["schedules"]
    return {
        "jobs": {"default": ["bob@example.com", "ada@example.com"], "work": {"task": "shop.fail", "attempts": 1}},
        "schedules": [
            {name: schedule[name] for name in ("id", "queue", "interval_ms", "cron", "timezone", "catch_up", "left")}
            for schedule in found
        ],
    }


def fail_once(broker: Broker, directory: Path, jobs: Jobs) -> None:
    """Have a worker run the failing job once, so that it waits for its second attempt."""
    environment = os.environ | {"PYTHONPATH": str(directory)}
    command = [sys.executable, "-m", "mqcore", "worker", "shop:jobs", "--broker", broker.emqp, "--queues", "work"]
    command += ["--pool", "thread", "--concurrency", "1", "--no-schedules"]
    worker = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    try:
        worker.stdout.readline()
        job = jobs.send("shop.fail", [], {}, queue="work", retries=2, result=False)
        wait_until(lambda: '"delayed"' in broker.read(f"/trace/{job.id}"), "the delay before the second attempt")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    finally:
        worker.kill()


def fill_limits(broker: Broker) -> dict[str, Any]:
    """Save counters, a buffer and the states of rules."""
    with SyncClient(broker.throttr) as client:
        client.insert("counter", quota=1000, ttl=YEARS)
        client.decrease("counter", 7)
        client.set("buffer", b"some bytes", ttl=YEARS)
        for algorithm in (Algorithm.SLIDING_WINDOW, Algorithm.GCRA, Algorithm.FIXED_WINDOW):
            rule = Rule(f"rule:{algorithm}", limit=10, cost=4, period=YEARS, algorithm=algorithm)
            assert client.consume(rule).allowed
    wait_until(lambda: "mqcore_limiter_saved_total 5\n" in broker.read("/metrics"), "the saved limits")
    return {
        "counters": {"counter": 993},
        "buffers": {"buffer": "some bytes"},
        "rules": {"limit": 10, "spent": 4, "period": YEARS},
    }


def fill_authority(directory: Path) -> dict[str, Any]:
    """Add a user and a token."""
    place = ("--data-dir", str(directory))
    run_mqcore("user", "add", "ann", "--allow", "*", *place, text=f"{PASSWORD}\n")
    token = run_mqcore("token", "create", "operator", "--allow", "*", *place).strip()
    return {"users": {"ann": PASSWORD}, "tokens": {"operator": token}}


# --- the vector -------------------------------------------------------------------------------------------------------


def make(directory: Path, ending: signal.Signals) -> dict[str, Any]:
    """Fill a data directory and end its broker. Returns what it contains."""
    broker = Broker(directory)
    try:
        messages = asyncio.run(fill_queues(broker))
        content = fill_jobs(broker, directory.parent) | {"messages": messages, "limits": fill_limits(broker)}
        wait_until(lambda: list(directory.glob("archive/steps/**/*.parquet")) != [], "the archive")
        # Users end connections without credentials, so they are the last.
        content |= fill_authority(directory)
        broker.end(ending)
    finally:
        broker.process.kill()
    return content


def pack(directory: Path, archive: Path) -> None:
    """Archive a directory. Segments are mostly zeros, which a sparse archive leaves out."""
    # tar looks for zeros only in files that have holes.
    sparse = directory.with_name("sparse")
    subprocess.run(["cp", "--archive", "--sparse=always", str(directory), str(sparse)], check=True)
    options = ["--sparse", "--owner=0", "--group=0", "--numeric-owner", "--sort=name"]
    subprocess.run(["tar", *options, "-C", str(sparse), "-czf", str(archive), "."], check=True)


def main() -> None:
    """Make both archives and the manifest."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    manifest: dict[str, Any] = {
        "version": mqcore.__version__,
        "upstream": UPSTREAM,
        "queues": QUEUES,
        "topics": TOPICS,
        "bindings": BINDINGS,
    }
    for name, ending in (("stopped", signal.SIGTERM), ("killed", signal.SIGKILL)):
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary) / "data"
            manifest[name] = make(directory, ending)
            pack(directory, target / f"{name}.tar.gz")
    (target / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
