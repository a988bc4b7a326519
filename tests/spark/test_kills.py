"""A stream from queue to queue whose every process is killed in the middle of a batch, again and again.

Keys repeat, and some rows are rejected.

The depth of the run says how often; MQCORE_SPARK_ROUNDS overrides it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from depth import choices, rounds
from mqcore import sync
from served import clean_environment, wait_until
from spark.recorded import LENIENT, Recorded, drain, java_or_skip

ROUNDS = rounds("SPARK", quick=1, full=20)
pytestmark = [
    *LENIENT[1:],
    pytest.mark.timeout(600 + 300 * ROUNDS),
    pytest.mark.full("starts Spark anew after each kill; test_ledger.py kills the broker in the middle of a write"),
]
ROWS = 3000
"""Rows of each round: several batches."""
PROGRAM = Path(__file__).with_name("crossing.py")


def start(live: Recorded, checkpoint: Path, tasks: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            str(PROGRAM),
            str(live.data_dir),
            live.served.url,
            live.served.admin_url,
            str(checkpoint),
            str(tasks),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=clean_environment(),
        start_new_session=True,
    )


def arrived(mq: sync.Client) -> int:
    return sum(mq.queue(queue).information().messages for queue in ("target/1", "target/2"))


@pytest.mark.skipif(sys.platform != "linux", reason="kills a group of processes")
def test_no_row_is_lost_or_doubled_however_often_everything_is_killed(live: Recorded, tmp_path: Path) -> None:
    java_or_skip()
    checkpoint = tmp_path / "checkpoint"
    chance = choices(__name__)
    killed_inside = 0
    with sync.connect(live.served.url) as mq:
        for round_ in range(ROUNDS):
            live.publish(mq, "orders/1", ROWS)
            before = arrived(mq)
            process = start(live, checkpoint, tasks=1 + round_ % 4)
            assert process.stdout is not None
            # Killed once some of this round's rows are there, at a place within a batch that chance chooses.
            goal = before + chance.randrange(ROWS - 500)
            wait_until(lambda at=goal, job=process: arrived(mq) > at or job.poll() is not None, limit=600, what="rows")
            time.sleep(chance.random() / 10)
            killed_inside += process.poll() is None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
            print(
                f"round {round_ + 1} of {ROUNDS}: killed with {arrived(mq) - before} of {ROWS} rows there", flush=True
            )
        last = start(live, checkpoint, tasks=3)
        assert last.stdout is not None
        assert last.stdout.read() == "started\ndone\n"
        last.stdout.close()
        assert last.wait(60) == 0
    assert killed_inside == ROUNDS, "each was killed before it was done"
    valid = [body for number, body in enumerate(live.bodies["orders/1"]) if number % 11]
    invalid = live.bodies["orders/1"][::11]
    assert Counter(drain(live.served.url, "target/1")) == Counter(valid)
    assert Counter(drain(live.served.url, "target/2")) == Counter(invalid)
