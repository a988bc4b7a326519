"""A program that uses a client or embeds a broker may end at any moment, and ends cleanly."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from damaged_files import SAVING, verify
from depth import by_depth
from mqcore import QueueOptions
from mqcore.sync import connect
from served import ServedBroker, clean_environment, serving, wait_until

# The last thing it does is to await an answer: the thread that brought it may still be on its way back.
PROGRAM = """
import asyncio, os, sys
import mqcore

async def main():
    async with mqcore.connect(sys.argv[1]) as client:
        queue = f"ends-{os.getpid()}/0"
        await client.publish(queue, b"x")
        async with client.queue(queue).consume() as messages:
            async for message in messages:
                return

asyncio.run(main())
"""


def test_a_program_may_end_upon_its_last_answer(served: ServedBroker) -> None:
    def end(_number: int) -> int:
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, served.url], env=clean_environment(), timeout=30, check=False
        ).returncode

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(end, range(by_depth(quick=6, full=60)))) == {0}


def test_a_program_may_end_without_closing_its_client(served: ServedBroker) -> None:
    program = PROGRAM.replace("                return", "                sys.exit(7)")
    done = subprocess.run([sys.executable, "-c", program, served.url], env=clean_environment(), timeout=30, check=False)
    assert done.returncode == 7


BROKER = """
import asyncio, sys, time
import mqcore

options = {"listen": "tmqp://127.0.0.1:0", "data_dir": sys.argv[1]}

def ready(broker):
    print(broker.listeners[0], flush=True)

"""

WAITING = {
    "await serve_forever": """
        async def main():
            async with mqcore.Broker(**options) as broker:
                ready(broker)
                await broker.serve_forever()
        asyncio.run(main())
        """,
    "serve_forever without await, in a coroutine": """
        async def main():
            async with mqcore.Broker(**options) as broker:
                broker.serve_forever()
                ready(broker)
                await asyncio.sleep(3600)
        asyncio.run(main())
        """,
    "serve_forever without await, in a plain program": """
        with mqcore.Broker(**options) as broker:
            broker.serve_forever()
            ready(broker)
            time.sleep(3600)
        """,
    "wait": """
        with mqcore.Broker(**options) as broker:
            ready(broker)
            broker.wait()
        """,
}


APP = """
import sys, time
from contextlib import asynccontextmanager
import mqcore.sync

@asynccontextmanager
async def begin(app):
    await app.publish("stuck/1", "x")
    yield

app = mqcore.App(sys.argv[1], lifespan=begin, drain_timeout="100ms")

@app.subscriber("stuck/1")
def handle(body: str) -> None:
    with mqcore.sync.connect(sys.argv[1]) as client:
        others = client.queue("others/1").consume()
        print("started", flush=True)
        WAIT

app.run()
print("ended", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent the way of POSIX")
@pytest.mark.parametrize("wait", ["time.sleep(3600)", "next(iter(others))"])
def test_an_app_ends_although_a_plain_handler_does_not_return(wait: str, served: ServedBroker) -> None:
    command = [sys.executable, "-c", APP.replace("WAIT", wait), served.url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=clean_environment()) as process:
        assert process.stdout is not None
        try:
            started = process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=10)
        finally:
            process.kill()
    assert (started, said, process.returncode) == ("started\n", "ended\n", 0)


HANDLER = """
import asyncio, pathlib, time
import mqcore

class Slow(mqcore.DeliveryHandler):
    timeout = 0.1

    async def received_from_producer(self, queue, message, producer):
        pathlib.Path("started").touch()
        await asyncio.to_thread(time.sleep, 3600)

broker = mqcore.Broker(listen="tmqp://127.0.0.1:0")
broker.delivery_handlers["slow"] = Slow()
"""


def test_a_broker_ends_although_a_thread_of_an_async_handler_does_not_return(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(HANDLER)
    with serving("--app", "shop:broker", cwd=tmp_path) as broker, connect(broker.url) as client:
        client.declare("orders", 1, QueueOptions(delivery_handler="slow"))
        client.publish("orders/1", "x", confirm=False)
        wait_until((tmp_path / "started").exists, what="the handler")
        assert broker.terminate() == 0


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent the way of POSIX")
@pytest.mark.parametrize("waiting", WAITING)
def test_ctrl_c_stops_a_broker_with_a_clean_journal(waiting: str, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    command = [sys.executable, "-c", BROKER + textwrap.dedent(WAITING[waiting]), str(directory)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=clean_environment()) as process:
        assert process.stdout is not None
        with connect(process.stdout.readline().strip()) as client:
            client.declare("orders", 1, SAVING)
            for number in range(20):
                client.publish("orders/1", f"body {number}")
            # While the client is connected: the broker says goodbye to it.
            process.send_signal(signal.SIGINT)
            _, text = process.communicate(timeout=15)
    assert "KeyboardInterrupt" in text
    assert ("'Broker.serve_forever' was never awaited" in text) == ("without await" in waiting)
    code, findings = verify(directory)
    assert code == 0, findings
    with serving("--data-dir", str(directory)) as broker, connect(broker.url) as client:
        messages = client.queue("orders/1").pull(20)
        assert [message.body for message in messages] == [f"body {number}".encode() for number in range(20)]
