"""Every option of queues and channels that the table declares passes configuration, wire, broker and journal; settings
of each type take the values that they should, and no others."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

import mqcore
from mqcore import ChannelOptions, QueueOptions, errors
from mqcore._option_table import CHANNEL_OPTIONS, QUEUE_OPTIONS, Option
from mqcore.cli.channel import channel
from mqcore.cli.queue import queue
from mqcore.config import (
    AuthorityOptions,
    Binding,
    BrokerConfig,
    Durability,
    Interaction,
    NodeConfig,
    NodeFilter,
    NodeRule,
    QueueStatus,
    RouteMethod,
    RouterOptions,
    TokenOptions,
    UpstreamConfig,
    UserOptions,
)

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
UPSTREAM_WITH_FILTER = NodeConfig(upstreams=(UpstreamConfig(url="tmqp://a:1", send=NodeFilter(fallback=True)),))


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


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        *(("archive", value, True) for value in (True, "true", "YES", "on", "1")),
        *(("archive", value, False) for value in (False, "false", "No", "off", "0")),
        ("shards", 7, 7),
        ("shards", "7", 7),
        ("shards", "1_000", 1000),
        ("shards", 0, 0),
        ("admin", Path("/tmp/x"), "/tmp/x"),
        ("admin", None, None),
        ("unsaved_memory_max", None, None),
        ("unsaved_memory_max", "3", 3),
        ("listen", "tmqp://a, ,tmqp://b,", ("tmqp://a", "tmqp://b")),
        ("listen", ["tmqp://a", Path("/b")], ("tmqp://a", "/b")),
        ("ping_interval", "2m", 120.0),
        ("node", {"upstreams": ["tmqp://a:1"]}, NodeConfig(upstreams=(UpstreamConfig(url="tmqp://a:1"),))),
        ("node", {"upstreams": [{"url": "tmqp://a:1", "send": {"fallback": "yes"}}]}, UPSTREAM_WITH_FILTER),
        ("node", NodeConfig(name="west"), NodeConfig(name="west")),
        ("routers", [{"name": "r", "enabled": "off"}], (RouterOptions("r", enabled=False),)),
        ("user", [{"name": "ann"}, UserOptions(name="bob")], (UserOptions(name="ann"), UserOptions(name="bob"))),
    ],
)
def test_setting_takes_each_form_of_its_type(name: str, value: Any, read: object) -> None:
    taken = getattr(BrokerConfig(**{name: value}), name)
    assert (taken, type(taken)) == (read, type(read))


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        *(("archive", value, "it is true or false") for value in (1, 0.0, "maybe", "", None, [])),
        *(("shards", value, "it is a whole number, not negative") for value in (True, 1.5, -1, "-1", "x", None, "1.0")),
        *(("unsaved_memory_max", value, "it is a whole number, not negative") for value in (False, 2.0, [])),
        *(("delivery_handler", value, "it is text") for value in (7, None, b"memory")),
        *(("listen", value, "it is a list of texts") for value in ([7], None, 7)),
        ("ping_interval", None, "is not a duration"),
        ("ping_interval", [], "is not a duration"),
        ("node", 7, "it is a NodeConfig"),
        ("node", "west", "it is a NodeConfig"),
        ("routers", "r", "it is a list of RouterOptionss"),
        ("routers", [7], "it is a list of RouterOptionss"),
        ("routers", 7, "it is a list of RouterOptionss"),
        ("tls", 7, "it is a ListenerTLS"),
    ],
)
def test_setting_rejects_a_value_of_another_type(name: str, value: Any, wanted: str) -> None:
    with pytest.raises(errors.ConfigError, match=f"^{name}(:| cannot be) .*{wanted}"):
        BrokerConfig(**{name: value})


def test_allowed_queues_are_numbers() -> None:
    assert ChannelOptions(allowed_queues="1, 7").allowed_queues == (1, 7)  # type: ignore[arg-type]
    for wrong in (["x"], [-1], [True]):
        with pytest.raises(errors.ConfigError, match=r"allowed_queues cannot be .*; it is a list of numbers"):
            ChannelOptions(allowed_queues=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [RouteMethod, Interaction, QueueStatus, Durability])
def test_words_are_read_in_any_case_and_nothing_else_is(kind: Any) -> None:
    for member in kind:
        assert kind(str(member)) is member
    for wrong in ("", "nothing", 7, None):
        with pytest.raises(ValueError, match=f"not a valid {kind.__name__}"):
            kind(wrong)


def test_methods_and_interactions_are_read_in_other_spellings() -> None:
    assert RouteMethod("OnlyFirst") is RouteMethod("only_first") is RouteMethod("ONLY FIRST") is RouteMethod.ONLY_FIRST
    assert RouteMethod("RoundRobin") is RouteMethod.ROUND_ROBIN
    assert Interaction("Acknowledge") is Interaction.ACKNOWLEDGE
    for name, wrong, wanted in (
        ("interaction", "some", "one of none, acknowledge, response"),
        ("method", "some", "one of distribute, round-robin, only-first"),
        ("priority", "high", "a whole number"),
        ("content_type", -1, "a number up to 65535"),
        ("name", 7, "text"),
    ):
        with pytest.raises(errors.ConfigError, match=f"{name} of a binding cannot be {wrong!r}; it is {wanted}"):
            Binding("a", **{name: wrong})
    with pytest.raises(errors.ConfigError, match="target of a binding cannot be None; it is text"):
        Binding(None)  # type: ignore[arg-type]


def test_further_arguments_of_bindings_and_routers_have_names() -> None:
    with pytest.raises(TypeError, match="positional"):
        Binding("a", "b", 3)  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        RouterOptions("r", RouteMethod.DISTRIBUTE, (), True)  # type: ignore[misc]


def test_decision_of_a_node_filter_is_a_function() -> None:
    def decide(frame: object) -> bool:
        return True

    assert NodeFilter(decide=decide).decide is decide
    with pytest.raises(errors.ConfigError, match="decide cannot be 7; it is a function, which only a program can give"):
        NodeFilter(decide=7)  # type: ignore[arg-type]


def test_kinds_of_a_node_rule_are_known_words() -> None:
    kinds = ("queue", "router", "direct", "acknowledge", "response")
    assert NodeRule(kinds=kinds).kinds == kinds
    with pytest.raises(errors.ConfigError, match="there is no a, b; there are: acknowledge, direct, queue"):
        NodeRule(kinds=("b", "queue", "a"))


def test_tables_of_a_file_and_variables_are_merged(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        '[node]\nname = "west"\n[[upstream]]\nurl = "tmqp://a:1"\n[[upstream]]\nurl = "tmqp://b:1"\ntoken = "t"\n'
        '[[router]]\nname = "r"\nmethod = "only-first"\n[[router.binding]]\ntarget = "a/1"\npriority = 3\n'
        '[authority]\naudit = "off"\n'
    )
    environ = {"MQCORE_NODE__ACCEPTS": "off", "MQCORE_AUTHORITY__AUDIT_ALLOWED": "on", "MQCORE_TOKEN": "of a client"}
    config = BrokerConfig.load(file, environ=environ, shards=None)
    upstreams = (UpstreamConfig(url="tmqp://a:1"), UpstreamConfig(url="tmqp://b:1", token="t"))
    assert config.node == NodeConfig(name="west", accepts=False, upstreams=upstreams)
    assert config.routers == (RouterOptions("r", RouteMethod.ONLY_FIRST, (Binding("a/1", priority=3),)),)
    assert config.authority == AuthorityOptions(audit="off", audit_allowed=True)
    for text, said in (
        ("[[upstream]]\ntoken = 't'\n", r"the setting 'node\.upstreams\.url' is missing"),
        ("[[queue]]\nstatus = 'pull'\n", r"the setting 'queues\.name' is missing"),
        ("[[queue]]\nname = 'a/1'\n[[queues]]\nname = 'b/1'\n", "mean the same; write one of them"),
        ("[node]\nnamme = 'a'\n", r"no setting 'node\.namme'; did you mean 'name'\? there are: accept, accepts"),
    ):
        file.write_text(text)
        with pytest.raises(errors.ConfigError, match=said):
            BrokerConfig.load(file, environ={})


def test_settings_are_read_from_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MQCORE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MQCORE_SHARDS", "3")
    assert BrokerConfig.load().shards == 3
    assert BrokerConfig.load(shards=2).shards == 2
    assert BrokerConfig.load(environ={}).shards == 0


async def test_users_and_tokens_of_the_configuration_have_their_own_rights() -> None:
    hashed = hashlib.sha256(b"secret").hexdigest()
    config = BrokerConfig(
        listen=LISTEN,
        auto_create_channels=True,
        auto_create_queues=True,
        token=(
            TokenOptions(id="all", name="all", hash=hashed, allow=("*",)),
            TokenOptions(id="named", name="named", hash=hashed, allow=("*",), client_names=("till-*",)),
            TokenOptions(id="past", name="past", hash=hashed, allow=("*",), expires_ms=1),
            TokenOptions(id="none", name="none", hash=hashed),
        ),
        authority=AuthorityOptions(audit="off"),
    )
    async with mqcore.Broker(config) as broker:
        url = broker.listeners[0]
        async with mqcore.connect(url, token="mqt_all_secret") as mq:
            assert (await mq.publish("orders/1", b"x")).by == "server"
        async with mqcore.connect(url, token="mqt_named_secret", name="till-1") as mq:
            assert (await mq.publish("orders/1", b"x")).by == "server"
        async with mqcore.connect(url, token="mqt_none_secret") as mq:
            with pytest.raises(errors.Unauthorized):
                await mq.publish("orders/1", b"x")
        for token, name in (("mqt_all_other", None), ("mqt_named_secret", "shop"), ("mqt_past_secret", None)):
            with pytest.raises(errors.AuthFailed):
                await mqcore.connect(url, token=token, name=name)
        with pytest.raises(errors.AuthFailed):
            await mqcore.connect(url)


@pytest.mark.parametrize("name", ["routers", "channels", "queues"])
def test_text_in_place_of_a_list_of_tables_is_refused(name: str) -> None:
    for text in ("", "orders"):
        with pytest.raises(errors.ConfigError, match=f"{name} cannot be '{text}'; it is a list of"):
            mqcore.BrokerConfig(**{name: text})
