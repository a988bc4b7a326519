"""Filters that need much work do not stop other clients: each message and connection has a budget of steps."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import mqcore
from awaited import until
from metrics import metric
from mm2_peer import MM2Peer, command, subscribe
from served import ServedBroker, serving

CONNECTIONS, FILTERS, TERMS = 20, 1_000, 32
OVER_BUDGET = "mqcore_micromessage_filters_over_budget_total"
VALUE = "x" * 60_000
PLACE = "topic/prices"


def filter_of(operator: str, number: int) -> str:
    """A filter whose last term alone does not match a long text of `x`. No other number has the same filter."""
    return ";".join([f"a!=Tnever{number}", *[f"a{operator}Tx"] * (TERMS - 2), "a>Ty"])


def subscribe_to_all(peer: MM2Peer, operator: str) -> None:
    peer.open("pub-sub;x-mqcore")
    asked = [subscribe(PLACE, name=f"s{number}", wanted=filter_of(operator, number)) for number in range(FILTERS)]
    peer.send(*(command(text) for text in asked))
    for number in range(FILTERS):
        assert peer.answer(f"s{number}") == "ok"


def listeners(broker: ServedBroker) -> tuple[str, str]:
    found = broker.ready["listeners"]
    return f"mm2://{found['mm2']}", f"tmqp://{found['tmqp']}"


def attack(broker: ServedBroker, operator: str, messages: int) -> None:
    """Publish messages that all filters of all connections have to look at, while another client works."""
    mm2, tmqp = listeners(broker)
    with contextlib.ExitStack() as peers:
        for _ in range(CONNECTIONS):
            subscribe_to_all(peers.enter_context(contextlib.closing(MM2Peer(mm2))), operator)
        producer = peers.enter_context(contextlib.closing(MM2Peer(mm2))).open("pub-sub;x-mqcore")

        async def work() -> None:
            async with mqcore.connect(tmqp) as client, client.topic("prices").subscribe() as prices:
                arriving = aiter(prices)
                for number in range(messages):
                    producer.publish(PLACE, b"%d" % number, f"a:T{VALUE};")
                    async with asyncio.timeout(10):
                        await client.publish("orders", b"unrelated", confirm=True)
                        assert (await anext(arriving)).body == b"%d" % number
                await until(
                    lambda: metric(broker, OVER_BUDGET) >= expected(operator, messages), "the count of messages"
                )

        asyncio.run(work())
        assert metric(broker, OVER_BUDGET) == expected(operator, messages)
        # The subscriber itself still works: what all can match is delivered to it.
        last = peers.enter_context(contextlib.closing(MM2Peer(mm2))).open("pub-sub;x-mqcore")
        assert last.ask(subscribe(PLACE, name="all", wanted="a<Tx")) == "ok"
        producer.publish(PLACE, b"delivered", "a:Txyz;")
        assert last.whole_message().payload == b"delivered"


def expected(operator: str, messages: int) -> int:
    return CONNECTIONS * messages if operator == "&" else 0


@pytest.mark.parametrize("operator", ["<", "&"], ids=["prefixes", "searches"])
def test_twenty_thousand_filters_do_not_stop_other_clients(operator: str) -> None:
    """Prefixes are within the budget, because a property is parsed once; searches of the whole text are not."""
    listen = ("--listen", "tmqp://127.0.0.1:0", "--listen", "mm2://127.0.0.1:0", "--admin", "http://127.0.0.1:0")
    with serving(*listen, "--auto-create") as broker:
        attack(broker, operator, messages=5)


def test_messages_over_the_budget_are_reported_to_the_operator() -> None:
    with (
        mqcore.Broker(listen="mm2://127.0.0.1:0", admin="http://127.0.0.1:0") as broker,
        MM2Peer(broker.listeners[0]) as subscriber,
        MM2Peer(broker.listeners[0]) as producer,
    ):
        subscribe_to_all(subscriber, "&")
        producer.open("pub-sub;x-mqcore").publish(PLACE, b"1", f"a:T{VALUE};")
        producer.publish(PLACE, b"2", f"a:T{VALUE};")
        assert producer.until_now() == []

        async def reported() -> None:
            await until(lambda: metric(broker, OVER_BUDGET) == 2, "the count of messages")
            await until(lambda: bool(broker.errors()), "the report")

        asyncio.run(reported())
        (error,) = broker.errors()
        assert error.protocol == "mm2"
        assert "more than 65536 steps for a message" in error.why
        assert "use fewer or shorter filters" in error.why
