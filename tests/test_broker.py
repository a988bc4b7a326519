"""The life of an embedded broker: start, stop, signals, fork, and what is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from depth import by_depth
from mqcore import (
    Broker,
    BrokerConfig,
    ChannelOptions,
    Decision,
    DeliveryHandler,
    Durability,
    QueueOptions,
    QueueStatus,
    errors,
)
from mqcore.config import seconds

# Every program below may use raw peers.
PEER = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from worker_peer import WorkerPeer\n"


def program(text: str) -> list[str]:
    return [sys.executable, "-W", "error", "-c", PEER + textwrap.dedent(text)]


def run(text: str, *, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(program(text), capture_output=True, text=True, timeout=timeout, check=False)


def test_a_broker_without_arguments_opens_no_socket() -> None:
    with Broker() as mq:
        assert mq.is_running
        assert mq.listeners == ()
        assert mq.admin_url is None
        assert mq.stats().queues == ()
    assert not mq.is_running


def test_listeners_report_chosen_ports() -> None:
    with Broker(listen=["tmqp://127.0.0.1:0", "tmqp://127.0.0.1:0"], admin="http://127.0.0.1:0") as mq:
        first, second = mq.listeners
        assert first != second
        for url in (*mq.listeners, mq.admin_url):
            assert url is not None
            host, port = url.split("//")[1].split(":")
            socket.create_connection((host, int(port))).close()


async def test_async_with_starts_and_stops() -> None:
    async with Broker(listen="tmqp://127.0.0.1:0") as mq:
        assert mq.is_running
    assert not mq.is_running


def test_stopped_broker_raises_and_can_be_restarted() -> None:
    mq = Broker(listen="tmqp://127.0.0.1:0")
    for _ in range(2):
        with pytest.raises(errors.NotRunning, match="start it first"):
            mq.stats()
        mq.start()
        assert mq.stats().channels == ()
        with pytest.raises(RuntimeError, match="already running"):
            mq.start()
        mq.stop()
        mq.stop()


def test_an_address_in_use_is_an_error_and_leaves_nothing_behind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        mq = Broker(listen=f"tmqp://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(errors.ListenFailed, match="cannot listen"):
            mq.start()
        assert not mq.is_running
    mq.start()
    mq.stop()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"listen": "127.0.0.1:2622"}, "has no scheme"),
        ({"listen": "amqp://127.0.0.1:5672"}, "known are tmqp"),
        ({"admin": "ftp://127.0.0.1:1"}, "ftp"),
        ({"admin": "https://127.0.0.1:0"}, "has no certificate"),
        ({"shards": 99}, "at most 16"),
        ({"shards": -1}, "shards"),
        ({"ping_interval": "soon"}, "ping_interval: 'soon' is not a duration"),
        ({"channel": QueueOptions()}, "a ChannelOptions"),
        ({"delivery_handler": "memry"}, r"has the key 'memry'; did you mean 'memory'\? \(registered: memory, "),
        ({"delivery_handler": "7"}, r"has the key '7' \(registered: memory, at-most-once"),
        ({"channel": ChannelOptions(queue=QueueOptions(delivery_handler="7"))}, "no delivery handler has the key '7'"),
    ],
)
def test_a_setting_that_cannot_work_is_named(options: Any, said: str) -> None:
    with pytest.raises(errors.ConfigError, match=said), Broker(**options):
        pass


def test_an_address_that_others_could_reach_needs_to_be_asked_for() -> None:
    with pytest.raises(errors.ConfigError, match="loopback"), Broker(listen="tmqp://0.0.0.0:0"):
        pass
    with Broker(listen="tmqp://0.0.0.0:0", allow_remote=True) as mq:
        assert mq.listeners[0].startswith("tmqp://0.0.0.0:")


def test_either_a_config_or_its_fields() -> None:
    assert Broker(BrokerConfig(shards=1)).config == Broker(shards=1).config == BrokerConfig(shards=1)
    with pytest.raises(TypeError, match="not both"):
        Broker(BrokerConfig(), shards=1)


def test_durations_are_seconds_timedeltas_or_text() -> None:
    assert [seconds(value) for value in (2, 0.5, timedelta(minutes=1), "250ms", "30s", "1.5m", "2h", "1d")] == [
        2.0,
        0.5,
        60.0,
        0.25,
        30.0,
        90.0,
        7200.0,
        86400.0,
    ]
    for wrong in (-1, float("nan"), float("inf"), "a while", "", None, "5 weeks"):
        with pytest.raises(errors.ConfigError):
            seconds(wrong)  # type: ignore[arg-type]


def test_statuses_are_read_in_every_spelling() -> None:
    assert QueueStatus("round-robin") is QueueStatus("RoundRobin") is QueueStatus.ROUND_ROBIN
    assert QueueStatus("pause") is QueueStatus.PAUSED
    assert QueueStatus("stop") is QueueStatus.STOPPED
    assert QueueOptions(status="cache").status is QueueStatus.CACHE  # type: ignore[arg-type]
    with pytest.raises(errors.ConfigError, match="one of broadcast, push, roundrobin"):
        QueueOptions(status="fifo")  # type: ignore[arg-type]


def test_flags_win_over_the_environment_over_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "mqcore.toml"
    file.write_text(
        'listen = ["tmqp://127.0.0.1:1"]\nadmin = "http://127.0.0.1:2"\nclient_limit = 3\n'
        '[channel]\nclient_limit = 4\n[channel.queue]\nstatus = "round-robin"\nacknowledge_timeout = "5s"\n'
    )
    environ = {
        "MQCORE_CLIENT_LIMIT": "5",
        "MQCORE_LISTEN": "tmqp://127.0.0.1:6, tmqp://127.0.0.1:7",
        "MQCORE_CHANNEL__QUEUE__REQUEST_ACKNOWLEDGE": "yes",
        "MQCORE_URL": "not a setting of a broker",
        "OTHER": "nor this",
    }
    config = BrokerConfig.load(file, environ=environ, client_limit=8, admin=None)
    assert config == BrokerConfig(
        listen=("tmqp://127.0.0.1:6", "tmqp://127.0.0.1:7"),
        admin="http://127.0.0.1:2",
        client_limit=8,
        channel=ChannelOptions(
            client_limit=4,
            queue=QueueOptions(status=QueueStatus.ROUND_ROBIN, acknowledge_timeout=5.0, request_acknowledge=True),
        ),
    )


def test_an_unknown_setting_is_an_error_that_names_the_known_ones(tmp_path: Path) -> None:
    file = tmp_path / "mqcore.toml"
    file.write_text("[channel.queue]\nstate = 1\n")
    with pytest.raises(errors.ConfigError, match=r"'channel\.queue\.state'; did you mean 'status'\? there are: "):
        BrokerConfig.load(file, environ={})
    with pytest.raises(errors.ConfigError, match=r"'liste'; did you mean 'listen'\? there are: .*shards"):
        BrokerConfig.load(environ={"MQCORE_LISTE": "x"})
    file.write_text("listen = ")
    with pytest.raises(errors.ConfigError, match="invalid TOML"):
        BrokerConfig.load(file, environ={})
    with pytest.raises(errors.ConfigError, match="cannot read"):
        BrokerConfig.load(tmp_path / "missing.toml", environ={})


def test_options_arrive_at_the_queue(connect: Any) -> None:
    options = QueueOptions(
        status=QueueStatus.PULL,
        only_first_acquirer=True,
        request_acknowledge=True,
        acknowledge_timeout="2s",
        message_timeout=60,
        use_message_id=False,
        wait_for_acknowledge=True,
        hide_client_names=True,
        message_limit=7,
        message_size_limit=8,
        put_back_limit=9,
        retry_delay="3s",
        retry_delay_max="4s",
        deduplication_window="5s",
        dead_letter="dead/1",
        delivery_handler="at-most-once",
        tag="tagged",
        durability=Durability.OS,
    )
    mq = Broker(
        listen="tmqp://127.0.0.1:0",
        auto_create_channels=True,
        auto_create_queues=True,
        channel=ChannelOptions(queue=options),
    )
    with mq:
        connect(mq.listeners[0]).publish("orders", 1, b"x")
        deadline = time.monotonic() + 10
        while not mq.stats().queues and time.monotonic() < deadline:
            time.sleep(0.002)
        assert mq.stats().queue("orders/1").options == options


async def test_serve_forever_ends_when_the_broker_is_stopped() -> None:
    mq = Broker()
    with pytest.raises(errors.NotRunning):
        await mq.serve_forever()
    async with mq:
        serving = asyncio.create_task(mq.serve_forever())
        await asyncio.sleep(0)
        threading.Thread(target=mq.stop).start()
        await asyncio.wait_for(serving, 10)


def test_broker_stops_after_the_loop_of_a_canceled_serve_forever_has_ended() -> None:
    async def serve() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(mq.serve_forever(), 0.01)

    with Broker() as mq:
        asyncio.run(serve())
        assert mq.is_running
    assert not mq.is_running


def test_wait_ends_when_another_thread_stops_the_broker() -> None:
    mq = Broker()
    assert mq.wait()
    mq.start()
    assert not mq.wait("10ms")
    threading.Timer(0.05, mq.stop).start()
    assert mq.wait("10s")


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent the way of POSIX")
@pytest.mark.parametrize(
    "waiting",
    [
        """
        async def main():
            async with mqcore.Broker(listen="tmqp://127.0.0.1:0") as mq:
                print("ready", flush=True)
                await mq.serve_forever()
        asyncio.run(main())
        """,
        """
        with mqcore.Broker(listen="tmqp://127.0.0.1:0") as mq:
            print("ready", flush=True)
            mq.wait()
        """,
    ],
    ids=["serve_forever", "wait"],
)
def test_ctrl_c_ends_a_waiting_program(waiting: str) -> None:
    text = "import asyncio, mqcore\n" + textwrap.dedent(waiting)
    with subprocess.Popen(program(text), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert "KeyboardInterrupt" in said
        assert process.returncode in {1, 130, -signal.SIGINT}
        assert time.monotonic() - began < 5.0


@pytest.mark.skipif(not Path("/proc/self/fd").exists() or not hasattr(os, "fork"), reason="needs fork and /proc")
def test_forked_child_has_no_more_descriptors_than_its_parent(tmp_path: Path) -> None:
    result = run(
        f"""
        import os, warnings
        import mqcore
        warnings.simplefilter("ignore", DeprecationWarning)
        with mqcore.Broker(data_dir={str(tmp_path)!r}):
            # The broker's threads may open a file between the two counts.
            for attempt in range(20):
                count = len(os.listdir("/proc/self/fd"))
                child = os.fork()
                if child == 0:
                    os._exit(42 if len(os.listdir("/proc/self/fd")) == count else 1)
                _, status = os.waitpid(child, 0)
                if os.waitstatus_to_exitcode(status) == 42:
                    break
            else:
                raise AssertionError(status)
        """
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_raises_in_the_child_and_the_parent_continues() -> None:
    result = run(
        """
        import os, sys, warnings
        import mqcore
        from mqcore import errors
        warnings.simplefilter("ignore", DeprecationWarning)
        mq = mqcore.Broker(listen="tmqp://127.0.0.1:0")
        mq.start()
        child = os.fork()
        if child == 0:
            for use in (mq.stats, mq.start, mq.stop, mq.wait, lambda: mq.is_running, lambda: mq.listeners):
                try:
                    use()
                except errors.Forked as error:
                    assert "fork" in str(error)
                else:
                    os._exit(1)
            with mqcore.Broker() as own:
                own.stats()
            del mq, own, use
            sys.exit(42)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 42, status
        peer = WorkerPeer.connect(mq.listeners[0])
        peer.ping(5)
        peer.close()
        mq.stop()
        """
    )
    assert result.returncode == 0, result.stderr


def test_a_program_that_forgets_to_stop_its_broker_still_ends() -> None:
    result = run(
        """
        import mqcore
        mq = mqcore.Broker(listen="tmqp://127.0.0.1:0")
        mq.start()
        """
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_a_program_that_forgets_to_stop_a_broker_with_an_async_handler_still_ends() -> None:
    result = run(
        """
        import mqcore
        class Patient(mqcore.DeliveryHandler):
            async def received_from_producer(self, queue, message, producer):
                return super().received_from_producer(queue, message, producer)
        mq = mqcore.Broker(auto_create_channels=True, auto_create_queues=True)
        mq.delivery_handlers["memory"] = Patient()
        mq.start()
        with mqcore.sync.connect(mq) as client:
            client.publish("orders/1", b"x")
        print("published")
        """
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "published\n", "")


def test_a_broker_that_is_dropped_running_is_stopped_with_a_warning() -> None:
    mq = Broker(listen="tmqp://127.0.0.1:0")
    mq.start()
    host, port = mq.listeners[0].removeprefix("tmqp://").split(":")
    brokers = [mq]
    del mq
    with pytest.warns(ResourceWarning, match="never stopped"):
        brokers.clear()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port))).close()
        except ConnectionError:
            break
        time.sleep(0.01)
    else:
        pytest.fail("the listener is still there")


def test_a_stopped_broker_and_a_handler_that_knows_it_are_collected() -> None:
    class Knowing(DeliveryHandler):
        def __init__(self, broker: Broker) -> None:
            self.broker = broker

        def received_from_producer(self, *_: object) -> Decision:
            return Decision()

    mq = Broker()
    mq.delivery_handlers["memory"] = Knowing(mq)
    with mq:
        pass
    gone = weakref.ref(mq)
    del mq
    gc.collect()
    assert gone() is None


def test_a_handler_that_does_not_come_back_cannot_keep_a_broker_from_stopping() -> None:
    result = run(
        """
        import atexit, logging, threading, time
        import mqcore
        logging.basicConfig(format="%(message)s")
        asleep, release = threading.Event(), threading.Event()
        class Asleep(mqcore.DeliveryHandler):
            def received_from_producer(self, queue, message, producer):
                asleep.set()
                release.wait()
                return mqcore.Decision()
        mq = mqcore.Broker(listen="tmqp://127.0.0.1:0", auto_create_channels=True, auto_create_queues=True)
        mq.delivery_handlers["memory"] = Asleep()
        mq.start()
        peer = WorkerPeer.connect(mq.listeners[0])
        peer.publish("orders", 1, b"")
        asleep.wait()
        began = time.monotonic()
        mq.stop(grace=0.5)
        assert time.monotonic() - began < 5, "it waited for the handler"
        peer.close()
        # It comes back while the program ends, which must not find the interpreter gone.
        atexit.register(release.set)
        """
    )
    assert result.returncode == 0, result.stderr
    assert "'memory' has not come back" in result.stderr


def test_an_async_handler_that_blocks_its_loop_cannot_keep_a_broker_from_stopping() -> None:
    result = run(
        """
        import logging, threading, time
        import mqcore
        logging.basicConfig(format="%(message)s")
        asleep, release = threading.Event(), threading.Event()
        class Blocking(mqcore.DeliveryHandler):
            async def received_from_producer(self, queue, message, producer):
                asleep.set()
                release.wait()
                return mqcore.Decision()
        mq = mqcore.Broker(listen="tmqp://127.0.0.1:0", auto_create_channels=True, auto_create_queues=True)
        mq.delivery_handlers["memory"] = Blocking()
        mq.start()
        peer = WorkerPeer.connect(mq.listeners[0])
        peer.publish("orders", 1, b"")
        asleep.wait()
        began = time.monotonic()
        mq.stop(grace=0.5)
        assert time.monotonic() - began < 5, "it waited for the handler"
        peer.close()
        release.set()
        """
    )
    assert result.returncode == 0, result.stderr
    assert "blocks its event loop" in result.stderr


def test_a_log_handler_that_does_not_come_back_cannot_keep_the_program_from_ending() -> None:
    result = run(
        """
        import logging, tempfile, threading
        import mqcore
        asleep = threading.Event()
        class Asleep(logging.Handler):
            # `emit` would hold the lock of the handler, for which Python's logging waits at the end.
            def handle(self, record):
                asleep.set()
                threading.Event().wait()
        logging.getLogger("mqcore.server").addHandler(Asleep())
        logging.getLogger("mqcore.server").setLevel(logging.INFO)
        with tempfile.TemporaryDirectory() as data_dir, mqcore.Broker(listen="tmqp://127.0.0.1:0", data_dir=data_dir):
            assert asleep.wait(20), "the broker did not log that it recovered its journals"
        """
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("define", ["def", "async def"])
def test_a_handler_may_stop_its_own_broker(define: str) -> None:
    result = run(
        """
        import mqcore
        class Last(mqcore.DeliveryHandler):
            DEFINE received_from_producer(self, queue, message, producer):
                mq.stop(grace=0)
                return mqcore.Decision()
        mq = mqcore.Broker(listen="tmqp://127.0.0.1:0", auto_create_channels=True, auto_create_queues=True)
        mq.delivery_handlers["memory"] = Last()
        mq.start()
        peer = WorkerPeer.connect(mq.listeners[0])
        peer.publish("orders", 1, b"")
        assert mq.wait("10s")
        peer.close()
        """.replace("DEFINE", define)
    )
    assert result.returncode == 0, result.stderr
    assert "event loop" not in result.stderr


# Starts and stops a broker, each time while a peer publishes through a handler and another consumes.
CYCLES = """
    import os, sys, threading, time
    import mqcore
    from mqcore.testing import tmqp

    class Allow(mqcore.DeliveryHandler):
        def received_from_producer(self, queue, message, producer):
            return mqcore.Decision()
        async def end_send(self, queue, message):
            return mqcore.Decision()

    def left():
        # A thread that was waited for is gone for the system a moment later.
        deadline = time.monotonic() + 5
        while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline:
            time.sleep(0.001)
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[1])
        descriptors = len(os.listdir("/proc/self/fd"))
        return len(os.listdir("/proc/self/task")), descriptors, pages * os.sysconf("SC_PAGE_SIZE")

    batch = b"".join(
        tmqp.encode(tmqp.Frame(0x11, content_type=1, id=b"%d" % number, target=b"orders", payload=b"x" * 128))
        for number in range(200)
    )

    def cycle(mq):
        mq.start()
        consumer, producer = WorkerPeer.connect(mq.listeners[0]), WorkerPeer.connect(mq.listeners[0])
        consumer.join("orders")
        producer.socket.sendall(batch)
        consumer.next()
        mq.stop(grace=0)
        consumer.close()
        producer.close()

    options = dict(listen="tmqp://127.0.0.1:0", auto_create_channels=True, auto_create_queues=True)
    same = mqcore.Broker(**options)
    same.delivery_handlers["memory"] = Allow()
    marks = []
    for number in range(LAST + 1):
        if number % 2:
            cycle(same)
        else:
            fresh = mqcore.Broker(**options)
            fresh.delivery_handlers["memory"] = Allow()
            cycle(fresh)
        if number in (299, LAST):
            marks.append(left())
    for threads, descriptors, bytes_ in marks:
        print(threads, descriptors, bytes_)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts what is left by looking into /proc")
@pytest.mark.timeout(240)
def test_hundreds_of_starts_and_stops_under_load_leave_nothing_behind() -> None:
    cycles = by_depth(450, 1000)
    result = run(CYCLES.replace("LAST", str(cycles - 1)), timeout=230)
    assert (result.returncode, result.stderr) == (0, "")
    early, late = ([int(number) for number in line.split()] for line in result.stdout.splitlines())
    assert late[0] == early[0] == 1, "threads are left"
    assert late[1] == early[1], "descriptors are left"
    assert late[2] - early[2] < 8 * 1024 * 1024, f"memory grows by 8 MiB in {cycles - 300} cycles"
