"""The Throttr client of Python against a real listener: every request, pipelines, channels, loss and return."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal, cast

import pytest
import trustme

import mqcore
from mqcore import errors
from mqcore.ratelimit import SyncRateLimiter
from mqcore.testing import TestBroker
from mqcore.throttr import Algorithm, Buffer, Client, Counter, Message, Mode, Rule, SyncClient, Unit, Uses
from served import wait_until

WIDTHS = {"uint8": 2**8 - 1, "uint16": 2**16 - 1, "uint32": 2**32 - 1, "uint64": 2**64 - 1}


@pytest.fixture(params=["7.1", "7.3"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def options(protocol: str) -> str:
    return f"?value=uint64&protocol={protocol}"


@pytest.fixture
def url(options: str) -> Iterator[str]:
    with mqcore.Broker(listen=(f"throttr://127.0.0.1:0{options}",)) as broker:
        yield broker.listeners[0] + options


@pytest.fixture
def still_url(options: str) -> Iterator[str]:
    """A broker whose clock stands still, because a second or a minute may end between two requests."""
    with TestBroker(listen=(f"throttr://127.0.0.1:0{options}",)) as broker:
        yield broker.listeners[0] + options


class DrivenClient:
    """The client for asyncio, or its pipeline, used like its blocking twin: each call runs an event loop."""

    def __init__(self, target: Any, runner: asyncio.Runner | None = None) -> None:
        self._runner = runner or asyncio.Runner()
        self._target: Any = Client(target) if isinstance(target, str) else target

    def __enter__(self) -> DrivenClient:
        self._runner.run(self._target.__aenter__())
        return self

    def __exit__(self, *exception: object) -> None:
        self._runner.run(self._target.__aexit__(*exception))
        if isinstance(self._target, Client):
            self._runner.close()

    def __len__(self) -> int:
        return len(self._target)

    def pipeline(self) -> DrivenClient:
        return DrivenClient(self._target.pipeline(), self._runner)

    def messages(self) -> Iterator[Message]:
        messages: AsyncIterator[Message] = self._target.messages()

        async def following() -> Message:
            return await anext(messages)

        while True:
            yield self._runner.run(following())

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *arguments, **options: self._runner.run(found(*arguments, **options))


@pytest.fixture(params=[SyncClient, DrivenClient])
def opened(request: pytest.FixtureRequest) -> type[SyncClient]:
    """Both clients, because their methods are not the same code."""
    return cast("type[SyncClient]", request.param)


def test_counters_and_buffers_live_their_lives(still_url: str, opened: type[SyncClient]) -> None:
    with opened(still_url) as client:
        assert client.insert("k", 5, 60)
        assert not client.insert("k", 9, 60)
        assert client.query("k") == Counter(5, Unit.SECONDS, 59)
        assert client.decrease("k", 5)
        assert not client.decrease("k")
        assert client.increase("k", 7)
        assert client.update("k", 3)
        assert client.update_ttl("k", 100)
        assert client.increase_ttl("k", 20)
        assert client.decrease_ttl("k", 50)
        counter = client.query("k")
        assert counter is not None
        assert (counter.quota, counter.ttl) == (3, 69)
        assert client.set(b"b\0", b"\xffvalue", 2, unit=Unit.HOURS)
        assert client.get(b"b\0") == Buffer(b"\xffvalue", Unit.HOURS, 1)
        assert [(key.key, key.is_buffer, key.size) for key in client.list()] == [(b"k", False, 8), (b"b\0", True, 6)]
        # They count when their minute is over.
        assert client.stats() == {b"k": Uses(0, 0, 0, 0), b"b\0": Uses(0, 0, 0, 0)}
        assert client.stat("k") == Uses(0, 0, 0, 0)
        assert client.stat("missing") is None
        assert client.get("missing") is None
        assert client.purge("k")
        assert not client.purge("k")
        assert client.query("k") is None


def test_each_unit_has_its_number_and_its_length(still_url: str, opened: type[SyncClient]) -> None:
    lengths = {
        "NANOSECONDS": 1,
        "MICROSECONDS": 1_000,
        "MILLISECONDS": 1_000_000,
        "SECONDS": 1_000_000_000,
        "MINUTES": 60_000_000_000,
        "HOURS": 3_600_000_000_000,
    }
    assert {unit.name: unit.nanoseconds for unit in Unit} == lengths
    with opened(still_url) as client:
        for unit in Unit:
            hours = 7 * 3_600_000_000_000 // unit.nanoseconds
            assert client.insert(unit.name, 1, hours, unit=unit)
            assert client.query(unit.name) == Counter(1, unit, hours - 1)


def test_numbers_are_at_least_zero_and_have_at_most_64_bits(url: str, opened: type[SyncClient]) -> None:
    with opened(url) as client:
        assert client.insert("k", 0, 60)
        assert client.increase("k", 0)
        assert client.increase("k")
        counter = client.query("k")
        assert counter is not None
        assert counter.quota == 1
        with client.pipeline() as pipe:
            pipe.increase("k").decrease("k", 0).query("k")
        assert pipe.results[2].quota == 2
        for wrong in (-1, 1 << 64):
            with pytest.raises(errors.InvalidArgument, match=str(wrong)):
                client.update("k", wrong)
            with pytest.raises(errors.InvalidArgument, match=str(wrong)):
                client.insert("l", 1, 60, unit=wrong)
        assert client.query("l") is None


def test_a_server_tells_about_itself_and_who_is_there(url: str, protocol: str, opened: type[SyncClient]) -> None:
    with opened(url) as client:
        me = client.whoami()
        (connection,) = client.connections()
        assert connection.id == me
        assert connection.address == "127.0.0.1"
        assert client.connection(me) is not None
        assert client.connection(bytes(16)) is None
        client.insert("k", 1, 60)
        information = client.info()
        assert (information["insert"], information["keys"], information["counters"]) == (1, 1, 1)
        assert information["total_connections"] == 1
        assert information.version.startswith("mqcore")
        assert client.protocol == protocol
        assert client.subscribe("news")
        assert [subscriber.id for subscriber in client.channel("news") or []] == [me]
        assert client.channel("nobody") is None
        with SyncClient(url) as publisher:
            assert publisher.publish("news", b"12345")
        assert next(iter(client.messages())).payload == b"12345"
        (news,) = (channel for channel in client.channels() if channel.name == b"news")
        assert (news.read, news.written, news.subscriptions) == (5, 0, 1)


async def test_messages_reach_subscribers_until_they_unsubscribe(url: str, protocol: str) -> None:
    async with Client(url) as subscriber, Client(url) as publisher:
        assert await subscriber.subscribe("news")
        for number in range(1000):
            assert await publisher.publish("news", b"%d" % number)
        received = []
        async for message in subscriber.messages(idle_timeout=5):
            received.append(message)
            if len(received) == 1000:
                break
        name = b"news" if protocol == "7.3" else None
        assert received == [Message(name, b"%d" % number) for number in range(1000)]
        assert await subscriber.unsubscribe("news")
        assert not await subscriber.unsubscribe("news")
        assert not await publisher.publish("news", b"x")


async def test_messages_end_when_the_client_is_idle_or_closed(url: str) -> None:
    async with Client(url) as client, Client(url) as publisher:
        assert await client.subscribe("news")
        async with asyncio.timeout(20):
            assert [message async for message in client.messages(idle_timeout="20ms")] == []
            assert await publisher.publish("news", b"x")
            assert (await anext(client.messages())).payload == b"x"
            endless = asyncio.ensure_future(anext(client.messages(), None))
            await client.close()
            assert await endless is None


def test_client_is_closed_when_its_block_ends(url: str, opened: type[SyncClient]) -> None:
    with SyncClient(url) as watcher:
        with opened(url) as client:
            assert len(watcher.connections()) == 2
            assert (client.is_closed, client.dropped) == (False, 0)
        assert client.is_closed
        wait_until(lambda: len(watcher.connections()) == 1, what="the end of the connection")
    with SyncClient(url) as closing:
        closing.close()
        with pytest.raises(errors.Draining):
            closing.query("k")


def test_pipeline_whose_block_raises_sends_nothing(url: str, opened: type[SyncClient]) -> None:
    with opened(url) as client:
        pipe = client.pipeline()
        pipe.insert("k", 1, 60).insert("l", 1, 60)
        assert len(pipe) == 2
        with pytest.raises(ZeroDivisionError), pipe:
            raise ZeroDivisionError
        assert (pipe.results, client.query("k")) == ([], None)
        assert pipe.execute() == [True, True]
        assert (len(pipe), pipe.results) == (0, [True, True])


async def test_a_pipeline_answers_in_its_order_also_with_many_requests(url: str) -> None:
    async with Client(url) as client:
        async with client.pipeline() as pipe:
            pipe.insert("k", 10_000, 60)
            for _ in range(10_000):
                pipe.decrease("k")
            pipe.decrease("k").query("k").list()
        assert pipe.results[:10_001] == [True] * 10_001
        assert pipe.results[10_001] is False
        assert pipe.results[10_002].quota == 0
        assert [key.key for key in pipe.results[10_003]] == [b"k"]


async def test_tasks_that_share_a_client_get_their_own_answers(url: str) -> None:
    async with Client(url) as client:
        await asyncio.gather(*(client.insert(f"k{number}", number, 60) for number in range(500)))
        counters = await asyncio.gather(*(client.query(f"k{number}") for number in range(500)))
        assert [counter and counter.quota for counter in counters] == list(range(500))
        assert client.connects == 1


def test_rules_are_consumed_peeked_refunded_and_tried(url: str, opened: type[SyncClient]) -> None:
    with opened(url) as client:
        rule = Rule("r", 3, 60, algorithm=Algorithm.GCRA, cost=2)
        assert client.consume(rule, Mode.DRY_RUN).remaining == 3
        assert client.consume(rule).remaining == 1
        refused = client.consume(rule)
        assert (refused.allowed, refused.remaining) == (False, 1)
        assert 0 < refused.retry_after <= 20
        assert client.consume(rule, Mode.PEEK).allowed
        tried = client.consume(rule, Mode.DRY_RUN)
        assert (tried.allowed, tried.remaining) == (False, 1)
        assert client.consume(rule, Mode.REFUND).remaining == 3
        allowed, verdicts = client.consume_all([rule, Rule("s", 1, 60, cost=2)])
        assert not allowed
        assert [verdict.remaining for verdict in verdicts] == [3, 1]
        client.set("buffer", b"x", 60)
        with pytest.raises(errors.Unacceptable, match="cannot be applied") as refusal:
            client.consume(Rule("buffer", 1, 60))
        assert refusal.value.code == 406
        with client.pipeline() as pipe:
            pipe.consume(Rule("buffer", 1, 60)).consume(rule)
        assert isinstance(pipe.results[0], errors.Unacceptable)
        assert pipe.results[1].remaining == 1


@pytest.mark.parametrize("value", WIDTHS)
def test_each_width_takes_its_largest_value_and_nothing_above_it(value: str, opened: type[SyncClient]) -> None:
    with (
        mqcore.Broker(listen=(f"throttr://127.0.0.1:0?value={value}",)) as broker,
        opened(f"{broker.listeners[0]}?value={value}") as client,
    ):
        most = WIDTHS[value]
        assert client.value_max == most
        assert client.insert("k", most, 60)
        counter = client.query("k")
        assert counter is not None
        assert counter.quota == most
        with pytest.raises((errors.InvalidArgument, OverflowError)):
            client.insert("l", most + 1, 60)
        assert client.insert("é" * 127 + "k", 1, 60), "255 bytes"
        with pytest.raises(errors.InvalidArgument, match="a name of 256 bytes is longer than 255 bytes"):
            client.query("é" * 128)
        assert client.query("l") is None


def test_what_is_wrong_with_a_url_is_said() -> None:
    for wrong in ("tmqp://h", "throttr://h?value=uint128", "throttr://h?protocol=8", "throttr://h?color=red"):
        with pytest.raises(errors.InvalidArgument):
            SyncClient(wrong)


@pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")
def test_a_unix_socket_is_as_good_as_a_port(tmp_path: Path) -> None:
    url = f"throttr+unix://{tmp_path}/t.sock"
    with mqcore.Broker(listen=(url,)), SyncClient(url) as client:
        assert client.insert("k", 1, 60)


def test_tls_is_asked_for_by_the_url(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "broker.pem")
    tls = mqcore.ListenerTLS(cert=tmp_path / "broker.pem")
    with mqcore.Broker(listen=("throttrs://127.0.0.1:0",), tls=tls) as broker:
        with SyncClient(f"{broker.listeners[0]}?ca={tmp_path}/ca.pem") as client:
            assert client.insert("k", 1, 60)
        with pytest.raises(errors.CertificateError):
            SyncClient(broker.listeners[0]).connect()


def test_a_broker_that_is_away_is_an_error_and_its_return_ends_it() -> None:
    with mqcore.Broker(listen=("throttr://127.0.0.1:0",)) as broker:
        address = broker.listeners[0]
        client = SyncClient(address)
        client.subscribe("news")
        assert client.connects == 1
    with pytest.raises(errors.TransportError):
        client.query("k")
    with mqcore.Broker(listen=(address,)):
        wait_until(lambda: client.connects >= 2, what="connecting again by itself, for the subscription")
        assert client.query("k") is None
        assert client.channel("news"), "subscribed again before anything else is asked"
        with SyncClient(address) as publisher:
            assert publisher.publish("news", b"back")
        assert next(iter(client.messages(idle_timeout=10))).payload == b"back"
    client.close()
    with pytest.raises(errors.Draining):
        client.query("k")


def test_a_server_that_does_not_answer_is_given_up() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        client = SyncClient(f"throttr://127.0.0.1:{server.getsockname()[1]}", request_timeout=0.2)
        with pytest.raises((errors.RequestTimeout, errors.ConnectionLost)):
            client.query("k")
        client.close()


def test_a_program_that_ends_with_an_open_client_ends_well(url: str) -> None:
    program = (
        "import asyncio, sys\nfrom mqcore.throttr import Client\n"
        "async def main():\n"
        "    global client\n"
        "    client = await Client(sys.argv[1]).connect()\n"
        "    print(await client.insert('k', 1, 60))\n"
        "asyncio.run(main())\n"
    )
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", program, url], capture_output=True, text=True, timeout=30, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout in ("True\n", "False\n")


@pytest.mark.parametrize("protocol", ["7.1", "7.3"])
@pytest.mark.parametrize("listener", WIDTHS)
def test_wrong_width_in_the_url_is_named_and_changes_nothing(listener: str, protocol: str) -> None:
    with mqcore.Broker(listen=f"throttr://127.0.0.1:0?value={listener}&protocol={protocol}") as broker:
        url = broker.listeners[0].partition("?")[0]
        with SyncClient(f"{url}?value={listener}&protocol={protocol}") as right:
            assert right.insert("k", 5, 60)
            for width in WIDTHS:
                if width == listener:
                    continue
                with contextlib.closing(SyncClient(f"{url}?value={width}&protocol={protocol}")) as wrong:
                    for call in (
                        lambda: wrong.consume(Rule("k", 5, 60)),
                        lambda: wrong.set("k", b"x", 60),
                        wrong.list,
                        lambda: wrong.publish("c", b"x"),
                    ):
                        with pytest.raises(errors.VersionMismatch, match=f"use value={listener} in the URL"):
                            call()
            counter = right.query("k")
            assert counter is not None
            assert counter.quota == 5
            assert [each.key for each in right.list()] == [b"k"]


def test_listener_of_another_protocol_is_named() -> None:
    with mqcore.Broker(listen=("tmqp://127.0.0.1:0", "mqks://127.0.0.1:0", "mm2://127.0.0.1:0")) as broker:
        for listener in broker.listeners:
            port = listener.rpartition(":")[2]
            with (
                pytest.raises((errors.VersionMismatch, errors.ConnectFailed)),
                SyncClient(f"throttr://127.0.0.1:{port}", connect_timeout=1.0),
            ):
                pytest.fail("it connected")


@pytest.mark.parametrize("on_unavailable", ["allow", "deny", "raise"])
def test_limiter_never_hides_a_wrong_width(on_unavailable: Literal["allow", "deny", "raise"]) -> None:
    with mqcore.Broker(listen="throttr://127.0.0.1:0?value=uint64") as broker:
        url = broker.listeners[0].partition("?")[0]
        with (
            SyncRateLimiter(f"{url}?value=uint16", on_unavailable=on_unavailable) as limiter,
            pytest.raises(errors.VersionMismatch, match="use value=uint64"),
        ):
            limiter.check("k", "5/m")
