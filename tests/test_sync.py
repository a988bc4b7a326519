"""The blocking client against a real broker: the same core, without an event loop."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import mqcore
import mqcore.sync
from mqcore import errors
from mqcore.sync import Client
from served import wait_until

WITH_ACKS = mqcore.QueueOptions(status="push", request_acknowledge=True)


@dataclasses.dataclass
class Order:
    """A value that these tests send."""

    id: int
    sku: str


@pytest.fixture
def client(broker: mqcore.Broker) -> Iterator[Client]:
    """A blocking client of the embedded broker, over TCP."""
    with mqcore.sync.connect(broker.listeners[0], name="script") as connected:
        yield connected


def test_what_is_published_is_consumed_and_processed(client: Client, broker: mqcore.Broker) -> None:
    client.declare("orders", 1, WITH_ACKS)
    queue = client.queue("orders", 1)
    with queue.consume(Order, idle_timeout="10s") as messages:
        assert queue.publish(Order(1, "A")).by == "server"
        assert len(queue.publish_many([Order(n, "B") for n in range(2, 5)])) == 3
        bodies = []
        for message in itertools.islice(messages, 4):
            with message.process():
                bodies.append(message.body)
    assert bodies == [Order(1, "A"), Order(2, "B"), Order(3, "B"), Order(4, "B")]
    wait_until(lambda: broker.stats().queue("orders/1").acks == 4)


def test_process_that_raises_rejects_with_the_name_of_the_exception(client: Client) -> None:
    client.declare("orders", 1, dataclasses.replace(WITH_ACKS, delivery_handler="ack-on-consume"))
    outcome: list[errors.MqcoreError] = []

    def publish() -> None:
        with pytest.raises(errors.Nacked) as caught:
            # Less than the acknowledge timeout of the queue, 15 s.
            client.publish("orders/1", b"x", timeout=5)
        outcome.append(caught.value)

    with client.queue("orders", 1).consume() as messages:
        publishing = threading.Thread(target=publish)
        publishing.start()
        with pytest.raises(KeyError), next(iter(messages)).process():
            raise KeyError("x")
        publishing.join()
    (rejected,) = outcome
    assert isinstance(rejected, errors.Nacked)
    assert rejected.reason == "KeyError"


def test_a_loop_without_with_begins_and_ends_the_consumer(client: Client) -> None:
    client.declare("orders", 1, WITH_ACKS)
    client.publish("orders/1", b"x")
    for message in client.queue("orders/1").consume(idle_timeout="5s"):
        assert message.ack()
        break
    wait_until(lambda: client.channel_consumers("orders") == [])


def test_consumer_that_is_not_open_raises_and_a_closed_one_ends(client: Client) -> None:
    client.declare("orders", 1, WITH_ACKS)
    consumer = client.queue("orders/1").consume()
    with pytest.raises(errors.InvalidArgument, match="the consumer is not open; enter it with"):
        next(consumer)
    with consumer:
        pass
    with pytest.raises(StopIteration):
        next(consumer)


def test_message_of_queue_0_is_of_no_topic(client: Client) -> None:
    client.declare("orders", 0, WITH_ACKS)
    client.publish("orders/0", b"x")
    for message in client.queue("orders/0").consume(idle_timeout="5s"):
        assert (message.topic, message.address) == (None, "orders/0")
        message.ack()
        break
    else:
        pytest.fail("no message came")


def test_an_embedded_broker_is_reached_without_a_socket() -> None:
    with (
        mqcore.Broker(auto_create_channels=True, auto_create_queues=True) as broker,
        mqcore.sync.connect(broker) as client,
    ):
        assert client.publish("a/1", b"x").by == "server"
        assert client.state.status == "connected"


def test_refusals_raise_what_the_asyncio_client_raises(client: Client) -> None:
    with pytest.raises(errors.NotFound):
        client.queue_information("nowhere/1")
    with pytest.raises(errors.ConnectFailed):
        mqcore.sync.connect("tmqp://127.0.0.1:1")
    with pytest.raises(errors.InvalidArgument):
        client.publish("no good", b"x")


def test_pulling_and_caching(client: Client) -> None:
    client.declare("a", 1, mqcore.QueueOptions(status="pull"))
    client.publish_many("a/1", ["1", "2", "3"])
    batch = client.queue("a", 1).pull(2, str, order="lifo")
    assert ([message.body for message in batch], batch.remaining) == (["3", "2"], 1)
    client.declare("a", 2, mqcore.QueueOptions(status="cache"))
    assert client.queue("a", 2).get_cached() is None
    client.publish("a/2", b"now")
    cached = client.queue("a", 2).get_cached()
    assert cached is not None
    assert cached.raw == b"now"


def test_asking_and_being_asked(client: Client, broker: mqcore.Broker) -> None:
    ready = threading.Event()

    def serve() -> None:
        with mqcore.sync.connect(broker, name="adder") as adder, adder.requests(list[int]) as requests:
            ready.set()
            for request in requests:
                request.respond(sum(request.body))
                return

    server = threading.Thread(target=serve)
    server.start()
    assert ready.wait(10)
    assert client.request("@name:adder", [1, 2, 3], reply=int) == 6
    server.join(10)
    with pytest.raises(errors.NotFound):
        client.request("@name:adder", [1])


def test_events(client: Client) -> None:
    with client.events("ChannelCreated") as events:
        client.create_channel("new")
        assert next(iter(events)).channel == "new"


@pytest.mark.parametrize("kind", ["requests", "events"])
def test_leaving_a_stream_ends_the_loop_of_another_thread(client: Client, kind: str) -> None:
    taken: list[object] = []
    stream: Any = client.requests() if kind == "requests" else client.events("ChannelCreated")
    with stream as elements:
        loop = threading.Thread(target=lambda: taken.append(list(elements)), daemon=True)
        loop.start()
        wait_until(lambda: is_inside(loop, "streams.py"), what="the loop of the thread")
    loop.join(10)
    assert taken == [[]]


@pytest.mark.parametrize("kind", ["requests", "custom_messages", "events"])
def test_a_loop_opens_a_stream_and_closes_it(client: Client, broker: mqcore.Broker, kind: str) -> None:
    taken: list[object] = []
    stream: Any = client.events("ChannelCreated") if kind == "events" else getattr(client, kind)()

    def read() -> None:
        for element in stream:
            taken.append(element)
            return

    for count in (1, 2):
        loop = threading.Thread(target=read, daemon=True)
        loop.start()
        numbers = itertools.count()
        while loop.is_alive():
            if kind == "events":
                client.create_channel(f"c{count}-{next(numbers)}")
            elif kind == "custom_messages":
                broker.send_custom(client.id, b"x")
            else:
                client.send(client.id, b"x")
            loop.join(0.001)
        assert len(taken) == count


def test_a_stream_that_is_not_open_brings_nothing(client: Client) -> None:
    requests = client.requests()
    with pytest.raises(errors.InvalidArgument, match="the stream is not open; enter it with 'with'"):
        next(requests)
    with requests:
        pass
    assert next(requests, None) is None


def is_inside(thread: threading.Thread, module: str) -> bool:
    """Whether a thread runs a function of a module."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_filename.endswith(module)


def test_stream_of_a_pull_is_complete_after_its_last_message_only(client: Client) -> None:
    client.declare("a", 1, mqcore.QueueOptions(status="pull"))
    client.publish_many("a/1", ["1", "2"])
    stream = client.queue("a", 1).pull_stream(2, str)
    found = []
    for message in stream:
        assert not stream.complete
        found.append(message.body)
    assert (found, stream.complete, stream.remaining) == (["1", "2"], True, 0)


def test_states_end_with_the_client(broker: mqcore.Broker) -> None:
    client = mqcore.sync.connect(broker.listeners[0])
    states = client.states()
    assert next(states).status == "connected"
    client.close()
    assert [state.status for state in states][-1] == "closed"


def test_administration(client: Client) -> None:
    client.create_channel("c")
    client.create_queue("c/1", WITH_ACKS)
    client.update_queue("c/1", mqcore.QueueOptions(status="pull"))
    assert client.queue("c", 1).information().status == "pull"
    assert [one.id for one in client.queues("c")] == [1]
    assert [one.name for one in client.channels("c")] == ["c"]
    assert client.channel_information("c").queues == (1,)
    assert [one.name for one in client.clients()] == ["script"]
    client.publish("c/1", b"x")
    client.clear_queue("c/1")
    client.remove_queue("c/1")
    client.remove_channel("c")
    assert client.nodes() == []


async def test_it_works_while_an_event_loop_runs(broker: mqcore.Broker) -> None:
    def work() -> str:
        with mqcore.sync.connect(broker.listeners[0]) as client:
            return client.publish("a/1", b"x").by

    assert await asyncio.to_thread(work) == "server"
    assert work() == "server"


def test_threads_share_a_client_and_do_not_wait_for_each_other(client: Client, broker: mqcore.Broker) -> None:
    client.declare("slow", 1, dataclasses.replace(WITH_ACKS, status="pull", delivery_handler="ack-on-consume"))

    # Its confirmation comes when the message is consumed.
    waiting = threading.Thread(target=client.publish, args=("slow/1", b"x"))
    waiting.start()
    wait_until(lambda: client.queue("slow/1").information().messages == 1)
    for _ in range(50):
        client.publish("a/1", b"x")
    assert waiting.is_alive()
    (message,) = client.queue("slow/1").pull(1)
    message.ack()
    waiting.join(10)
    assert not waiting.is_alive()


@pytest.mark.skipif(sys.platform == "win32", reason="signals are another matter there")
@pytest.mark.parametrize(
    "blocking",
    [
        "next(iter(client.queue('a', 1).consume()))",
        "client.publish('slow/1', b'x', timeout=60)",
        "client.request('@name:mute', b'x', timeout=60)",
        "list(client.events('ChannelCreated').__enter__())",
    ],
)
def test_ctrl_c_interrupts_a_blocking_call(broker: mqcore.Broker, blocking: str) -> None:
    program = textwrap.dedent(f"""
        import sys, threading, time
        import mqcore, mqcore.sync

        def announce(main=threading.get_ident()):
            while "mqcore" not in sys._current_frames()[main].f_code.co_filename:
                time.sleep(0.001)
            print("waiting", flush=True)

        client = mqcore.sync.connect(sys.argv[1])
        mute = mqcore.sync.connect(sys.argv[1], name="mute")
        client.declare("a", 1)
        client.declare("slow", 1, mqcore.QueueOptions(status="pull", delivery_handler="ack-on-consume"))
        threading.Thread(target=announce, daemon=True).start()
        try:
            {blocking}
        except KeyboardInterrupt:
            client.publish("a/2", b"still usable")
            client.close()
            mute.close()
            print("interrupted", flush=True)
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", program, broker.listeners[0]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=20)
    assert stdout == "interrupted\n", stderr


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, [("a", b"b")], [("a",)]])
def test_headers_that_are_not_strings_are_refused_by_name(client: Client, headers: Any) -> None:
    with pytest.raises(TypeError, match=r"headers must contain pairs of strings, not .*str\(\)"):
        client.publish("a/1", b"x", headers=headers)


def test_program_that_ends_without_closing_ends_without_a_warning(broker: mqcore.Broker) -> None:
    program = """if True:
        import sys
        import mqcore.sync

        client = mqcore.sync.connect(sys.argv[1])
        client.publish("a/1", b"x")
    """
    command = [sys.executable, "-W", "always", "-c", program, broker.listeners[0]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    wait_until(lambda: not broker.stats().clients, what="the end of its connection")
