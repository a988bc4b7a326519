"""Pictures of the dashboard for docs/operations.md: `make screenshots` runs a busy shop and opens each page.

It needs the dashboard (`make dashboard`), the package playwright and Chromium. The pictures are in the light theme.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import mqcore
from mqcore import QueueOptions, QueueStatus
from mqcore._core import AuthorityStore
from mqcore.jobs import Jobs
from mqcore.throttr import SyncClient

if TYPE_CHECKING:
    from playwright.async_api import Page

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = ROOT / "docs" / "images"
INDEX: Final = ROOT / "python" / "mqcore" / "_dashboard" / "index.html"
PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")

SECONDS: Final = 60.0
"""Time between the pictures of one queue and those of the other pages, whose curves then have a past."""
QUEUE_SECONDS: Final = 15.0
"""Time for which the page of a queue is open before its picture."""
WIDTH: Final = 1200
HEIGHTS: Final = {
    "overview": 830,
    "queues": 520,
    "queue": 1000,
    "connections": 640,
    "routing": 770,
    "purge": 560,
    "trace": 700,
    "jobs": 760,
    "schedules": 390,
    "limits": 480,
    "users": 760,
    "cluster": 400,
    "system": 980,
}
"""Height of each picture in pixels."""
BYTES_MAX: Final = 150 << 10
"""Largest picture: every reader of the page fetches it."""
WAIT_MS: Final = 20_000

LISTENERS: Final = ("tmqp", "mqks", "mm2", "throttr", "emqp")
WORK: Final = QueueOptions(
    status=QueueStatus.ROUND_ROBIN, delivery_handler="at-least-once", request_acknowledge=True, put_back_limit=0
)
WAITING: Final = QueueOptions(status=QueueStatus.PULL)
RETRIED: Final = QueueOptions(
    status=QueueStatus.PUSH, delivery_handler="at-least-once", request_acknowledge=True, put_back_limit=3
)
TRACED: Final = "shipment-2041"
"""ID of the message whose life is shown."""
CITIES: Final = ("Ankara", "Berlin", "Lyon", "Porto")


class Shop:
    """Clients of several protocols that produce and consume until they are cancelled."""

    def __init__(self, urls: dict[str, str], token: str, stack: AsyncExitStack) -> None:
        self._urls, self._token, self._stack = urls, token, stack
        self._random = random.Random(1)
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Declare everything, connect the clients and start their work."""
        admin = await self._connect("deploy", "tool")
        for name in ("orders", "payments", "invoices"):
            await admin.declare(name, 1, WORK)
        await admin.declare("invoices", 2, WAITING)
        await admin.declare("emails", 1, QueueOptions(status=QueueStatus.PUSH))
        await admin.declare("reports", 7, WAITING)
        await admin.declare("archive", 1, WAITING)
        await admin.update_queue("archive/1", QueueOptions(status=QueueStatus.PAUSED))
        await admin.declare("shipments", 1, RETRIED)
        await self._route(admin)
        await admin.publish_many("emails/1", [b"Your order is on its way."] * 148)
        self._start(self._write_reports(admin))
        for name, count in (("orders", 3), ("payments", 2), ("invoices", 1)):
            for number in range(count):
                consumer = await self._connect(f"{name}-worker-{number + 1}", "worker")
                self._start(self._work(consumer, f"{name}/1", 0.02 if name == "orders" else 0.0))
        checkout = await self._connect("checkout", "web-shop")
        self._start(self._produce(checkout, "orders/1", 0.01))
        self._start(self._produce(checkout, "payments/1", 0.02))
        self._start(self._sell(checkout))
        await self._listen()
        self._start(self._ship(await self._connect("carrier", "worker")))
        await checkout.publish("shipments/1", self._order(), id=TRACED)

    async def close(self) -> None:
        """Stop the work. Raises the first error that ended some of it."""
        failed = [error for task in self._tasks if task.done() and (error := task.exception()) is not None]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if failed:
            raise failed[0]

    async def _connect(self, name: str, kind: str, protocol: str = "tmqp") -> mqcore.Client:
        client = mqcore.connect(self._urls[protocol], token=self._token, id=name, name=name, kind=kind)
        return await self._stack.enter_async_context(client)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def _route(self, admin: mqcore.Client) -> None:
        await admin.create_router("sales")
        for target, name in (("orders/1", "work"), ("archive/1", "archive"), ("invoices/1", "invoices")):
            await admin.bind("sales", mqcore.Binding(target=target, name=name))
        await admin.create_router("alarms", "only-first")
        await admin.bind("alarms", mqcore.Binding(target="@type:operator", name="operator", priority=10))
        await admin.bind("alarms", mqcore.Binding(target="emails/1", name="mail"))

    async def _listen(self) -> None:
        """Connect the clients of topics and of other protocols."""
        screen = await self._connect("price-screen", "kiosk")
        self._start(self._read(screen.topic("prices.*").subscribe()))
        sensor = await self._connect("cold-store", "sensor", "mm2")
        self._start(self._measure(sensor))
        display = await self._connect("cold-store-display", "display", "mm2")
        self._start(self._read(display.topic("temperature").subscribe()))
        legacy = await self._connect("stock-keeper", "legacy", "mqks")
        self._start(self._read(legacy.queue("stock").consume()))
        self._start(self._stock(await self._connect("stock-counter", "legacy", "mqks")))

    async def _produce(self, client: mqcore.Client, queue: str, pause: float) -> None:
        while True:
            await client.publish(queue, self._order())
            await asyncio.sleep(pause * self._random.uniform(0.2, 1.8))

    async def _write_reports(self, client: mqcore.Client) -> None:
        for number in itertools.count():
            body = json.dumps({"report": f"2026-{number:04}", "format": "pdf", "pages": 3 + number % 5}).encode()
            await client.publish("reports/7", body, headers={"Schema": "report-v1"})
            await asyncio.sleep(1.5)

    async def _sell(self, client: mqcore.Client) -> None:
        while True:
            await client.send("@router:sales", self._order(), headers={"City": self._random.choice(CITIES)})
            await self._publish_price(client)
            await asyncio.sleep(0.2)

    async def _publish_price(self, client: mqcore.Client) -> None:
        price = str(self._random.randrange(100, 900)).encode()
        # Without a confirmation, because the screen may not have subscribed yet.
        await client.topic(f"prices.{self._random.choice(('eur', 'try'))}").publish(price, confirm=False)

    async def _work(self, client: mqcore.Client, queue: str, failures: float) -> None:
        channel, _, number = queue.partition("/")
        async with client.queue(channel, int(number)).consume(prefetch=20) as messages:
            async for message in messages:
                await asyncio.sleep(0.03)
                if self._random.random() < failures:
                    await message.nack("card was refused")
                else:
                    await message.ack()

    async def _ship(self, client: mqcore.Client) -> None:
        """Reject a message twice before its acknowledgement."""
        async with client.queue("shipments", 1).consume(prefetch=1) as messages:
            async for message in messages:
                await asyncio.sleep(0.4)
                if message.attempt < 3:
                    await message.nack("carrier does not answer")
                else:
                    await message.ack()

    async def _measure(self, client: mqcore.Client) -> None:
        while True:
            await client.topic("temperature").publish(f"{self._random.gauss(4, 0.3):.1f}".encode())
            await asyncio.sleep(0.5)

    async def _stock(self, client: mqcore.Client) -> None:
        while True:
            await client.publish("stock", f"item-{self._random.randrange(100)}".encode())
            await asyncio.sleep(0.3)

    @staticmethod
    async def _read(stream: Any) -> None:
        async with stream as messages:
            async for message in messages:
                await message.ack()

    def _order(self) -> bytes:
        order = {"order": self._random.randrange(10**6), "items": self._random.randrange(1, 9), "total": 42.5}
        return json.dumps(order).encode()


JOBS: Final = """
from mqcore.jobs import Jobs

jobs = Jobs()


@jobs.task(name="shop.send_mail", queue="mail")
def send_mail(customer: str) -> None:
    if not customer.isascii():
        raise ValueError(f"the address of {customer} is not complete")


@jobs.task(name="shop.resize", queue="pictures")
def resize(picture: str) -> None: ...
"""
CUSTOMERS: Final = ("Ann", "Béla", "Carl", "Dorothea", "Émile", "Frank")


def jobs_url(listeners: dict[str, str]) -> str:
    """The URL of the broker for jobs, whose sockets have any ports."""
    ports = {role: listeners[f"emqp-{role}"].rpartition(":")[2] for role in ("frontend", "admin", "subscribe")}
    return f"emqp://{listeners['emqp']}?" + "&".join(f"{role}={port}" for role, port in ports.items())


@asynccontextmanager
async def working(directory: str, listeners: dict[str, str], token: str) -> AsyncIterator[None]:
    """Run workers while the block runs, and send them jobs of which some fail."""
    (Path(directory) / "shop_jobs.py").write_text(JOBS)
    url = jobs_url(listeners)
    environment = {**os.environ, "PYTHONPATH": directory, "MQCORE_TOKEN": token}
    workers = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mqcore", "worker", "shop_jobs:jobs", "--broker", url, "--queues", queues),
            *("--pool", "thread", "--concurrency", "4"),
            env=environment,
        )
        for queues in ("mail:40,pictures:10", "mail:10,pictures:40")
    ]
    try:
        await asyncio.to_thread(send_jobs, url, token)
        yield
    finally:
        for worker in workers:
            worker.terminate()
        await asyncio.gather(*(worker.wait() for worker in workers))


def send_jobs(url: str, token: str) -> None:
    """Send the jobs of a day."""
    with Jobs(url, token=token) as jobs:
        for customer in CUSTOMERS * 3:
            jobs.send("shop.send_mail", [customer], queue="mail", result=False)
        for number in range(40):
            jobs.send("shop.resize", [f"picture-{number}.png"], queue="pictures", result=False)
        jobs.send("shop.write_report", [], queue="reports-later", run_after="1h", result=False)


def count_requests(url: str) -> None:
    """Make counters of a limiter."""
    with SyncClient(url) as client:
        for number, customer in enumerate(("ann", "carl", "dorothea", "frank")):
            client.insert(f"login:{customer}", 5 - number, 40 * (number + 3))
            client.insert(f"search:{customer}", 100 - 17 * number, 60)
        client.set("session:ann", b"x" * 300, 1_800)


def send_schedules(listeners: dict[str, str], token: str) -> None:
    """Declare the schedules of the shop."""
    with Jobs(jobs_url(listeners), token=token) as jobs:

        def call(queue: str, name: str) -> Any:
            return jobs.task(name=f"shop.{name}", queue=queue)(lambda: None)

        jobs.every("15m", call("mail", "send_reminders"), nohaste=True)
        jobs.every("90s", call("stock", "count_stock"), nohaste=True)
        jobs.cron("0 3 * * *", call("mail", "write_reports"), timezone="Europe/Berlin", catch_up="all")
        jobs.cron("0 8 * * MON", call("mail", "send_newsletter"), timezone="Europe/Istanbul", runs=12)
        jobs.send_schedules()


@asynccontextmanager
async def served(data_dir: str) -> AsyncIterator[tuple[dict[str, Any], str]]:
    """Run `mqcore serve` while the block runs: its ready line, and a token of an administrator."""
    store = AuthorityStore.of_data_dir(data_dir)
    _, token = store.add_token(json.dumps({"name": "operator", "allow": ["*"]}))
    soon = int(time.time() * 1000) + 30 * 24 * 3600 * 1000
    store.add_token(json.dumps({"name": "shipping", "allow": ["push,pull:shipments/*"], "expires_ms": soon}))
    restrict = {"addresses": ["10.0.0.0/8"]}
    store.add_user(json.dumps({"name": "ann", "allow": ["inspect"], "restrict": restrict}), "correct horse battery")
    store.add_user(json.dumps({"name": "billing", "allow": ["push:invoices/*"], "certificate": "cn:billing"}), None)
    arguments = [part for name in LISTENERS for part in ("--listen", f"{name}://127.0.0.1:0")]
    arguments += ["--admin", "http://127.0.0.1:0", "--auto-create", "--data-dir", data_dir, "--history"]
    config = Path(data_dir) / "shop.toml"
    # Throttr has no credentials.
    config.write_text('[authority]\nanonymous = ["limit"]\n')
    arguments += ["--config", str(config)]
    # A broker rejects variables that only the Makefile reads.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MQCORE_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mqcore", "serve", *arguments, stdout=asyncio.subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            raise SystemExit("the broker did not start")
        yield json.loads(line), token
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def clustered(directory: str) -> AsyncIterator[str]:
    """Run two nodes with data and a witness while the block runs: the URL of an admin side."""
    with ExitStack() as sockets:
        held = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(9)]
        ports = [each.getsockname()[1] for each in held]
    members = {number: f"127.0.0.1:{ports[number - 1]}" for number in (1, 2, 3)}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MQCORE_")}
    processes = []
    try:
        for number, address in members.items():
            peers = [f"{peer}={other}" for peer, other in members.items() if peer != number]
            config = Path(directory) / f"node-{number}.toml"
            config.write_text(
                f'''listen = ["tmqp://127.0.0.1:{ports[number + 2]}"]
admin = "http://127.0.0.1:{ports[number + 5]}"
data_dir = "{directory}/data-{number}"
[cluster]
name = "shop"
node = {number}
listen = "{address}"
peers = {peers}
secret = "a secret for pictures"
witness = {str(number == 3).lower()}
'''
            )
            command = [sys.executable, "-m", "mqcore", "serve", "--config", str(config)]
            started = asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, env=environment)
            processes.append(await started)
        yield f"http://127.0.0.1:{ports[6]}"
    finally:
        for process in processes:
            process.kill()
            await process.wait()


async def save_cluster(page: Page) -> None:
    """Save a picture of the nodes of a cluster."""
    from playwright.async_api import Error

    with tempfile.TemporaryDirectory(prefix="mqcore-screenshots-") as directory:
        async with clustered(directory) as url:
            # The listener refuses connections until a node leads.
            for _ in range(WAIT_MS // 200):
                with suppress(Error):
                    await page.goto(f"{url}/#/cluster", timeout=1_000)
                    await page.get_by_text("witnessing").wait_for(timeout=1_000)
                    await page.get_by_text("following").wait_for(timeout=1_000)
                    break
                await asyncio.sleep(0.2)
            await save(page, "cluster")


async def log_in(page: Page, url: str, token: str) -> None:
    """Open the dashboard."""
    await page.goto(url)
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="show the dashboard").click()
    await page.get_by_role("heading", name="Needs attention").wait_for()


async def save(page: Page, name: str) -> None:
    """Save what the page shows, once its figures are there. Raises `SystemExit` if the picture is too large."""
    await page.set_viewport_size({"width": WIDTH, "height": HEIGHTS[name]})
    # Two of its updates, after which curves and tables have contents.
    await page.wait_for_timeout(2_500)
    target = IMAGES / f"dashboard-{name}.png"
    await page.screenshot(path=target, animations="disabled")
    size = target.stat().st_size
    if size > BYTES_MAX:
        raise SystemExit(f"{target} has {size:,} bytes, the limit is {BYTES_MAX:,}; lower its height")
    print(f"{target.relative_to(ROOT)}: {size:,} bytes")


async def save_all(page: Page, url: str, token: str, seconds: float) -> None:
    """Save a picture of each page."""
    await log_in(page, url, token)
    await page.goto(f"{url}/#/queue?name=reports/7")
    # The curves of one queue begin when its page is opened.
    await page.wait_for_timeout(QUEUE_SECONDS * 1_000)
    await page.get_by_role("button", name="show the next messages").click()
    await page.locator("details summary").first.click()
    await save(page, "queue")
    await page.get_by_role("button", name="purge …").click()
    await page.get_by_role("dialog", name="Purge reports/7").wait_for()
    await save(page, "purge")
    await page.keyboard.press("Escape")
    await page.wait_for_timeout(seconds * 1_000)
    for name in ("overview", "queues", "connections", "routing", "schedules", "limits", "users", "system"):
        await page.goto(f"{url}/#/{'' if name == 'overview' else name}")
        await save(page, name)
    await page.goto(f"{url}/#/jobs?failed=mail/65535")
    await page.get_by_text("is not complete").first.wait_for()
    await save(page, "jobs")
    await page.goto(f"{url}/#/trace?id={TRACED}")
    await page.get_by_text("is done").wait_for()
    await save(page, "trace")


async def run(seconds: float) -> None:
    """Run the shop and the browser."""
    from playwright.async_api import async_playwright

    with tempfile.TemporaryDirectory(prefix="mqcore-screenshots-") as directory:
        async with served(directory) as (ready, token), AsyncExitStack() as stack:
            urls = {name: f"{name}://{ready['listeners'][name]}" for name in LISTENERS}
            shop = Shop(urls, token, stack)
            await shop.open()
            await asyncio.to_thread(send_schedules, ready["listeners"], token)
            await asyncio.to_thread(count_requests, urls["throttr"])
            await stack.enter_async_context(working(directory, ready["listeners"], token))
            playwright = await stack.enter_async_context(async_playwright())
            chromium = await playwright.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
            stack.push_async_callback(chromium.close)
            page = await chromium.new_page(color_scheme="light", viewport={"width": WIDTH, "height": 800})
            page.set_default_timeout(WAIT_MS)
            try:
                await save_all(page, f"http://{ready['admin']}", token, seconds)
                await save_cluster(page)
            finally:
                await shop.close()


def browser() -> str:
    """Return the path of Chromium. Raises `SystemExit` if there is none."""
    found = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if found is None:
        raise SystemExit("no Chromium is installed (Debian's package chromium)")
    return found


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description="Update the pictures of the dashboard in docs/images.")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"time before the picture of the overview (default {SECONDS:g})"
    )
    arguments = parser.parse_args()
    if not INDEX.exists():
        raise SystemExit("the dashboard is not built; run make dashboard")
    asyncio.run(run(arguments.seconds))


if __name__ == "__main__":
    main()
