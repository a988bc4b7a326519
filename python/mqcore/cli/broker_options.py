"""The options of `mqcore serve`, and the settings of the broker that they make."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from mqcore.cli import options

__all__ = [
    "DEFAULT_LISTENERS",
    "FLAG_NAMES",
    "PROCESS_OPTIONS",
    "broker_environment",
    "serve_options",
    "settings_of",
]

_F = TypeVar("_F", bound=Callable[..., Any])

# Listeners of a broker that is configured without any: one per protocol.
DEFAULT_LISTENERS: Final = (
    "tmqp://127.0.0.1:2622",
    "throttr://127.0.0.1:9000?value=uint16",
    "mqks://127.0.0.1:25000",
    "mm2://127.0.0.1:2623",
    "emqp://127.0.0.1:47290",
)

# Environment variables of the program; the broker's configuration would reject them as unknown settings.
_PROGRAM_VARIABLES: Final = frozenset(
    {
        "MQCORE_APP",
        "MQCORE_CONFIG",
        "MQCORE_CONTEXT",
        "MQCORE_DEBUG",
        "MQCORE_DRAIN_TIMEOUT",
        "MQCORE_LOG_FORMAT",
        "MQCORE_TOKEN",
        "MQCORE_URL",
    }
)

FLAG_NAMES: Final[Mapping[tuple[str | int, ...], str]] = {
    ("listen",): "--listen",
    ("admin",): "--admin",
    ("tls", "cert"): "--tls-cert",
    ("tls", "key"): "--tls-key",
    ("tls", "client_ca"): "--tls-client-ca",
    ("tls", "client_cert"): "--tls-client-cert",
    ("data_dir",): "--data-dir",
    ("history",): "--history",
    ("otel",): "--otel",
    ("memory_watermark",): "--memory-watermark",
    ("unsaved_memory_max",): "--unsaved-memory-max",
    ("topic_patterns_max",): "--topic-patterns-max",
    ("node", "name"): "--node-name",
    ("node", "upstreams"): "--upstream",
    ("node", "keep_messages"): "--keep-messages",
    ("auto_create_channels",): "--auto-create",
    ("auto_create_queues",): "--auto-create",
}
"""The option that sets each field of `BrokerConfig`."""

PROCESS_OPTIONS: Final = {"app": "--app", "log_format": "--log-format", "drain_timeout": "--drain-timeout"}
"""Options of the process that runs the broker, which no file has."""

_OPTIONS: Final = (
    click.option("--listen", "listen", multiple=True, metavar="URL", help="Listen for clients here. Repeatable."),
    click.option("--admin", metavar="URL", help="Serve health, metrics and the admin API here."),
    click.option("--tls-cert", metavar="FILE", help="Certificate chain of TLS listeners (tmqps://), in PEM."),
    click.option(
        "--tls-key", metavar="FILE", help="Private key of the certificate, in PEM. [default: the --tls-cert file]"
    ),
    click.option(
        "--tls-client-ca",
        metavar="FILE",
        help="CA certificates for client certificates, in PEM. Clients are asked for a certificate.",
    ),
    click.option(
        "--tls-client-cert",
        type=click.Choice(["required", "optional"]),
        help="Require a client certificate, or accept clients without one. [default: required]",
    ),
    click.option(
        "--data-dir",
        metavar="DIR",
        help="Directory for definitions and saved messages. [default: none; everything stays in memory]",
    ),
    click.option(
        "--history", is_flag=True, help="Record every lifecycle event of every message in the data directory."
    ),
    click.option(
        "--otel",
        is_flag=True,
        help="Export spans, metrics and logs with OpenTelemetry; OTEL_* variables configure it.",
    ),
    click.option(
        "--memory-watermark",
        type=click.IntRange(min=0),
        metavar="BYTES",
        help="Maximum bytes of saved messages in memory; the broker reads others from disk. [default: 256 MiB]",
    ),
    click.option(
        "--unsaved-memory-max",
        type=click.IntRange(min=0),
        metavar="BYTES",
        help="Maximum bytes of messages that are only in memory; 0: no limit. "
        "[default: a third of the available memory]",
    ),
    click.option(
        "--topic-patterns-max",
        type=click.IntRange(min=1),
        metavar="COUNT",
        help="Maximum patterns of topics that one connection subscribes to. [default: 1024]",
    ),
    click.option("--node-name", metavar="NAME", help="Name of this broker among its nodes."),
    click.option(
        "--upstream",
        "upstreams",
        multiple=True,
        metavar="URL",
        help="Forward messages from clients to this upstream broker, tmqp://HOST:PORT?token=TOKEN. Repeatable.",
    ),
    click.option(
        "--keep-messages", is_flag=True, help="Save messages for an unreachable upstream in the data directory."
    ),
    click.option("--auto-create", is_flag=True, help="Create missing channels and queues on publish and join."),
    click.option(
        "--config",
        "config_file",
        metavar="FILE",
        envvar="MQCORE_CONFIG",
        type=click.Path(dir_okay=False),
        help="TOML file with settings. Options override MQCORE_* variables, which override the file.",
    ),
    click.option(
        "--app",
        metavar="MODULE:ATTR",
        envvar="MQCORE_APP",
        help="Broker, Authority, or mapping by key of delivery handlers, event handlers, authenticators and an "
        "Authority.",
    ),
    options.log_format,
    click.option(
        "--drain-timeout",
        type=options.DURATION,
        default="10s",
        show_default=True,
        envvar="MQCORE_DRAIN_TIMEOUT",
        help="Time to finish in-flight work at shutdown.",
    ),
)


def serve_options(command: _F) -> _F:
    """Add the options. The command gets `config_file` and the `PROCESS_OPTIONS`, and the others for `settings_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the options of the command line make, without those that were not given."""
    tls = {name: given[f"tls_{name}"] for name in ("cert", "key", "client_ca", "client_cert")}
    node = {
        "name": given["node_name"],
        "upstreams": given["upstreams"] or None,
        "keep_messages": given["keep_messages"] or None,
    }
    flags = {
        "listen": given["listen"] or None,
        "admin": given["admin"],
        "tls": _given(tls) or None,
        "data_dir": given["data_dir"],
        "memory_watermark": given["memory_watermark"],
        "unsaved_memory_max": given["unsaved_memory_max"],
        "topic_patterns_max": given["topic_patterns_max"],
        "history": given["history"] or None,
        "otel": given["otel"] or None,
        "auto_create_channels": given["auto_create"] or None,
        "auto_create_queues": given["auto_create"] or None,
        "node": _given(node) or None,
    }
    return _given(flags)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def broker_environment() -> dict[str, str]:
    """Return the environment without the variables of the program."""
    return {name: value for name, value in os.environ.items() if name not in _PROGRAM_VARIABLES}
