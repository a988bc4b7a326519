"""How apps settle messages: policies, retries, dead letters, undecodable bodies and acknowledge timeouts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import mqcore
from app_types import Order, until
from depth import SEED, by_depth
from mqcore import AckPolicy, App, Backoff, Delivered, QueueOptions, Retry, errors
from mqcore.app import BadBody, Reject
from mqcore.config import BrokerConfig
from mqcore.testing import StoredMessage, TestBroker

DOUBLING = Backoff("1m", max="1h", jitter=0)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Handlers of these tests fail on purpose."""
    with caplog.at_level("CRITICAL", logger="mqcore.app"):
        yield


def letter(message: StoredMessage) -> tuple[str, str, str, str]:
    """Reason, queue, attempts and error of a dead letter."""
    headers = message.message.headers
    return tuple(headers[f"Dead-Letter-{name}"] for name in ("Reason", "Queue", "Attempts", "Error"))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("policy", "acks", "nacks", "dead", "calls"),
    [
        (AckPolicy.ACK_FIRST, 1, 0, 0, 1),
        (AckPolicy.ACK, 1, 0, 0, 1),
        (AckPolicy.REJECT_ON_ERROR, 1, 0, 1, 1),
        (AckPolicy.NACK_ON_ERROR, 0, 3, 1, 3),
        (AckPolicy.MANUAL, 0, 0, 0, 1),
    ],
)
async def test_policy_decides_about_messages_whose_handler_raises(
    policy: AckPolicy, acks: int, nacks: int, dead: int, calls: int
) -> None:
    app = App()
    called: list[int] = []

    @app.subscriber("orders/1", ack_policy=policy, queue_options=QueueOptions(put_back_limit=2, retry_delay=0))
    async def handle(order: Order) -> None:
        called.append(order.id)
        raise ValueError("no stock")

    async with TestBroker(app) as mq:
        await app.publish("orders/1", Order(1))
        await mq.settle()
        stats = mq.stats().queue("orders/1")
        assert (stats.acks, stats.negative_acks, len(called)) == (acks, nacks, calls)
        letters = mq.messages("orders/65535") if dead else []
        reasons = {"rejected": "1", "limit": "3"}
        assert [letter(each) for each in letters] == [
            (reason, "orders/1", reasons[reason], "ValueError: no stock")
            for reason in [("limit" if nacks else "rejected")] * dead
        ]


async def test_settle_waits_for_the_acknowledgement_of_a_handler_that_ends_meanwhile() -> None:
    app = App()
    chance = random.Random(SEED)

    @app.subscriber("orders/1", queue_options=QueueOptions(), ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(order: Order) -> None:
        await asyncio.sleep(chance.uniform(0, 0.004))
        raise ValueError("no stock")

    async with TestBroker(app) as mq:
        for number in range(1, by_depth(100, 2_000) + 1):
            await app.publish("orders/1", Order(number))
            await asyncio.sleep(chance.uniform(0, 0.002))
            await mq.settle()
            assert mq.stats().queue("orders/1").acks == number, f"seed {SEED}"


async def test_manual_policy_leaves_settling_to_the_handler() -> None:
    app = App()

    @app.subscriber("orders/1", ack_policy="manual", retry=Retry(0, dead_letter="orders/2"))
    async def handle(body: str, message: Delivered[str]) -> None:
        if body == "ack":
            await message.ack()
        elif body == "nack":
            await message.nack("my reason")

    async with TestBroker(app) as mq:
        for body in ("ack", "nack", "neither"):
            await app.publish("orders/1", body)
        await mq.settle()
        stats = mq.stats().queue("orders/1")
        assert (stats.acks, stats.negative_acks, stats.in_flight) == (1, 1, 1)
        (dead,) = mq.messages("orders/2")
        assert letter(dead)[3] == "my reason"


async def test_handler_may_settle_its_message_itself_under_every_policy() -> None:
    app = App()

    @app.subscriber("orders/1")
    async def handle(body: str, message: Delivered[str]) -> None:
        if message.attempt == 1:
            await message.nack("later", delay="5m")
        raise ValueError("after it was settled") if message.attempt == 1 else Reject("no use")

    async with TestBroker(app) as mq:
        await app.publish("orders/1", "x")
        await mq.settle()
        assert mq.stats().queue("orders/1").delayed == 1
        await mq.clock.advance(minutes=5)
        assert letter(mq.messages("orders/65535")[0]) == ("rejected", "orders/1", "2", "Reject: no use")


async def test_broker_doubles_the_delay_and_dead_letters_after_the_last_retry() -> None:
    app = App()
    attempts: list[int | None] = []

    @app.subscriber("orders/1", retry=Retry(3, backoff=DOUBLING, dead_letter="orders/9"))
    async def handle(message: Delivered[bytes]) -> None:
        attempts.append(message.attempt)
        raise ValueError("no stock")

    async with TestBroker(app) as mq:
        await app.publish("orders/1", b"x", headers={"Country": "fr"})
        await mq.settle()
        for minutes, expected in ((1, 2), (2, 3), (4, 4)):
            await mq.clock.advance(minutes=minutes - 0.01)
            assert len(attempts) == expected - 1
            await mq.clock.advance(minutes=0.02)
            assert len(attempts) == expected
        assert attempts == [1, 2, 3, 4]
        (dead,) = mq.messages("orders/9")
        assert letter(dead) == ("limit", "orders/1", "4", "ValueError: no stock")
        assert dead.message.headers["Country"] == "fr"
        assert mq.stats().queue("orders/9").options.tag == "dead-letters"


async def test_app_chooses_delays_that_the_broker_cannot() -> None:
    app = App()
    attempts: list[int | None] = []

    @app.subscriber("orders/1", retry=Retry(5, backoff=Backoff("1m", max="1h", factor=10, jitter=0)))
    def handle(message: Delivered[bytes]) -> None:
        attempts.append(message.attempt)
        raise ValueError("no stock")

    async with TestBroker(app) as mq:
        await app.publish("orders/1", b"x")
        await mq.settle()
        await mq.clock.advance(minutes=1.01)
        assert attempts == [1, 2]
        await mq.clock.advance(minutes=9)
        assert attempts == [1, 2]
        await mq.clock.advance(minutes=1)
        assert attempts == [1, 2, 3]


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("policy", BadBody)
async def test_undecodable_body_is_treated_as_the_policy_says(policy: BadBody, batch: bool) -> None:
    app = App()
    got: list[int] = []
    raised: list[BaseException] = []
    options: dict[str, Any] = {"on_bad_body": policy, "retry": Retry(1, backoff=Backoff("1m", jitter=0))}

    @app.middleware
    async def watch(message: Any, call_next: Any) -> Any:
        try:
            return await call_next(message)
        except errors.BodyError as error:
            raised.append(error)
            raise

    if batch:

        @app.batch_subscriber("orders/1", max=10, wait="50ms", **options)
        async def handle_all(orders: list[Order]) -> None:
            got.extend(order.id for order in orders)

    else:

        @app.subscriber("orders/1", **options)
        async def handle(order: Order) -> None:
            got.append(order.id)

    async with TestBroker(app) as mq:
        await app.client.publish_many("orders/1", [b'{"id":1}', b'{"id":"two"}', b'{"id":3}'])
        await mq.settle()
        stats = mq.stats().queue("orders/1")
        error = "the body is no Order: Expected `int`, got `str` - at `$.id`"
        if policy is BadBody.DEAD_LETTER:
            assert letter(mq.messages("orders/65535")[0]) == ("bad-body", "orders/1", "1", error)
            assert mq.messages("orders/65535")[0].body == b'{"id":"two"}'
            assert (stats.acks, stats.negative_acks) == (3, 0)
        elif policy is BadBody.REJECT or not batch:
            assert (stats.acks, stats.negative_acks, stats.delayed) == (2, 1, 1)
        if not (batch and policy is BadBody.RAISE):
            assert got == [1, 3]
        else:
            assert (got, stats.negative_acks) == ([], 3)
        assert bool(raised) == (policy is BadBody.RAISE)
        if policy is not BadBody.DEAD_LETTER:
            await mq.clock.advance(minutes=2)
            assert f"BodyError: {error}" in {letter(each)[3] for each in mq.messages("orders/65535")}


class Listed(msgspec.Struct):
    """A body whose type looks something up that may be missing."""

    id: int
    sku: str = "A-100"

    def __post_init__(self) -> None:
        if self.id == 2:
            raise KeyError(self.sku)


UNREADABLE = {
    "not-utf-8": (b'{"id":4,"sku":"\xff"}', "invalid start byte"),
    "deep": (b'{"id":4,"more":' + b"[" * 100_000, "while deserializing an object"),
    "raising-type": (b'{"id":2}', "KeyError: 'A-100'"),
}


@pytest.mark.parametrize("kind", ["single", "concurrent", "batch"])
@pytest.mark.parametrize("case", UNREADABLE)
async def test_subscriber_continues_after_a_body_that_raises_something_unusual(case: str, kind: str) -> None:
    app = App()
    got: list[int] = []

    if kind == "batch":

        @app.batch_subscriber("orders/1", max=10, wait="50ms")
        async def handle_all(orders: list[Listed]) -> None:
            got.extend(order.id for order in orders)

    else:

        @app.subscriber("orders/1", concurrency=1 if kind == "single" else 2)
        async def handle(order: Listed) -> None:
            got.append(order.id)

    body, error = UNREADABLE[case]
    async with TestBroker(app) as mq:
        await app.client.publish_many("orders/1", [b'{"id":1}', body, b'{"id":3}'])
        await mq.settle()
        await app.publish("orders/1", b'{"id":5}')
        await mq.settle()
        assert got == [1, 3, 5]
        (dead,) = mq.messages("orders/65535")
        assert (dead.body, letter(dead)[:3]) == (body, ("bad-body", "orders/1", "1"))
        assert letter(dead)[3].startswith("the body is no Listed: ")
        assert letter(dead)[3].endswith(error)


async def test_dead_letters_are_dropped_if_the_queue_drops_them() -> None:
    app = App()

    @app.subscriber("orders/1", retry=Retry(0, dead_letter="drop"))
    async def handle(order: Order) -> None: ...

    async with TestBroker(app) as mq:
        await app.publish("orders/1", b"bad")
        await mq.settle()
        assert mq.stats().queue("orders/1").acks == 1
        with pytest.raises(KeyError):
            mq.messages("orders/65535")


async def test_message_that_cannot_be_dead_lettered_stays_in_its_queue() -> None:
    app = App()

    @app.subscriber("orders/1", queue_options=QueueOptions(dead_letter="full/1", retry_delay="1m"))
    async def handle(order: Order) -> None: ...

    async with TestBroker() as mq, mq.client() as client:
        await client.create_queue("full/1", QueueOptions(status="pull", message_size_limit=1))
        async with mq.running(app):
            await app.publish("orders/1", b"too long for the other queue")
            await mq.settle()
            stats = mq.stats().queue("orders/1")
            assert (stats.acks, stats.negative_acks, stats.delayed) == (0, 1, 1)


async def test_dead_letters_of_a_saving_queue_are_saved(tmp_path: Any) -> None:
    app = App()

    @app.subscriber(
        "orders/1", ack_policy="reject-on-error", queue_options=QueueOptions(delivery_handler="at-least-once")
    )
    async def handle(body: str) -> None:
        raise ValueError("no")

    async with TestBroker(BrokerConfig(data_dir=str(tmp_path / "data"))) as mq, mq.running(app):
        await app.publish("orders/1", "x")
        await mq.settle()
        (dead,) = mq.messages("orders/65535")
        assert dead.saved


async def test_failing_publish_of_a_result_is_a_failure_of_the_handler() -> None:
    app = App()
    called: list[str] = []

    @app.subscriber("orders/1", retry=Retry(1, backoff=DOUBLING))
    @app.publisher("invoices/1", queue_options=QueueOptions(status="pull", message_size_limit=1))
    async def handle(body: str) -> str:
        called.append(body)
        return "too long"

    async with TestBroker(app) as mq:
        await app.publish("orders/1", "x")
        await mq.settle()
        assert mq.stats().queue("orders/1").negative_acks == 1
        await mq.clock.advance(minutes=2)
        assert called == ["x", "x"]
        assert len(mq.messages("orders/65535")) == 1


@pytest.mark.parametrize("policy", [AckPolicy.NACK_ON_ERROR, AckPolicy.REJECT_ON_ERROR])
async def test_exception_whose_text_cannot_be_encoded_fails_only_its_message(policy: AckPolicy) -> None:
    app = App()

    @app.subscriber("orders/1", ack_policy=policy, queue_options=QueueOptions(put_back_limit=0))
    async def handle(body: str) -> None:
        if body != "fine":
            # As a lone surrogate in the JSON of a peer, or a name of a file.
            raise ValueError("no \ud800 or \udcff")

    async with TestBroker(app) as mq:
        for body in ("bad", "fine"):
            await app.publish("orders/1", body)
            await mq.settle()
        stats = mq.stats().queue("orders/1")
        assert (stats.acks + stats.negative_acks, stats.unsettled) == (2, 0)
        (dead,) = mq.messages("orders/65535")
        if policy is AckPolicy.REJECT_ON_ERROR:
            assert letter(dead)[3] == "ValueError: no \\ud800 or \\udcff"


async def test_exception_that_ends_programs_ends_only_the_handler() -> None:
    app = App()
    got: list[str] = []

    @app.subscriber("orders/1", retry=Retry(0))
    async def handle(body: str) -> None:
        got.append(body)
        if body == "exit":
            raise SystemExit(3)
        if body == "cancel":
            raise asyncio.CancelledError

    @app.subscriber("plain/1", retry=Retry(0), concurrency=2)
    def plain(body: str) -> None:
        got.append(body)
        raise StopIteration

    async with TestBroker(app) as mq:
        for body in ("exit", "cancel", "fine"):
            await app.publish("orders/1", body)
        await app.publish("plain/1", "stop")
        await mq.settle()
        assert sorted(got) == ["cancel", "exit", "fine", "stop"]
        assert [letter(each)[3] for each in mq.messages("orders/65535")] == ["SystemExit: 3", "CancelledError"]
        assert [letter(each)[3] for each in mq.messages("plain/65535")] == [
            "RuntimeError: test_exception_that_ends_programs_ends_only_the_handler.<locals>.plain raised StopIteration"
        ]


@pytest.mark.parametrize("extend", [True, False])
async def test_acknowledge_timeout_is_extended_while_the_handler_runs(extend: bool) -> None:
    app = App()
    attempts: list[int | None] = []
    options = QueueOptions(acknowledge_timeout="300ms")

    @app.subscriber("orders/1", concurrency=2, extend_timeout=extend, queue_options=options)
    async def handle(message: Delivered[bytes]) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            await asyncio.sleep(1.0)

    async with mqcore.Broker() as broker:
        app.locate(broker)
        async with app:
            await app.publish("orders/1", b"x")
            await until(lambda: broker.stats().queue("orders/1").acks == 1)
    assert attempts == ([1] if extend else [1, 2])


async def test_batch_that_fails_is_rejected_except_for_what_it_settled() -> None:
    app = App()

    @app.batch_subscriber("orders/1", max=10, wait="50ms", retry=Retry(1, backoff=DOUBLING))
    async def handle(orders: list[Delivered[Order]]) -> None:
        await orders[0].ack()
        raise ValueError("no stock")

    async with TestBroker(app) as mq:
        await app.client.publish_many("orders/1", [Order(1), Order(2), Order(3)])
        await mq.settle()
        stats = mq.stats().queue("orders/1")
        assert (stats.acks, stats.negative_acks, stats.delayed) == (1, 2, 2)


async def test_settle_waits_for_all_handlers_of_a_chain() -> None:
    """Random concurrency, delays and failures; nothing may be left when `settle` returns."""
    choices = random.Random(SEED)
    for _ in range(by_depth(10, 60)):
        app = App()
        done: list[int] = []
        retry = Retry(3, backoff=Backoff("1m", jitter=0))
        several = choices.choice([1, 3])

        @app.subscriber("a/1", concurrency=several, prefetch=choices.choice([3, 100]), retry=retry)
        @app.publisher("b/1")
        async def first(body: int, message: Delivered[int]) -> int:
            if choices.random() < 0.3:
                await asyncio.sleep(choices.random() / 500)
            if body % 5 == 0 and message.attempt == 1:
                raise ValueError("once")
            return body

        @app.subscriber("b/1", concurrency=2)
        @app.publisher("c/1")
        def second(body: int) -> int:
            return body

        @app.batch_subscriber("c/1", max=7, wait=choices.choice([0, 0.002]), concurrency=several)
        async def third(bodies: list[int]) -> None:
            await asyncio.sleep(0)
            done.extend(bodies)  # noqa: B023 (called in this round)

        count = choices.randrange(1, 40)
        async with TestBroker(app) as mq:
            for number in range(count):
                await app.publish("a/1", number, confirm=choices.random() < 0.5)
            await mq.settle()
            assert sorted(done) == [number for number in range(count) if number % 5]
            await mq.clock.advance(minutes=2)
            assert sorted(done) == list(range(count))
