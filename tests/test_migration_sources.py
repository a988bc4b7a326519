"""The programs from which migration guides start, with the brokers and clients that they are written for.

`benches/peers` installs these into target/bench-peers. The tests are skipped with the reason where that is impossible.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import new_user
from served import ROOT

# At the end, and only for these imports: other files there have the names of test modules.
sys.path.append(str(ROOT / "benches"))

from peers.machine import Processors
from peers.place import Missing, Place
from peers.servers import SERVERS

sys.path.remove(str(ROOT / "benches"))

PROGRAMS = {
    "rabbitmq": ("migrate/rabbitmq/rabbitmq.py", "amqp", "127.0.0.1:5672", ["packed 3 x A-100", "packed 1 x B-200"]),
    "redis": ("migrate/redis/redis_orders.py", "redis", "6379", ["packed 3 x A-100", "packed 1 x B-200"]),
}


@pytest.mark.skipif(sys.platform != "linux", reason="the packages of other brokers are those of Debian")
@pytest.mark.full("installs other brokers")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_program_for_another_broker_does_what_that_for_mqcore_does(name: str, tmp_path: Path) -> None:
    program, protocol, address, output = PROGRAMS[name]
    processors = frozenset(os.sched_getaffinity(0))
    place = Place(ROOT / "target" / "bench-peers", load=Path(os.devnull))
    place.directory.mkdir(parents=True, exist_ok=True)
    try:
        python = place.python("peers")
        installed = SERVERS[name].install(place)
        with SERVERS[name].start(installed, "fsync", tmp_path, Processors(processors, processors)) as server:
            found = server.addresses[protocol]
            text = (ROOT / "docs" / "snippets" / program).read_text()
            assert address in text
            copy = tmp_path / "program.py"
            copy.write_text(text.replace(address, found if ":" in address else found.rpartition(":")[2]))
            done = subprocess.run([python, copy], capture_output=True, text=True, timeout=60, check=False)
    except Missing as reason:
        pytest.skip(str(reason))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == output


FASTSTREAM = """
import asyncio
from faststream.rabbit import TestRabbitBroker
from faststream_billing import Invoice, Order, bill, broker

invoices = []

@broker.subscriber("invoices")
async def take(invoice: Invoice) -> None:
    invoices.append(invoice)

async def main() -> None:
    async with TestRabbitBroker(broker):
        await broker.publish(Order(number=7, total=100.0), "orders")
        bill.mock.assert_called_once_with({"number": 7, "total": 100.0})

asyncio.run(main())
print([(invoice.number, round(invoice.total, 2)) for invoice in invoices])
"""


@pytest.mark.full("installs FastStream")
@pytest.mark.timeout(300)
def test_program_that_the_guide_for_faststream_begins_with_works_with_faststream(tmp_path: Path) -> None:
    if os.name == "nt" or not new_user.reachable():
        pytest.skip("pip cannot download packages")
    python = tmp_path / "environment" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", python.parent.parent], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "faststream[rabbit]"], check=True)
    program = [python, "-c", FASTSTREAM]
    done = subprocess.run(
        program,
        cwd=ROOT / "docs" / "snippets" / "migrate" / "faststream",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["billed order 7", "[(7, 119.0)]"]
