"""Makes a history with one ``restored`` event for each waiting message, as versions up to commit 30f97bb7 wrote it.

Run it with a Python that has that version, and with GNU cp and tar:

    PYTHONPATH=tests python tests/vectors/restored_each/make.py DIRECTORY

It starts a broker four times. The archive has the events of the first two starts, the journal those of the others. It
writes `data.tar.gz` and `manifest.json` to DIRECTORY. The manifest has the number of messages by queue and fate.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from mqcore import QueueOptions, QueueStatus, sync
from mqcore.spark.archive import newest_manifest
from mqcore.spark.origin import Directory
from mqcore.spark.plan import Plan
from served import serving, wait_until

ENVIRONMENT = {"MQCORE_SHARDS": "1", "MQCORE_HISTORY": "on", "MQCORE_ARCHIVE_INTERVAL": "300ms"}
SAVING = QueueOptions(status=QueueStatus.PULL, request_acknowledge=True, delivery_handler="at-least-once")
MEMORY = QueueOptions(status=QueueStatus.PULL, request_acknowledge=True)


def archived(data_dir: Path) -> dict[str, int]:
    """Number of archived rows by table."""
    found = {"steps": 0, "messages": 0}
    for file in (newest_manifest(data_dir / "archive") or {"files": []})["files"]:
        found[file["table"]] += file["rows"]
    return found


def recorded(data_dir: Path) -> int:
    """Number of events in the archive and in the journal."""
    origin, request = Directory(str(data_dir)), Plan.request_of("steps", ["kind"])
    pieces = origin.pieces(request, [(end.shard, 0, end.latest) for end in origin.ends()], 1 << 30)
    return sum(rows.num_rows for piece in pieces for rows in origin.read(request, piece, fail=True))


def ack(mq: sync.Client, queue: str, count: int) -> None:
    """Acknowledge so many messages."""
    for message in mq.queue(queue).pull(count):
        message.ack()


def main() -> None:
    """Make the directory and the manifest."""
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / "data"
        with serving("--data-dir", str(data), environment=ENVIRONMENT) as served:
            with sync.connect(served.url, name="shop") as mq:
                mq.declare("orders", 1, SAVING)
                mq.declare("other", 2, SAVING)
                mq.declare("memory", 3, MEMORY)
                for number in range(30):
                    for queue in ("orders/1", "other/2"):
                        mq.publish(queue, f"{queue} {number}", id=f"{queue[:2]}-{number}")
                for number in range(10):
                    mq.publish("memory/3", f"memory {number}", id=f"me-{number}")
                ack(mq, "orders/1", 5)
            wait_until(lambda: archived(data)["messages"] == 70, limit=60)
        with serving("--data-dir", str(data), environment=ENVIRONMENT) as served:
            with sync.connect(served.url, name="shop") as mq:
                ack(mq, "orders/1", 5)
                mq.publish("memory/3", "memory again", id="me-again")
            wait_until(lambda: archived(data)["messages"] == 71, limit=60)
            served.process.kill()
        for queue in ("orders/1", "other/2"):
            before = recorded(data)
            with serving("--data-dir", str(data), environment={**ENVIRONMENT, "MQCORE_ARCHIVE": "off"}) as served:
                with sync.connect(served.url, name="shop") as mq:
                    ack(mq, queue, 3)
                    mq.publish(queue, "late", id=f"late-{queue[:2]}")
                wait_until(lambda before=before: recorded(data) > before + 40 + 6, limit=60)
                served.process.terminate()
                served.process.wait()
        sparse = Path(temporary) / "sparse"
        subprocess.run(["cp", "--archive", "--sparse=always", str(data), str(sparse)], check=True)
        options = ["--sparse", "--owner=0", "--group=0", "--numeric-owner", "--sort=name"]
        subprocess.run(["tar", *options, "-C", str(sparse), "-czf", str(target / "data.tar.gz"), "."], check=True)
    fates = {
        "orders/1": {"acked": 13, "waiting": 18},
        "other/2": {"acked": 3, "waiting": 28},
        "memory/3": {"lost": 11},
    }
    (target / "manifest.json").write_text(json.dumps({"fates": fates}, indent=1) + "\n")


if __name__ == "__main__":
    main()
