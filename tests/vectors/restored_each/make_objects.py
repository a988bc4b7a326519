"""Makes the same kind of history with its archive in Iceberg tables, as versions up to commit 30f97bb7 wrote it.

    PYTHONPATH=tests python tests/vectors/restored_each/make_objects.py DIRECTORY

It writes `objects.tar.gz` with the data directory and the objects. `make.py` makes the archive in the directory.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from mqcore import QueueOptions, QueueStatus, sync
from object_stores import BUCKET, moto_server
from served import serving, wait_until

SAVING = QueueOptions(status=QueueStatus.PULL, request_acknowledge=True, delivery_handler="at-least-once")
URL = f"s3://{BUCKET}/earlier"
SETTINGS = {"MQCORE_SHARDS": "1", "MQCORE_HISTORY": "on", "MQCORE_ARCHIVE_INTERVAL": "100ms"}


def archived(page: str) -> int:
    """How many rows a broker has archived since its start."""
    with urllib.request.urlopen(page, timeout=5) as metrics:
        lines = metrics.read().decode().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("mqcore_archive_rows_total ")))


def main() -> None:
    """Make the archive."""
    with tempfile.TemporaryDirectory() as temporary, moto_server() as store:
        root = Path(temporary) / "made"
        data = root / "data"
        environment = store.environment | SETTINGS | {"MQCORE_ARCHIVE_URL": URL}
        for start in range(2):
            # A start, ten messages with their content, and what they did; the second start restored ten others.
            rows = 1 + 3 * 10 + 10 * start
            arguments = ("--data-dir", str(data), "--admin", "http://127.0.0.1:0")
            with serving(*arguments, environment=environment) as served:
                with sync.connect(served.url, name="shop") as mq:
                    if not start:
                        mq.declare("orders", 1, SAVING)
                    for number in range(10):
                        mq.publish("orders/1", f"{start}-{number}", id=f"{start}-{number}")
                page = f"{served.admin_url}/metrics"
                wait_until(lambda page=page, rows=rows: archived(page) >= rows, limit=60, what=f"{rows} archived rows")
                served.terminate()
        for key in store.keys("earlier/"):
            path = root / "objects" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(store.client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        sparse = Path(temporary) / "sparse"
        subprocess.run(["cp", "--archive", "--sparse=always", str(root), str(sparse)], check=True)
        options = ["--sparse", "--owner=0", "--group=0", "--numeric-owner", "--sort=name"]
        target = Path(sys.argv[1]) / "objects.tar.gz"
        subprocess.run(["tar", *options, "-C", str(sparse), "-czf", str(target), "."], check=True)


if __name__ == "__main__":
    main()
