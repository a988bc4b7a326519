"""Every option of queues and channels that the table declares passes configuration, wire, broker and journal."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import mqcore
from mqcore import ChannelOptions, QueueOptions
from mqcore._option_table import CHANNEL_OPTIONS, QUEUE_OPTIONS, Option
from mqcore.cli.channel import channel
from mqcore.cli.queue import queue

SAMPLES: dict[str, Any] = {
    "status": "pull",
    "duration": 3723.5,
    "delay": 0.25,
    "count": 7,
    "dead letter": "dead/1",
    "key": "at-most-once",
    "text": "label",
    "durability": "os",
    "rate": "7/10s",
    "queue ids": (1, 7),
}


def sample(option: Option) -> Any:
    """A value other than the default."""
    return not option.default if option.kind == "flag" else SAMPLES[option.kind]


QUEUE = {option.name: sample(option) for option in QUEUE_OPTIONS}
CHANNEL = {option.name: sample(option) for option in CHANNEL_OPTIONS}
LISTEN = ("tmqp://127.0.0.1:0",)


class Open(mqcore.Authenticator):
    """Lets every client join."""

    def authenticate(self, channel: str, client: mqcore.ClientView) -> bool:
        return True


def stored(broker: mqcore.Broker) -> dict[str, Any]:
    return dataclasses.asdict(broker.stats().queue("orders/1").options)


async def test_every_option_passes_the_wire_and_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        handlers: dict[str, Any] = {
            "event_handlers": {CHANNEL["event_handler"]: mqcore.EventHandler()},
            "authenticators": {CHANNEL["authenticator"]: Open()},
        }
        async with mqcore.Broker(listen=LISTEN, data_dir=tmp_path, **handlers) as broker, mqcore.connect(broker) as mq:
            if not broker.stats().queues:
                await mq.create_queue("dead/1")
                # The options of queues are the defaults of the channel's, so that the queue inherits them.
                await mq.create_channel("orders", ChannelOptions(queue=QueueOptions(**QUEUE), **CHANNEL))
                await mq.create_queue("orders/1")
            assert stored(broker) == QUEUE
            shown = dataclasses.asdict(await mq.queue_information("orders/1"))
            names = {"tag": "tag_name"}
            assert {name: shown[names.get(name, name)] for name in QUEUE} == QUEUE
            shown = dataclasses.asdict(await mq.channel_information("orders"))
            assert {name: shown[name] for name in CHANNEL} == CHANNEL
            assert {name: shown[name] for name in QUEUE} == QUEUE


async def test_a_change_of_one_option_keeps_the_others() -> None:
    async with mqcore.Broker(listen=LISTEN, auto_create_channels=True) as broker, mqcore.connect(broker) as mq:
        await mq.create_queue("dead/1")
        await mq.create_queue("orders/1")
        expected = stored(broker)
        for name, value in QUEUE.items():
            assert expected[name] != value, "a sample must differ from the default"
            await mq.update_queue("orders/1", QueueOptions(**{name: value}))
            expected[name] = value
            assert stored(broker) == expected


def test_every_option_is_read_from_a_file(tmp_path: Path) -> None:
    def toml(values: dict[str, Any]) -> str:
        texts = {True: "true", False: "false"}
        lists = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return "".join(
            f"{name} = {texts[value] if isinstance(value, bool) else repr(value)}\n" for name, value in lists.items()
        )

    file = tmp_path / "broker.toml"
    file.write_text(f"[channel]\n{toml(CHANNEL)}[channel.queue]\n{toml(QUEUE)}")
    config = mqcore.BrokerConfig.load(file, environ={})
    assert config.channel == ChannelOptions(queue=QueueOptions(**QUEUE), **CHANNEL)


def test_commands_have_the_declared_options() -> None:
    for command, table in (
        (queue.commands["create"], QUEUE_OPTIONS),
        (queue.commands["set"], QUEUE_OPTIONS),
        (channel.commands["create"], CHANNEL_OPTIONS),
    ):
        names = {parameter.name for parameter in command.params}
        assert names >= {option.name for option in table if option.command is not None}
