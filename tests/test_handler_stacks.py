"""The stack of a blocked handler: `GET /handlers/KEY/stack`, also while it holds the interpreter."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqcore
from awaited import until
from mqcore import QueueOptions, QueueStatus
from served import ServedBroker, serving

APP = """
import asyncio, time
import mqcore

def look_up(body):
    time.sleep(float(body))

class Sleeps(mqcore.DeliveryHandler):
    def received_from_producer(self, queue, message, producer):
        look_up(message.body)
        return mqcore.Decision(acknowledge=mqcore.SendAck.ALWAYS)

class Waits(mqcore.DeliveryHandler):
    async def received_from_producer(self, queue, message, producer):
        look_up(message.body)
        return mqcore.Decision(acknowledge=mqcore.SendAck.ALWAYS)

class Holds(mqcore.DeliveryHandler):
    def received_from_producer(self, queue, message, producer):
        # One call that never releases the interpreter, for some seconds.
        sorted(range(int(message.body)), key=int)
        return mqcore.Decision(acknowledge=mqcore.SendAck.ALWAYS)

app = {"sleeps": Sleeps(), "waits": Waits(), "holds it": Holds()}
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServedBroker]:
    (tmp_path / "shop.py").write_text(APP)
    listen = ("--listen", "tmqp://127.0.0.1:0", "--admin", "http://127.0.0.1:0")
    with serving("--app", "shop:app", *listen, environment={"PYTHONPATH": str(tmp_path)}) as running:
        yield running


def stack(broker: ServedBroker, key: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{broker.admin_url}/handlers/{key}/stack", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


@pytest.mark.parametrize(("key", "thread"), [("sleeps", "handler"), ("waits", "event loop")])
async def test_the_line_at_which_a_handler_is_blocked_is_shown(broker: ServedBroker, key: str, thread: str) -> None:
    assert stack(broker, key) == {"handler": key, "state": "idle", "threads": [{"thread": "handler", "frames": []}]}
    async with mqcore.connect(broker.url) as mq:
        await mq.declare("work", 1, QueueOptions(status=QueueStatus.PULL, delivery_handler=key))
        await mq.publish("work/1", "3", confirm=False)
        await until(lambda: stack(broker, key)["state"] == "running", "the call")
        found = stack(broker, key)
    blocked = {seen["thread"]: seen["frames"] for seen in found["threads"]}[thread]
    assert [frame["function"] for frame in blocked[-2:]] == ["received_from_producer", "look_up"]
    assert blocked[-1]["code"] == "time.sleep(float(body))"
    assert blocked[-1]["file"].endswith("shop.py")
    assert APP.splitlines()[blocked[-1]["line"] - 1].strip() == blocked[-1]["code"]


async def test_a_handler_that_holds_the_interpreter_is_named_without_it(broker: ServedBroker) -> None:
    async with mqcore.connect(broker.url) as mq:
        await mq.declare("work", 1, QueueOptions(status=QueueStatus.PULL, delivery_handler="holds it"))
        # As long as one such call takes on this machine for four seconds.
        began = time.perf_counter()
        sorted(range(1_000_000), key=int)
        count = int(4 / (time.perf_counter() - began) * 1_000_000)
        await mq.publish("work/1", str(count), confirm=False)
        await until(lambda: stack(broker, "holds%20it")["state"] == "gil-held", "the call")
        assert stack(broker, "sleeps")["state"] == "gil-held", "a second request does not wait for the first"
        await until(lambda: stack(broker, "sleeps")["state"] == "idle", "the end of the call", limit=30)


def test_an_unknown_key_is_named(broker: ServedBroker) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as raised:
        stack(broker, "nope")
    with raised.value as answer:
        assert "no handler has the key" in json.load(answer)["error"]["message"]
