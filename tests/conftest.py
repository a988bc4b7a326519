"""Fixtures: a broker in this process, a broker in its own process, and peers that send raw bytes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import mqcore
import timeouts
from depth import DEPTH, FULL, SEED, by_depth, in_turn
from eventmq_original import INSTALLING
from mqcore.client import Client
from served import DISK_MIB, ServedBroker, serving, tmqp_address
from small_disks import mounted_or_skipped
from tcp_proxy import TcpProxy
from tmqp_peer import TmqpPeer
from worker_peer import WorkerPeer


def pytest_configure(config: pytest.Config) -> None:
    """Let programs that tests start be interrupted, even if this one inherited an ignored SIGINT. Measure no time of
    single examples: a busy machine makes one slow.
    """
    config.pluginmanager.register(timeouts)
    hypothesis.settings.register_profile("mqcore", deadline=None, max_examples=by_depth(25, 100))
    hypothesis.settings.load_profile("mqcore")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Print what repeats this run."""
    return f"depth: MQCORE_TEST_DEPTH={DEPTH}; random choices: MQCORE_SEED={SEED}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only the full depth runs."""
    left_out = [] if FULL else [item for item in items if item.get_closest_marker("full") or waits_for_its_turn(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        others = set(left_out)
        items[:] = [item for item in items if item not in others]
    for item in items:
        if isinstance(item, pytest.Function) and not INSTALLING.isdisjoint(item.fixturenames):
            # An environment is installed before a test's own time begins: a slow network makes that long.
            item.add_marker(pytest.mark.timeout(func_only=True))


def waits_for_its_turn(item: pytest.Item) -> bool:
    """Whether the test needs Spark, and is in a module that this run leaves out because others have their turn."""
    mark = item.get_closest_marker("in_turn")
    needs_spark = isinstance(item, pytest.Function) and "spark" in item.fixturenames
    return mark is not None and needs_spark and item.path.stem not in in_turn(*mark.args)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run each group in one process, and all other tests wherever there is time."""
    from scheduling import GroupScheduling

    return GroupScheduling(config, log)


@pytest.fixture
def served() -> Iterator[ServedBroker]:
    """A broker in a process of its own, with an admin side, that creates what is missing."""
    with serving("--admin", "http://127.0.0.1:0", "--auto-create") as broker:
        yield broker


@pytest.fixture
def broker() -> Iterator[mqcore.Broker]:
    """A broker in this process, with a TMQP listener on a free port, that creates what is missing."""
    settings = mqcore.BrokerConfig(listen=("tmqp://127.0.0.1:0",), auto_create_channels=True, auto_create_queues=True)
    with mqcore.Broker(settings) as running:
        yield running


@pytest.fixture
def connect_peer(broker: mqcore.Broker) -> Iterator[Callable[..., TmqpPeer]]:
    """Opens raw TMQP connections to the broker of the fixture `broker`; `hello=False` leaves out the handshake."""
    with contextlib.ExitStack() as stack:

        def connect(*, hello: bool = True, **properties: str) -> TmqpPeer:
            peer = stack.enter_context(TmqpPeer(*tmqp_address(broker)))
            if hello:
                peer.hello(**properties)
            return peer

        yield connect


@pytest.fixture
def peer(connect_peer: Callable[..., TmqpPeer]) -> TmqpPeer:
    """A raw TMQP connection that has shaken hands."""
    return connect_peer()


@pytest.fixture
def connect() -> Iterator[Callable[[str], WorkerPeer]]:
    """Connects raw peers to any broker's URL, and closes them when the test is over."""
    with contextlib.ExitStack() as stack:
        yield lambda url: stack.enter_context(WorkerPeer.connect(url))


@pytest.fixture
async def proxy(broker: mqcore.Broker) -> AsyncIterator[TcpProxy]:
    """A proxy in front of the first listener of `broker`, whatever it speaks."""
    host, _, port = broker.listeners[0].partition("://")[2].rpartition(":")
    async with TcpProxy(host, int(port)) as between:
        yield between


def through(proxy: TcpProxy, broker: mqcore.Broker, **timing: str) -> Client:
    """A client of that listener that goes through the proxy."""
    scheme = broker.listeners[0].partition("://")[0]
    return mqcore.connect(f"{scheme}://127.0.0.1:{proxy.port}", **timing)


@pytest.fixture
async def shaky(broker: mqcore.Broker, proxy: TcpProxy) -> AsyncIterator[Client]:
    """A client that reaches `broker` through `proxy`, is quick to come back, and loses only connections that are cut:
    a heartbeat would also give up those that a busy machine delays.
    """
    async with through(proxy, broker, backoff_first="10ms", ping_interval="1h") as client:
        yield client


@pytest.fixture
async def patient(broker: mqcore.Broker, proxy: TcpProxy) -> AsyncIterator[Client]:
    """A client that reaches `broker` through `proxy`, and waits for a second before it comes back: for as long can be
    seen why it went, because a watcher of states sees only the latest one.
    """
    async with through(proxy, broker, backoff_first="1s", ping_interval="300ms", pong_timeout="1s") as client:
        yield client


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that is full soon."""
    with mounted_or_skipped(tmp_path / "disk", DISK_MIB) as place:
        yield place
