"""Pictures of reports for the docs: `make pictures` runs a small shop for a while and renders the reports about it.

The pictures in docs/images show real reports: pipelines make them from the history of a broker that ran.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import sys
import tempfile
import threading
import time
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mqcore.spark
from browser import browsing
from mqcore import QueueOptions, QueueStatus, sync
from mqcore.spark import pipelines
from served import ROOT, serving, wait_until
from spark.eventful import recorded_messages
from spark.made import archive_of
from spark.recorded import ARCHIVE_SECONDS, archived
from spark.weeks import PLANTED, Weeks

IMAGES = ROOT / "docs" / "images"
SECONDS = 40.0
WIDTH, HEIGHT = 940, 1000
LARGEST = 200 << 10
"""Largest picture, in bytes: every reader of the page fetches it."""
ENVIRONMENT = {"MQCORE_HISTORY": "on", "MQCORE_ARCHIVE_INTERVAL": "1s"}
OPTIONS: dict[str, dict[str, Any]] = {
    "lifecycle": {"interval": 1},
    "reconcile": {},
    "deadletters": {},
    "limits": {"window": 5, "limit": 400},
    "sessions": {},
    "features": {"queue": "orders/1"},
    "compact": {},
    "replay": {"where": "channel = 'orders'", "to": "orders-copy/1"},
    "quality": {"queue": "orders/1"},
    "cost": {"price_per_gb": 90, "price_per_million": 400, "price_per_gb_month": 80, "currency": "EUR"},
    "anomalies": {"hours": 48},
}
WORDS = ("no stock of item {}", "card {} was refused", "address of {} is unknown")


class Shop:
    """Clients that produce and consume for a while, each in a thread of its own."""

    def __init__(self, tmqp: str, mqks: str) -> None:
        self.tmqp, self.mqks = tmqp, mqks
        self.began = time.monotonic()
        self.end = self.began
        self.made = 0

    def set_up(self) -> None:
        saved = QueueOptions(
            status=QueueStatus.PULL,
            request_acknowledge=True,
            delivery_handler="at-least-once",
            dead_letter="orders-dead/1",
            put_back_limit=2,
            retry_delay=0,
        )
        with sync.connect(self.tmqp, name="setup") as mq:
            mq.declare("orders-dead", 1, QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once"))
            mq.declare("orders", 1, saved)
            mq.declare("mail", 1, QueueOptions(status=QueueStatus.PULL, request_acknowledge=True))
            mq.declare("prices", 0, QueueOptions(status=QueueStatus.BROADCAST))
            mq.declare("stock", 0, QueueOptions(status=QueueStatus.CACHE))

    def run(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        work = (self.sell, self.bill, self.post, self.tell_prices)
        threads = [threading.Thread(target=part) for part in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def order(self, chance: random.Random) -> bytes:
        self.made += 1
        if self.made % 97 == 0:
            return b"order %d, by telephone" % self.made
        content: dict[str, Any] = {"order": self.made, "price": round(chance.lognormvariate(3, 0.7), 2)}
        content["items"] = [chance.randrange(1000) for _ in range(chance.randrange(1, 6))]
        content["to"] = {"city": chance.choice(["Bern", "Basel", "Chur"]), "zip": 3000 + chance.randrange(5000)}
        if self.made % 4:
            content["coupon"] = f"C{chance.randrange(50)}" if self.made % 3 else None
        if time.monotonic() - self.began > SECONDS / 2:
            content["gift"] = chance.random() < 0.3
        return json.dumps(content).encode()

    def sell(self) -> None:
        chance = random.Random(1)
        with sync.connect(self.tmqp, name="shop") as mq:
            while time.monotonic() < self.end:
                wave = 1 + math.sin((time.monotonic() - self.began) / SECONDS * 4 * math.pi)
                mq.publish_many("orders/1", [self.order(chance) for _ in range(int(4 + 16 * wave))])
                mq.publish_many("stock/0", [b"%d" % chance.randrange(100)])
                time.sleep(0.1)

    def bill(self) -> None:
        chance = random.Random(2)
        with sync.connect(self.tmqp, name="billing") as mq:
            while time.monotonic() < self.end:
                for message in mq.queue("orders/1").pull(40):
                    if zlib.crc32(message.raw) % 19 == 0:
                        message.nack(chance.choice(WORDS).format(chance.randrange(10_000)))
                    else:
                        message.ack()
                        mq.publish("mail/1", b"your order is on its way")
                time.sleep(0.05 + 0.1 * chance.random())

    def post(self) -> None:
        with sync.connect(self.tmqp, name="mailer") as mq:
            while time.monotonic() < self.end:
                for message in mq.queue("mail/1").pull(100):
                    message.ack()
                time.sleep(0.4)

    def tell_prices(self) -> None:
        with sync.connect(self.mqks, name="prices") as mq:
            while time.monotonic() < self.end:
                mq.publish("prices/0", b"12.50")
                time.sleep(0.05)


def main() -> int:
    """Make all pictures; 1 if one is too large."""
    with tempfile.TemporaryDirectory() as folder, browsing(Path(folder) / "browser") as browser:
        place = Path(folder)
        listeners = ("--listen", "tmqp://127.0.0.1:0", "--listen", "mqks://127.0.0.1:0")
        # The name stands in the reports.
        data = place / "shop"
        with serving("--data-dir", str(data), "--auto-create", *listeners, environment=ENVIRONMENT) as served:
            print(f"a shop works for {SECONDS:.0f} s", file=sys.stderr)
            shop = Shop(served.url, f"mqks://{served.ready['listeners']['mqks']}")
            shop.set_up()
            shop.run(SECONDS / 2)
            # Bodies of the first half, for those of the whole to be compared with.
            shutil.copytree(data, place / "half")
            OPTIONS["quality"]["baseline"] = f"/{datetime.now(UTC).isoformat()}"
            shop.run(SECONDS / 2)
            wait_until(lambda: archived(data, recorded_messages(data) // 2), limit=ARCHIVE_SECONDS, what="the archive")
            served.terminate()
        spark = mqcore.spark.session("local[2]", config={"spark.log.level": "OFF"})
        pipelines.run("features", spark, place / "half", place / "reports", **OPTIONS["features"])
        large = False
        # A shop that works for a minute has no weeks to compare.
        weeks = Weeks(1)
        weeks.add("orders/1", 60, PLANTED)
        archive_of(place / "weeks", weeks.steps, together=True)
        for name, options in OPTIONS.items():
            history = place / "weeks" if name == "anomalies" else data
            report = pipelines.run(name, spark, history, place / "reports", **options).report
            browser.show(report, width=WIDTH, height=HEIGHT)
            picture = IMAGES / f"report-{name}.png"
            browser.picture(picture)
            size = picture.stat().st_size
            large |= size > LARGEST
            print(f"{picture.relative_to(ROOT)}: {size:,} bytes", file=sys.stderr)
        spark.stop()
    return int(large)


if __name__ == "__main__":
    sys.exit(main())
