"""Callbacks that raise what would end a program: neither `mqcore serve` nor an embedding program ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import mqcore
from mqcore import QueueOptions, errors
from served import serving

EXCEPTIONS = ["SystemExit(3)", "KeyboardInterrupt()", "GeneratorExit()", "asyncio.CancelledError()", "Unprintable()"]

APP = '''
"""Callbacks that try to end the program."""

import asyncio

import mqcore
from mqcore.authority import Authority, Identity


class Unprintable(BaseException):
    """Its text raises too."""

    def __str__(self):
        raise SystemExit(5)


def end(detail=None):
    raise {exception}


class Plain(Authority):
    """Decides with plain methods."""

    timeout = "2s"

    def authenticate(self, hello):
        return Identity("good", ("*",)) if hello.name == "good" else end()

    def authorize(self, client, action, resource):
        return end() if resource == "work/9" else True


class Awaited(Plain):
    """Decides with coroutines."""

    async def authenticate(self, hello):
        await asyncio.sleep(0)
        return Identity("good", ("*",)) if hello.name == "good" else end()

    async def authorize(self, client, action, resource):
        await asyncio.sleep(0)
        return end() if resource == "work/9" else True


class Starts(mqcore.DeliveryHandler):
    """Starts a task and a callback that raise, and then decides."""

    async def received_from_producer(self, queue, message, producer):
        loop = asyncio.get_running_loop()
        loop.call_soon(end)
        self.task = asyncio.create_task(self.run())
        await asyncio.wait([self.task])
        return mqcore.Decision()

    async def run(self):
        end()


class Answers(mqcore.DeliveryHandler):
    """Raises in its only step."""

    async def received_from_producer(self, queue, message, producer):
        end()


broker = mqcore.Broker(listen="tmqp://127.0.0.1:0", auto_create_channels=True)
broker.authority = {style}()
broker.delivery_handlers["starts"] = Starts()
broker.delivery_handlers["answers"] = Answers()
'''


@pytest.mark.parametrize("exception", EXCEPTIONS)
@pytest.mark.parametrize("style", ["Plain", "Awaited"])
async def test_no_exception_of_an_authority_or_handler_ends_the_broker(
    exception: str, style: str, tmp_path: Path
) -> None:
    (tmp_path / "gate.py").write_text(APP.replace("{exception}", exception).replace("{style}", style))
    with serving("--app", "gate:broker", cwd=tmp_path) as broker:
        for _ in range(2):
            with pytest.raises(errors.AuthFailed):
                await mqcore.connect(broker.url, name="bad")
            async with mqcore.connect(broker.url, name="good") as mq:
                await mq.declare("work", 1)
                with pytest.raises(errors.Unauthorized):
                    await mq.publish("work/9", b"")
                await mq.publish("work/1", b"")
        async with mqcore.connect(broker.url, name="good", request_timeout="5s") as mq:
            await mq.create_queue("work/2", QueueOptions(delivery_handler="answers"))
            with pytest.raises(errors.Busy):
                await mq.publish("work/2", b"", timeout="5s")
            await mq.create_queue("work/3", QueueOptions(status="pull", delivery_handler="starts"))
            for _ in range(2):
                await mq.publish("work/3", b"", confirm=False)
            async with asyncio.timeout(10):
                while (await mq.queue("work/3").information()).messages < 2:
                    pass
        assert broker.process.poll() is None
        assert broker.terminate() == 0


EMBEDDING = """
import asyncio

import mqcore


class Ends(mqcore.DeliveryHandler):
    async def received_from_producer(self, queue, message, producer):
        asyncio.get_running_loop().call_soon(end)
        raise {exception}


def end():
    raise SystemExit(3)


broker = mqcore.Broker(auto_create_channels=True)
broker.delivery_handlers["ends"] = Ends()
with broker, mqcore.sync.connect(broker) as mq:
    mq.create_queue("work/1", mqcore.QueueOptions(delivery_handler="ends"))
    for _ in range(3):
        try:
            mq.publish("work/1", b"", timeout="5s")
        except mqcore.errors.Busy:
            print("busy")
"""


@pytest.mark.parametrize("exception", ["SystemExit(3)", "KeyboardInterrupt", "GeneratorExit"])
def test_no_exception_of_a_handler_ends_the_loop_of_an_embedded_broker(exception: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(EMBEDDING.replace("{exception}", exception))
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=40, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "busy\n" * 3), done.stderr
