"""`received_many`: a handler that decides about all messages that have arrived, with columns for NumPy and Arrow."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import mqcore
from mqcore import Decision, Decisions, DeliveryHandler, MessageBatch, QueueOptions, SendAck, errors
from mqcore.config import QueueStatus

KEEP = Decision(acknowledge=SendAck.ALWAYS)
REJECT = Decision(allow=False, acknowledge=SendAck.NEGATIVE)
BODIES = [bytes([65 + number]) * number for number in range(40)]
"""Some of them are so short that Arrow holds them in a view, others have a buffer."""


class Many(DeliveryHandler):
    """Keeps what it was shown, and answers with a function of the batch."""

    def __init__(self, decide: Callable[[MessageBatch], Any]) -> None:
        self.batches: list[MessageBatch] = []
        self.decide = decide

    def received_many(self, queue: mqcore.QueueView, messages: MessageBatch) -> Any:
        self.batches.append(messages)
        return self.decide(messages)


async def published(handler: DeliveryHandler, bodies: list[bytes] = BODIES, **options: Any) -> list[bool]:
    """Publish at once to a queue with this handler; which messages were confirmed, in order."""
    broker = mqcore.Broker()
    broker.delivery_handlers["many"] = handler
    async with broker, mqcore.connect(broker) as mq:
        await mq.declare("work", 1, QueueOptions(status=QueueStatus.PULL, delivery_handler="many"))
        calls = (mq.publish("work/1", body, **options) for body in bodies)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        unexpected = [each for each in outcomes if not isinstance(each, mqcore.client.Receipt | errors.MqcoreError)]
        assert not unexpected
        confirmed = [not isinstance(each, errors.MqcoreError) for each in outcomes]
        stored = await mq.queue("work/1").pull(len(bodies)) if any(confirmed) else []
        assert [message.raw for message in stored] == [
            body for body, kept in zip(bodies, confirmed, strict=True) if kept
        ]
    return confirmed


ANSWERS: dict[str, Callable[[MessageBatch], Any]] = {
    "numpy bool": lambda batch: Decisions((KEEP, REJECT), np.asarray(batch.sizes) % 2 == 1),
    "numpy uint8": lambda batch: Decisions([KEEP, REJECT], (np.asarray(batch.sizes) % 2).astype(np.uint8)),
    "numbers": lambda batch: Decisions((KEEP, REJECT), [size % 2 for size in batch.sizes]),
    "decisions": lambda batch: [REJECT if len(message) % 2 else KEEP for message in batch],
    "arrow": lambda batch: Decisions((KEEP, REJECT), [len(body.as_py()) % 2 for body in pa.array(batch.bodies)]),
}


@pytest.mark.parametrize("answer", ANSWERS)
async def test_each_message_gets_its_own_decision(answer: str) -> None:
    handler = Many(ANSWERS[answer])
    assert await published(handler) == [len(body) % 2 == 0 for body in BODIES]
    assert sum(len(batch) for batch in handler.batches) == len(BODIES)
    assert len(handler.batches) < len(BODIES), "messages that arrive together are decided together"


async def test_one_decision_holds_for_all() -> None:
    assert await published(Many(lambda batch: KEEP)) == [True] * len(BODIES)
    assert await published(Many(lambda batch: REJECT)) == [False] * len(BODIES)


async def test_columns_have_what_the_messages_have() -> None:
    handler = Many(lambda batch: KEEP)
    await published(handler, headers={"Region": "eu"}, priority=200)
    for batch in handler.batches:
        messages = list(batch)
        assert [batch[number].body for number in range(len(batch))] == [message.body for message in messages]
        assert batch[-1].body == messages[-1].body
        with pytest.raises(IndexError):
            batch[len(batch)]
        bodies = [message.body for message in messages]
        assert pa.array(batch.bodies).cast(pa.binary()).to_pylist() == bodies
        assert pa.array(batch.ids).cast(pa.string()).to_pylist() == [message.id for message in messages]
        assert pa.array(batch.sources).cast(pa.string()).to_pylist() == [message.source for message in messages]
        assert pa.array(batch.header("region")).cast(pa.string()).to_pylist() == ["eu"] * len(batch)
        assert pa.array(batch.header("Missing")).null_count == len(batch)
        assert np.asarray(batch.sizes).tolist() == [len(body) for body in bodies]
        assert np.asarray(batch.priorities).tolist() == [200] * len(batch)
        assert np.asarray(batch.received_at).dtype == np.float64
        table = pa.record_batch(batch)
        assert table.schema.names == ["id", "source", "body", "size", "priority", "received_at"]
        assert table.num_rows == len(batch)


async def test_bodies_for_arrow_are_not_copied_and_outlive_the_call() -> None:
    handler = Many(lambda batch: KEEP)
    await published(handler, [b"x" * 1000])
    (batch,) = handler.batches
    handler.batches.clear()
    column = pa.array(batch.bodies)
    address = next(buffer.address for buffer in column.buffers()[2:] if buffer is not None)
    assert address == np.frombuffer(batch[0], np.uint8).ctypes.data
    del batch
    assert column.cast(pa.binary()).to_pylist() == [b"x" * 1000]


async def test_saved_messages_of_a_call_survive(tmp_path: Path) -> None:
    def broker() -> mqcore.Broker:
        made = mqcore.Broker(data_dir=tmp_path / "data")
        made.delivery_handlers["many"] = Many(lambda batch: Decision(save=True, acknowledge=SendAck.IF_SAVED))
        return made

    async with broker() as first, mqcore.connect(first) as mq:
        await mq.declare("work", 1, QueueOptions(status=QueueStatus.PULL, delivery_handler="many"))
        await asyncio.gather(*(mq.publish("work/1", body) for body in BODIES))
    async with broker() as second, mqcore.connect(second) as mq:
        assert [message.raw for message in await mq.queue("work/1").pull(len(BODIES))] == BODIES


WRONG: dict[str, tuple[Callable[[MessageBatch], Any], str]] = {
    "raises": (lambda batch: 1 / 0, "division by zero"),
    "None": (lambda batch: None, "returned None, not a mqcore.Decision"),
    "too few": (lambda batch: [KEEP] * (len(batch) - 1), r"returned \d+ decisions for \d+ messages"),
    "too many": (lambda batch: Decisions((KEEP,), bytes(len(batch) + 1)), r"returned \d+ decisions for \d+ messages"),
    "no decisions": (lambda batch: [1] * len(batch), "1 is not a mqcore.Decision"),
}


@pytest.mark.parametrize("mistake", WRONG)
async def test_wrong_answer_rejects_all_messages_of_the_call(mistake: str, caplog: pytest.LogCaptureFixture) -> None:
    decide, text = WRONG[mistake]
    assert await published(Many(decide)) == [False] * len(BODIES)
    raised = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert raised, "the log has the exception"
    assert all(re.search(text, each) for each in raised), raised


async def test_exception_thrown_decides_about_all_messages_of_the_call() -> None:
    class Recovers(Many):
        def exception_thrown(self, queue: Any, message: Any, exception: Exception) -> Decision:
            assert message is None
            return Decision(acknowledge=SendAck.ALWAYS)

    assert await published(Recovers(lambda batch: 1 / 0)) == [True] * len(BODIES)


def test_index_must_name_a_choice_with_one_byte() -> None:
    with pytest.raises(ValueError, match="the index names choice 2, and there are 2"):
        Decisions((KEEP, REJECT), [0, 2])
    with pytest.raises(TypeError, match="8 bytes"):
        Decisions((KEEP, REJECT), np.array([0, 1]))
    with pytest.raises(ValueError, match="range"):
        Decisions((KEEP,), [256])
    with pytest.raises(TypeError, match=r"not a mqcore\.Decision"):
        Decisions((True,), [0])  # type: ignore[arg-type]
    decisions = Decisions((KEEP, REJECT), [1, 0])
    assert (len(decisions), decisions[0], decisions[1]) == (2, REJECT, KEEP)
    with pytest.raises(IndexError):
        decisions[2]


def test_handlers_that_cannot_decide_at_once_are_refused_at_registration() -> None:
    class Both(Many):
        def received_from_producer(self, queue: Any, message: Any, producer: Any) -> Decision:
            return KEEP

    class Awaited(DeliveryHandler):
        async def received_many(self, queue: Any, messages: Any) -> Decision:  # type: ignore[override]
            return KEEP

    class AwaitedException(Many):
        async def exception_thrown(self, queue: Any, message: Any, exception: Exception) -> Decision:
            return KEEP

    class Misspelt(DeliveryHandler):
        def recieved_many(self, queue: Any, messages: Any) -> Decision:
            return KEEP

    broker = mqcore.Broker()
    for handler, text in (
        (Both(lambda batch: KEEP), "keep one"),
        (Awaited(), "Awaited.received_many is async"),
        (AwaitedException(lambda batch: KEEP), "AwaitedException.exception_thrown is async"),
        (Misspelt(), "did you mean received_many"),
    ):
        with pytest.raises(TypeError, match=text):
            broker.delivery_handlers["many"] = handler
