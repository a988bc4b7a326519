"""Generates the reference of configuration, metrics, events and errors from the code and from a running broker."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import re
import tempfile
import urllib.request
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

from tables import cell, code, table

import mqcore
from mqcore import config
from mqcore import errors as raised
from mqcore.cli import tail
from mqcore.cli.exit_code import exit_code
from mqcore.client import ClientOptions
from mqcore.config.documented import meanings

OPTIONS: tuple[tuple[str, str, type[Any]], ...] = (
    ("Broker", "", config.BrokerConfig),
    ("Channels", "channel_defaults", config.ChannelOptions),
    ("Queues", "channel_defaults.queue", config.QueueOptions),
    ("Declared channels", "[channel]", config.ChannelDeclaration),
    ("Declared queues", "[queue]", config.QueueDeclaration),
    ("Routers", "[router]", config.RouterOptions),
    ("Bindings", "[router.binding]", config.Binding),
    ("Nodes", "node", config.NodeConfig),
    ("Upstream nodes", "node.upstream", config.UpstreamConfig),
    ("Node filters", "node.filter", config.NodeFilter),
    ("TLS", "tls", mqcore.TLSConfig),
    ("Clients", "", ClientOptions),
)


def configuration() -> str:
    """The page with all options, as the classes of mqcore.config declare them."""
    parts = [
        "# Configuration reference\n",
        "Every option with its type and default, from the classes that read it. [Configuration](../configuration.md)\n"
        "explains files, flags and environment variables.\n",
    ]
    for title, place, cls in OPTIONS:
        parts.append(f"## {title}\n")
        where = f", in the file {code('[' + place + ']')}" if place and not place.startswith("[") else ""
        where = f", in the file {code('[' + place + ']')}" if place.startswith("[") else where
        parts.append(f"`{cls.__module__.removesuffix('.options')}.{cls.__name__}`{where}\n")
        texts = meanings(cls)
        rows = [
            (
                code(entry.name),
                code(str(entry.type)),
                default(entry),
                cell(texts.get(entry.name, "").replace("<", "&lt;")),
            )
            for entry in dataclasses.fields(cls)
            if not entry.name.startswith("_")
        ]
        parts.append(table(("name", "type", "default", "meaning"), rows))
    return "\n".join(parts)


def default(entry: dataclasses.Field[Any]) -> str:
    """The default of a field, as Python writes it."""
    if entry.default is not dataclasses.MISSING:
        value = entry.default
    elif entry.default_factory is not dataclasses.MISSING:
        value = entry.default_factory()
        if dataclasses.is_dataclass(value):
            return code(f"{type(value).__name__}()")
    else:
        return "required"
    if isinstance(value, timedelta):
        return code(f"{value.total_seconds():g} s")
    return code(repr(value.value) if isinstance(value, Enum) else repr(value))


def metrics() -> str:
    """The page with all metrics, as a running broker of every protocol exports them."""
    exported = asyncio.run(exported_metrics())
    helps = dict(re.findall(r"^# HELP (\w+) (.+)$", exported, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", exported, re.MULTILINE))
    labels: dict[str, set[str]] = {name: set() for name in helps}
    for sample, given in re.findall(r"^(\w+)\{(.*)\} ", exported, re.MULTILINE):
        name = next(name for name in (sample, re.sub(r"_(bucket|sum|count)$", "", sample)) if name in labels)
        labels[name] |= set(re.findall(r'(\w+)="', given)) - {"le"}
    rows = [
        (code(name), kinds[name], ", ".join(code(label) for label in sorted(labels[name])), cell(helps[name]))
        for name in sorted(helps)
    ]
    return (
        "# Metrics reference\n\n"
        "The metrics of `/metrics`, in the format of Prometheus. `/metrics?queues=1` adds those of single queues.\n"
        "[Operations](../operations.md#metrics-and-alerts) has alerts and a dashboard for Grafana. A metric appears\n"
        "when its part of the broker is in use; those of data directories and nodes are exported only with them.\n"
        "[Clusters](../cluster.md#observe-a-cluster) lists those of a node of a cluster.\n\n"
        + table(("name", "type", "labels", "meaning"), rows)
    )


async def exported_metrics() -> str:
    """The page /metrics of a broker in which each part has been used once."""
    addresses = ["tmqp://127.0.0.1:0", "throttr://127.0.0.1:0", "mqks://127.0.0.1:0", "mm2://127.0.0.1:0"]
    options = mqcore.QueueOptions(status=mqcore.QueueStatus.ROUND_ROBIN, request_acknowledge=True)
    with tempfile.TemporaryDirectory() as directory:
        broker = mqcore.Broker(listen=addresses, admin="http://127.0.0.1:0", data_dir=directory, history=True)
        async with broker, broker.client() as client:
            await client.declare("orders", 1001, options)
            await client.publish("orders/1001", b"A-100")
            async with client.queue("orders", 1001).consume() as messages:
                await (await anext(messages)).ack()
            url = f"{broker.admin_url}/metrics?queues=1"
            page = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read())
    return str(page.decode())


def events(root: Path) -> str:
    """The page with the events of handlers, clients and the history."""
    handler = [
        (
            code(f"{name}({', '.join(list(inspect.signature(method).parameters)[1:])})"),
            cell(inspect.getdoc(method) or ""),
        )
        for name, method in vars(mqcore.EventHandler).items()
        if inspect.isfunction(method) and not name.startswith("_")
    ]
    source = inspect.getmodule(tail)
    streams = [(code(kind), "the broker") for kind in vars(source)["_SERVER_EVENTS"]]
    streams += [(code(kind), "a channel") for kind in vars(source)["_CHANNEL_EVENTS"]]
    streams += [(code("MessageProduced"), "a queue")]
    return (
        "# Events reference\n\n"
        "## Event handlers\n\nMethods of `mqcore.EventHandler`; [handlers](../handlers.md#event-handlers) explains\n"
        "them.\n\n"
        + table(("method", "called"), handler)
        + "## Events of clients\n\nKinds of `client.events(...)` and `mqcore tail --events`; "
        "[command line](../cli.md#events)\nexplains them.\n\n"
        + table(("kind", "subscribed for"), streams)
        + "## Events of the history\n\nLifecycle events that a broker with `history = on` records; "
        "[history](../archive.md#history)\nexplains them. The number is that of the binary form.\n\n"
        + table(("event", "number", "meaning"), lifecycle(root))
    )


def lifecycle(root: Path) -> list[tuple[str, str, str]]:
    """The kinds of lifecycle events, as the broker declares them."""
    source = (root / "rust/mqcore-broker/src/history/mod.rs").read_text(encoding="utf-8")
    body = re.search(r"pub enum LifecycleKind \{\n(.*?)\n\}", source, re.DOTALL)
    if body is None:
        raise SystemExit("rust/mqcore-broker/src/history/mod.rs: no enum LifecycleKind")
    entries = re.findall(r"((?:^\s*///.*\n)+)(?:\s*#\[.*\]\n)*\s*(\w+) = (\d+),", body[1] + "\n", re.MULTILINE)
    names = dict(re.findall(r'Self::(\w+) => "([\w-]+)"', source))
    return [
        (code(names[variant]), number, cell(re.sub(r"^\s*/// ?|\[(?=`)|(?<=`)\]", "", text, flags=re.MULTILINE)))
        for text, variant, number in entries
    ]


def errors() -> str:
    """The page with all exceptions, their bases and the exit code of `mqcore` for each."""
    parts = [
        "# Errors reference\n",
        "Everything that mqcore raises, in `mqcore.errors`. `except mqcore.MqcoreError` catches all of them. The exit\n"
        "code is that of `mqcore` when the error ends a command.\n",
    ]
    rows = []
    for name in raised.__all__:
        cls = getattr(raised, name)
        bases = ", ".join(code(base.__name__) for base in cls.__bases__)
        rows.append((f"[{name}](#{name.lower()})", bases, str(int(exit_code(cls("")))), cell(first(cls))))
    parts.append(table(("error", "bases", "exit code", "raised when"), rows))
    for name in raised.__all__:
        cls = getattr(raised, name)
        parts.append(f"## {name}\n\n{(inspect.getdoc(cls) or '').replace('``', '`')}\n")
        own = [key for key in vars(cls("")) if key != "message"]
        if own:
            parts.append("Attributes: " + ", ".join(code(key) for key in own) + ".\n")
    return "\n".join(parts)


def first(cls: type[Any]) -> str:
    """The first paragraph of a docstring."""
    return (inspect.getdoc(cls) or "").partition("\n\n")[0].replace("``", "`")
