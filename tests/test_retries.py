"""No message leaves a queue unless it was settled, expired, replaced, or dropped by an option: retries, dead letters,
and delivery handlers that fail, refuse, or are not registered."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import mqcore
import programs
from mqcore import ChannelOptions, Decision, DeliveryHandler, QueueOptions, SendAck, errors, journal
from mqcore.config import QueueStatus
from served import ServedBroker, clean_environment, serving
from slow_sync import slow_sync

SAVING = {"status": QueueStatus.ROUND_ROBIN, "request_acknowledge": True, "delivery_handler": "at-least-once"}
LISTEN = ("tmqp://127.0.0.1:0",)
LIMIT = 10.0
"""Seconds for anything that needs milliseconds."""


async def until(condition: Callable[[], Awaitable[bool]], limit: float = LIMIT) -> None:
    """Poll until `condition()` is true; fail after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not await condition():
        assert time.monotonic() < deadline, f"this should have become true within {limit} s"
        await asyncio.sleep(0.01)


def command(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    return programs.run(
        [sys.executable, "-m", "mqcore", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=clean_environment() | (environment or {}),
    )


def page(url: str) -> str:
    """Read a page of the admin side."""
    with urllib.request.urlopen(url, timeout=LIMIT) as answer:
        return str(answer.read().decode())


def kill(broker: ServedBroker) -> None:
    """End the broker without a chance to save anything more."""
    broker.process.send_signal(signal.SIGKILL)
    broker.process.wait()


async def save_all(mq: mqcore.Client, queue: str) -> None:
    """Wait until the journal has all that happened in the queue's channel so far: a confirmation covers it."""
    await mq.publish(queue, b"fence")


async def reject_all(mq: mqcore.Client, queue: str, attempts: int) -> list[float]:
    """Reject the only message of a queue, and return when each attempt began."""
    began = []
    async with mq.queue(queue).consume(prefetch=1, idle_timeout=LIMIT) as messages:
        async for message in messages:
            began.append(time.monotonic())
            await message.nack("broken")
            if len(began) == attempts:
                return began
    raise AssertionError(f"only {len(began)} attempts")


# --- retries ---------------------------------------------------------------------------------------------------


async def test_delay_before_a_redelivery_doubles_and_survives_kill_9(tmp_path: Path) -> None:
    arguments = ["--data-dir", str(tmp_path / "data"), "--admin", "http://127.0.0.1:0"]
    with serving(*arguments) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("work", 1, QueueOptions(**SAVING))
            await mq.declare("work", 2, QueueOptions(**SAVING))
            await mq.publish("work/1", b"bad")
            began = await reject_all(mq, "work/1", 5)
            pauses = [later - sooner for sooner, later in itertools.pairwise(began)]
            for pause, expected in zip(pauses, (0.1, 0.2, 0.4, 0.8), strict=True):
                assert expected * 0.95 <= pause < expected + LIMIT, pauses
            # A longer delay, which the kill interrupts.
            async with mq.queue("work/1").consume(prefetch=1, idle_timeout=LIMIT) as messages:
                async for message in messages:
                    await message.nack("later", delay="1h")
                    break

            async def waits() -> bool:
                return (await mq.queue_information("work/1")).delayed_messages == 1

            await until(waits)
            await save_all(mq, "work/2")
        kill(broker)
    with serving(*arguments) as broker:
        async with mqcore.connect(broker.url) as mq:
            information = await mq.queue_information("work/1")
            assert (information.messages, information.delayed_messages) == (1, 1)
            assert information.next_attempt is not None
            assert 3500 < information.next_attempt - time.time() <= 3600
        shown = command("--url", broker.url, "queue", "show", "work/1", "--json")
        assert '"delayed_messages": 1' in shown.stdout or '"delayed_messages":1' in shown.stdout
        metrics = page(f"{broker.admin_url}/metrics?queues=1")
        assert "\nmqcore_messages_delayed 1\n" in metrics
        assert 'mqcore_queue_delayed{queue="work/1"} 1' in metrics


async def test_attempts_are_numbered_for_consumers_that_pull_and_for_handlers() -> None:
    seen = []

    class Counts(DeliveryHandler):
        policy = "memory"

        def acknowledge_received(self, queue: Any, acknowledgement: Any, delivery: Any) -> Decision:
            seen.append(delivery.attempt)
            return super().acknowledge_received(queue, acknowledgement, delivery)  # type: ignore[return-value]

    broker = mqcore.Broker()
    broker.delivery_handlers["counts"] = Counts()
    async with broker, mqcore.connect(broker) as mq:
        await mq.declare("work", 1, QueueOptions(status="pull", request_acknowledge=True, delivery_handler="counts"))
        await mq.publish("work/1", b"", headers={"Delivery-Attempt": "77"})
        async with mq.join("work"):
            for number in (1, 2, 3):
                (message,) = await mq.queue("work/1").pull(1)
                assert message.attempt == number
                await message.nack()

                async def requeued(times: int = number) -> bool:
                    return broker.stats().queue("work/1").put_back == times

                await until(requeued)
    assert seen == [1, 2, 3]


async def test_consumer_may_name_the_delay_of_a_rejected_message() -> None:
    async with mqcore.Broker() as broker, mqcore.connect(broker) as mq:
        await mq.declare("work", 1, QueueOptions(status="roundrobin", request_acknowledge=True))
        await mq.publish("work/1", b"")
        began = []
        async with mq.queue("work/1").consume(prefetch=1, idle_timeout=LIMIT) as messages:
            async for message in messages:
                began.append(time.monotonic())
                if len(began) == 2:
                    await message.ack()
                    break
                await message.nack("later", delay=0.5)
        assert 0.5 <= began[1] - began[0] < 3.0


# --- dead letters ----------------------------------------------------------------------------------------------


async def test_dead_letters_that_a_power_loss_left_in_two_queues_reach_consumers_of_the_new_one(
    tmp_path: Path,
) -> None:
    """Their previous queues lose that they have settled them. Then nothing but the consumer uses the broker: no admin
    side, and no other client."""
    data, kept = tmp_path / "data", tmp_path / "kept"
    arguments, four = ["--data-dir", str(data)], {"MQCORE_SHARDS": "4"}
    sources = [f"source{number}" for number in range(8)]
    bodies = {f"{source} {number}" for source in sources for number in range(3)}
    with serving(*arguments, environment=four) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("failed", 1, QueueOptions(**SAVING))
            await mq.publish("failed/1", "here before")
            for source in sources:
                await mq.declare(source, 1, QueueOptions(**SAVING, put_back_limit=0, dead_letter="failed/1"))
                await mq.publish_many(f"{source}/1", [body for body in bodies if body.startswith(f"{source} ")])
        assert broker.terminate() == 0
    shutil.copytree(data, kept)
    with serving(*arguments, environment=four) as broker:
        async with mqcore.connect(broker.url) as mq:
            await asyncio.gather(*(reject_all(mq, f"{source}/1", 3) for source in sources))

            async def dead() -> bool:
                return (await mq.queue_information("failed/1")).messages == 1 + len(bodies)

            await until(dead)
        assert broker.terminate() == 0
    with_failed = [path.parent.name for path in kept.glob("*/*.segment") if b"here before" in path.read_bytes()]
    for shard in kept.glob("shard-*"):
        if [shard.name] != with_failed:
            shutil.rmtree(data / shard.name)
            shutil.copytree(shard, data / shard.name)
    saved = sum(len(journal.messages(data, f"{channel}/1")) for channel in [*sources, "failed"])
    assert saved > 1 + len(bodies), "many are in both queues"
    with serving(*arguments, environment=four) as broker:
        async with mqcore.connect(broker.url) as mq, mq.queue("failed", 1).consume(str) as messages:
            found = []
            for _ in ["here before", *bodies]:
                async with asyncio.timeout(LIMIT):
                    message = await anext(messages)
                found.append(message.body)
                await message.ack()
            assert sorted(found) == sorted(["here before", *bodies])
            for source in sources:
                assert (await mq.queue_information(f"{source}/1")).messages == 0


async def test_message_without_attempts_left_is_a_dead_letter_of_its_channel_after_kill_9(tmp_path: Path) -> None:
    arguments = ["--data-dir", str(tmp_path / "data")]
    with serving(*arguments) as broker:
        async with mqcore.connect(broker.url) as mq:
            only_one = ChannelOptions(allow_multiple_queues=False, allowed_queues=(1,), queue_limit=1)
            await mq.create_channel("work", only_one)
            await mq.create_queue("work/1", QueueOptions(**SAVING, put_back_limit=1, retry_delay="10ms"))
            for body in (b"first", b"second"):
                await mq.publish("work/1", body)
                await reject_all(mq, "work/1", 2)

            async def dead() -> bool:
                return (await mq.queue_information("work/1")).dead_lettered_messages == 2

            await until(dead)
            await save_all(mq, "work/1")
        kill(broker)
        assert sum("created the dead-letter queue" in line for line in broker.stderr_lines) == 1
    with serving(*arguments) as broker:
        listed = command("--url", broker.url, "queue", "ls")
        assert "work/65535" in listed.stdout
        async with mqcore.connect(broker.url) as mq:
            information = await mq.queue_information("work/65535")
            assert (information.messages, information.status, information.tag_name) == (2, "pull", "dead-letters")
            assert information.delivery_handler == "at-least-once"
            async with mq.join("work"):
                letters = await mq.queue("work/65535").pull(2)
                assert [letter.body for letter in letters] == [b"first", b"second"]
                assert letters[0].headers["Dead-Letter-Reason"] == "limit"
                assert letters[0].headers["Dead-Letter-Queue"] == "work/1"


async def test_message_that_becomes_a_dead_letter_at_kill_9_is_in_one_of_both_queues(tmp_path: Path) -> None:
    """It is not lost, and not in both."""
    arguments = ["--data-dir", str(tmp_path / "data")]
    bodies = {str(number).encode() for number in range(20)}
    with serving(*arguments, environment=slow_sync(tmp_path, milliseconds=15)) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("work", 1, QueueOptions(**SAVING, put_back_limit=0))
            await mq.publish_many("work/1", sorted(bodies))
            await reject_all(mq, "work/1", len(bodies))

            async def dead() -> bool:
                return (await mq.queue_information("work/1")).dead_lettered_messages == len(bodies)

            await until(dead)
            kill(broker)
    with serving(*arguments) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.update_queue("work/1", QueueOptions(status="pull"))
            async with mq.join("work"):
                found = [
                    message.body
                    for queue in await mq.queues("work")
                    for message in await mq.queue("work", queue.id).pull(2 * len(bodies), bytes)
                ]
            assert sorted(found) == sorted(bodies)


async def test_owner_may_choose_to_drop_messages_without_attempts_left() -> None:
    async with mqcore.Broker() as broker, mqcore.connect(broker) as mq:
        options = QueueOptions(status="roundrobin", request_acknowledge=True, put_back_limit=0, dead_letter="drop")
        await mq.declare("work", 1, options)
        assert (await mq.queue_information("work/1")).dead_letter == "drop"
        await mq.publish("work/1", b"")
        await reject_all(mq, "work/1", 1)

        async def dropped() -> bool:
            return broker.stats().queue("work/1").dropped["limit"] == 1

        await until(dropped)
        assert [queue.address for queue in broker.stats().queues] == ["work/1"]
        await mq.update_queue("work/1", QueueOptions(dead_letter=""))
        assert (await mq.queue_information("work/1")).dead_letter is None


async def test_dead_letters_of_a_queue_in_memory_survive_kill_9_in_a_saving_queue(tmp_path: Path) -> None:
    arguments = ["--data-dir", str(tmp_path / "data")]
    with serving(*arguments) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("dead", 1, QueueOptions(status="pull", delivery_handler="at-least-once"))
            options = QueueOptions(
                status="roundrobin", request_acknowledge=True, put_back_limit=0, dead_letter="dead/1"
            )
            await mq.declare("work", 1, options)
            for number in range(20):
                await mq.publish("work/1", str(number).encode())
            await reject_all(mq, "work/1", 20)

            async def moved() -> bool:
                return (await mq.queue_information("dead/1")).messages == 20

            await until(moved)
        kill(broker)
    with serving(*arguments) as broker:
        async with mqcore.connect(broker.url) as mq:
            assert (await mq.queue_information("dead/1")).messages == 20


def test_dead_letter_queue_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with serving() as broker:
        refused = command("--url", broker.url, "queue", "create", "dl/1", "--dead-letter", "nowhere/1")
        assert refused.returncode != 0
        assert "nowhere/1 does not exist" in refused.stderr + refused.stdout
        assert command("--url", broker.url, "queue", "create", "dead/1").returncode == 0
        assert command("--url", broker.url, "queue", "create", "dl/1", "--dead-letter", "dead/1").returncode == 0
        changed = command("--url", broker.url, "queue", "set", "dl/1", "--dead-letter", "nowhere/1")
        assert changed.returncode != 0
    with pytest.raises(errors.ConfigError, match="nowhere/1"):
        mqcore.Broker(channel=ChannelOptions(queue=QueueOptions(dead_letter="nowhere/1"))).start()
    with serving("--auto-create") as broker:
        assert command("--url", broker.url, "queue", "create", "dl/1", "--dead-letter", "new/1").returncode == 0


async def test_removed_dead_letter_queue_is_replaced_by_that_of_the_channel() -> None:
    async with mqcore.Broker(shards=4) as broker, mqcore.connect(broker) as mq:
        for name in ("dead-a", "dead-b", "dead-c", "dead-d"):
            await mq.declare(name, 1, QueueOptions(status="pull"))
            options = QueueOptions(
                status="roundrobin", request_acknowledge=True, put_back_limit=0, dead_letter=f"{name}/1"
            )
            await mq.declare("work", 1, options)
            await mq.update_queue("work/1", options)
            await mq.remove_queue(f"{name}/1")
            await mq.publish("work/1", name.encode())
            await reject_all(mq, "work/1", 1)

        async def moved() -> bool:
            return any(q.address == "work/65535" and q.normal == 4 for q in broker.stats().queues)

        await until(moved)


# --- handlers that are not registered --------------------------------------------------------------------------

APP = '''
"""Saves what it accepts."""

import mqcore


class Saves(mqcore.DeliveryHandler):
    """Saves what it accepts."""

    def received_from_producer(self, queue, message, producer):
        """Save and confirm."""
        return mqcore.Decision(save=True, acknowledge=mqcore.SendAck.IF_SAVED)


handlers = {"s1": Saves()}
'''


async def test_queue_waits_for_its_handler_after_a_restart_without_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    arguments = ["--data-dir", str(tmp_path / "data"), "--listen", LISTEN[0], "--admin", "http://127.0.0.1:0"]
    with serving("--app", "shop:handlers", *arguments, cwd=tmp_path) as broker:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("work", 1, QueueOptions(status="pull", delivery_handler="s1"))
            await mq.publish("work/1", b"saved")
        kill(broker)
    with serving(*arguments) as broker:
        async with mqcore.connect(broker.url) as mq:
            with pytest.raises(errors.Busy, match="s1"):
                await mq.publish("work/1", b"refused")
            with pytest.raises(errors.OperationError):
                await mq.queue("work/1").pull(1)
            information = await mq.queue_information("work/1")
            assert (information.messages, information.missing_handler) == (1, "s1")
        assert "s1" in command("--url", broker.url, "queue", "ls").stdout
        assert any("work/1" in line and "not registered" in line for line in broker.stderr_lines)
        ready = json.loads(page(f"{broker.admin_url}/readyz"))
        waiting = [{"queue": "work/1", "missing_handler": "s1"}]
        assert (ready["status"], ready["queues_without_handler"]) == ("ready", waiting)
        assert json.loads(page(f"{broker.admin_url}/overview"))["queues_without_handler"] == waiting
        kill(broker)
    with serving("--app", "shop:handlers", *arguments, cwd=tmp_path) as broker:
        async with mqcore.connect(broker.url) as mq:
            assert (await mq.queue_information("work/1")).missing_handler is None
            await mq.publish("work/1", b"more")
            assert [message.body for message in await mq.queue("work/1").pull(2)] == [b"saved", b"more"]


def test_default_handler_that_is_not_registered_fails_at_start(tmp_path: Path) -> None:
    served = command("serve", "--listen", LISTEN[0], environment={"MQCORE_DELIVERY_HANDLER": "at-least-onec"})
    assert served.returncode != 0
    assert "did you mean 'at-least-once'" in served.stderr
    file = tmp_path / "broker.toml"
    file.write_text('delivery_handler = "nosuch"\n')
    served = command("serve", "--listen", LISTEN[0], "--config", str(file))
    assert served.returncode != 0
    assert "nosuch" in served.stderr
    with pytest.raises(errors.ConfigError, match="memory"):
        mqcore.Broker(delivery_handler="memry").start()


# --- handlers that fail or refuse ------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", ["raises", "nonsense"])
@pytest.mark.parametrize("style", ["plain", "async"])
async def test_confirmed_publish_fails_at_once_if_the_handler_does(failure: str, style: str) -> None:
    def decide() -> Any:
        if failure == "raises":
            raise ValueError("on purpose")
        return 7

    class Plain(DeliveryHandler):
        def received_from_producer(self, queue: Any, message: Any, producer: Any) -> Any:
            return decide()

    class Awaited(DeliveryHandler):
        async def received_from_producer(self, queue: Any, message: Any, producer: Any) -> Any:
            return decide()

    broker = mqcore.Broker()
    broker.delivery_handlers["broken"] = Plain() if style == "plain" else Awaited()
    async with broker, mqcore.connect(broker) as mq:
        await mq.declare("work", 1, QueueOptions(delivery_handler="broken"))
        began = time.monotonic()
        with pytest.raises(errors.Busy, match="broken"):
            await mq.publish("work/1", b"")
        assert time.monotonic() - began < 5.0
        assert broker.stats().queue("work/1").normal == 0


def test_misspelt_step_and_wrong_number_of_arguments_are_refused_at_registration() -> None:
    class Misspelt(DeliveryHandler):
        def recieved_from_producer(self, queue: Any, message: Any, producer: Any) -> Decision:
            return Decision()

    class Short(DeliveryHandler):
        def begin_send(self, queue: Any) -> Decision:  # type: ignore[override]
            return Decision()

    class Fine(DeliveryHandler):
        def refresh_prices(self) -> None:
            """A method that resembles no step."""

        def _begin_sending(self) -> None:
            """A private method."""

    broker = mqcore.Broker()
    with pytest.raises(TypeError, match="did you mean received_from_producer"):
        broker.delivery_handlers["x"] = Misspelt()
    with pytest.raises(TypeError, match=r"begin_send.*queue, message"):
        broker.delivery_handlers["x"] = Short()
    broker.delivery_handlers["x"] = Fine()


ENDING_APP = '''
"""Handlers that try to end the program."""

import sys

import mqcore


class Plain(mqcore.DeliveryHandler):
    """Exits."""

    def received_from_producer(self, queue, message, producer):
        """Exit."""
        raise {exception}


class Awaited(mqcore.DeliveryHandler):
    """Exits."""

    async def received_from_producer(self, queue, message, producer):
        """Exit."""
        raise {exception}


class Sends(mqcore.Router):
    """Exits."""

    async def route(self, message, publisher):
        """Exit."""
        raise {exception}


broker = mqcore.Broker(listen="tmqp://127.0.0.1:0", auto_create_channels=True)
broker.delivery_handlers["plain"] = Plain()
broker.delivery_handlers["awaited"] = Awaited()
broker.routers["sends"] = Sends()
'''


@pytest.mark.parametrize("exception", ["SystemExit(3)", "KeyboardInterrupt", "BaseException()"])
async def test_no_exception_of_a_handler_ends_the_broker(exception: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(ENDING_APP.format(exception=exception))
    with serving("--app", "shop:broker", cwd=tmp_path) as broker:
        async with mqcore.connect(broker.url) as mq:
            for key, queue in (("plain", "work/1"), ("awaited", "work/2")):
                await mq.create_queue(queue, QueueOptions(delivery_handler=key))
                for _ in range(2):
                    with pytest.raises(errors.Busy):
                        await mq.publish(queue, b"")
            test = await mq.test_router("sends")
            assert not test.taken
            await mq.create_queue("work/3")
            await mq.publish("work/3", b"")
        assert broker.process.poll() is None
        assert broker.terminate() == 0


async def test_refused_consumer_is_passed_over_and_a_message_that_all_refuse_waits() -> None:
    allowed = {"c2"}

    class Chooses(DeliveryHandler):
        def can_consumer_receive(self, queue: Any, message: Any, consumer: mqcore.ClientView) -> Decision:
            return Decision(allow=consumer.id in allowed)

    broker = mqcore.Broker()
    broker.delivery_handlers["chooses"] = Chooses()
    async with (
        broker,
        mqcore.connect(broker) as mq,
        mqcore.connect(broker, id="c1") as first,
        mqcore.connect(broker, id="c2") as second,
    ):
        await mq.declare("work", 1, QueueOptions(status="roundrobin", delivery_handler="chooses"))
        async with first.queue("work/1").consume() as left, second.queue("work/1").consume() as right:
            for number in range(4):
                await mq.publish("work/1", str(number).encode())
            received = [(await anext(right)).body for _ in range(4)]
            assert received == [b"0", b"1", b"2", b"3"]
            allowed.clear()
            await mq.publish("work/1", b"later")

            async def refused() -> bool:
                return broker.stats().queue("work/1").delayed == 1

            await until(refused)
            allowed.add("c1")
            assert (await asyncio.wait_for(anext(left), LIMIT)).body == b"later"
        assert sum(broker.stats().queue("work/1").dropped.values()) == 0


async def test_handler_decides_about_each_pull_of_a_cache() -> None:
    class Secret(DeliveryHandler):
        def can_consumer_receive(self, queue: Any, message: Any, consumer: mqcore.ClientView) -> Decision:
            return Decision(allow=consumer.id == "friend")

    broker = mqcore.Broker()
    broker.delivery_handlers["secret"] = Secret()
    async with (
        broker,
        mqcore.connect(broker, id="friend") as friend,
        mqcore.connect(broker, id="stranger") as stranger,
    ):
        await friend.declare("work", 1, QueueOptions(status="cache", delivery_handler="secret"))
        await friend.publish("work/1", b"body")
        for _ in range(2):
            with pytest.raises(errors.Unauthorized):
                await stranger.queue("work/1").get_cached()
            latest = await friend.queue("work/1").get_cached()
            assert latest is not None
            assert latest.body == b"body"


# --- channels --------------------------------------------------------------------------------------------------


async def test_channel_is_removed_when_its_last_message_expires() -> None:
    async with mqcore.Broker() as broker, mqcore.connect(broker) as mq:
        queue = QueueOptions(status="pull", message_timeout="200ms")
        await mq.create_channel("temporary", ChannelOptions(destroy_when_empty=True, queue=queue))
        await mq.create_queue("temporary/1")
        async with mq.join("temporary"):
            await mq.publish("temporary/1", b"")

        async def gone() -> bool:
            return not broker.stats().channels

        await until(gone)


async def test_channel_limit_is_that_of_the_whole_broker() -> None:
    async with mqcore.Broker(channel_limit=3, shards=4) as broker, mqcore.connect(broker) as mq:
        for number in range(3):
            await mq.create_channel(f"channel-{number}")
        for number in range(3, 9):
            with pytest.raises(errors.LimitExceeded, match="3 channels"):
                await mq.create_channel(f"channel-{number}")
        await mq.remove_channel("channel-0")
        await mq.create_channel("channel-9")


def test_restarted_broker_counts_the_channels_that_it_restored(tmp_path: Path) -> None:
    for number in range(3):
        with (
            mqcore.Broker(channel_limit=2, shards=2, data_dir=tmp_path) as broker,
            mqcore.sync.connect(broker) as mq,
        ):
            if number < 2:
                mq.create_channel(f"channel-{number}")
            else:
                with pytest.raises(errors.LimitExceeded):
                    mq.create_channel("channel-2")


async def test_handler_puts_an_arriving_message_at_the_start_of_its_queue() -> None:
    class First(DeliveryHandler):
        def received_from_producer(self, queue: Any, message: mqcore.Message, producer: Any) -> Decision:
            position = mqcore.PutBack.START if message.body == b"urgent" else mqcore.PutBack.NO
            return Decision(put_back=position, acknowledge=SendAck.ALWAYS)

    broker = mqcore.Broker()
    broker.delivery_handlers["first"] = First()
    async with broker, mqcore.connect(broker) as mq:
        await mq.declare("work", 1, QueueOptions(status="pull", delivery_handler="first"))
        for body in (b"1", b"2", b"urgent"):
            await mq.publish("work/1", body)
        assert [message.body for message in await mq.queue("work/1").pull(3)] == [b"urgent", b"1", b"2"]
