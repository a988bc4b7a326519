"""The configuration of a broker, and the files and variables that it is read from."""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

from mqcore.config.authority import AuthorityOptions, TokenOptions, UserOptions
from mqcore.config.cluster import ClusterConfig
from mqcore.config.convert import Key, build, check, keys
from mqcore.config.duration import Duration
from mqcore.config.nodes import NodeConfig
from mqcore.config.queues import ChannelDeclaration, ChannelOptions, QueueDeclaration
from mqcore.config.routing import RouterOptions
from mqcore.errors import ConfigError
from mqcore.tls import Listener, ListenerTLS

__all__ = ["BrokerConfig", "Layer", "check_names", "document_keys", "layers", "read_document"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """All settings of a broker."""

    file_names: ClassVar = ("channel_defaults", "queue", "router", "upstream")
    """Names of settings that only files and the environment have."""

    listen: tuple[str, ...] = ()
    """URLs to listen on, such as ``tmqp://127.0.0.1:2622``. Port 0 picks a free port. Default none."""
    admin: str | None = None
    """URL of the admin side, ``http://127.0.0.1:2627`` or ``https://``. Default none."""
    listener: tuple[Listener, ...] = ()
    """Further listeners, each with TLS of its own: ``[[listener]]`` in a file. Default none."""
    tls: ListenerTLS | None = None
    """Certificate and key of TLS listeners that name no files themselves. Default none: such a listener is an error."""
    tls_handshakes_max: int = 1024
    """Maximum number of concurrent TLS handshakes. Beyond it the broker drops the oldest. Default 1,024."""
    tls_expiry_warning: Duration = timedelta(days=30)
    """Time before the expiry of a certificate when the broker starts to log warnings. Default 30 days."""
    data_dir: str | None = None
    """Directory for definitions and saved messages, created if missing. Default none: everything stays in memory,
    and queues whose policy saves reject messages."""
    history: bool = False
    """Whether the data directory records every lifecycle event of every message. Default no."""
    history_bodies: bool = True
    """Whether the history keeps message bodies, and not only their sizes. Default yes."""
    cluster: ClusterConfig | None = None
    """This broker is a node of a cluster, which `data_dir` belongs to. Only for ``mqcore serve``. Default none."""
    node: NodeConfig | None = None
    """Links to other brokers. Default none."""
    history_max_age: Duration = 0.0
    """How long the journal keeps history that is not archived; 0: forever. Default 0."""
    history_max_bytes: int = 2 * 1024 * 1024 * 1024
    """Maximum bytes of history in the journal; the oldest is removed first. Default 2 GiB."""
    archive: bool = True
    """Whether history is moved to Parquet files in the directory ``archive`` of the data directory. Default yes."""
    archive_interval: Duration = 300.0
    """Maximum age of history before it is archived, however little it is. Default 5 minutes."""
    archive_max_age: Duration = 0.0
    """How long the archive keeps a file, counted from its latest row; 0: forever. Default 0."""
    archive_max_bytes: int = 0
    """Maximum bytes of the archive; the oldest files are removed first; 0: no limit. Default 0."""
    archive_url: str | None = None
    """Object storage for the archive instead of the data directory, as Iceberg tables below this URL: ``s3://``, ``s3a://``,
    ``gs://``, ``az://``, ``abfss://`` or ``file:///``. Each broker needs its own prefix. Default none."""
    archive_options: tuple[str, ...] = ()
    """Settings of the object store and of the tables' catalog as ``name=value``, such as
    ``aws_endpoint_url=http://127.0.0.1:9000`` or ``catalog=https://catalog.example.com``. They override environment
    variables such as ``AWS_ENDPOINT_URL``; keep credentials in the environment. Default none."""
    archive_partitions: int = 2
    """Number of partitions of each day on object storage, into which queues are hashed. Only new tables use it.
    Default 2."""
    archive_file_bytes: int = 128 * 1024 * 1024
    """Size in bytes of the files into which small files on object storage are merged. Default 128 MiB."""
    archive_compact_after: Duration = 900.0
    """Time after which small files on object storage are merged even if there are few. Default 15 minutes."""
    archive_snapshot_max_age: Duration = 86_400.0
    """How long snapshots of the tables on object storage stay available to readers. Default 1 day."""
    backup_url: str | None = None
    """Object storage for the continuous backup, below this URL: ``s3://``, ``s3a://``, ``gs://``, ``az://``,
    ``abfss://`` or ``file:///``. ``mqcore restore URL/`` restores any moment of it. Each broker needs its own prefix.
    Default none."""
    backup_options: tuple[str, ...] = ()
    """Settings of this object store as ``name=value``, as for `archive_options`. Default none."""
    backup_interval: Duration = 10.0
    """Time between two restore points, at least 1 s: a lost machine loses what it confirmed in this time. Default
    10 s."""
    backup_keep: Duration = timedelta(days=7)
    """How far back moments can be restored. Default 7 days."""
    otel: bool = False
    """Whether the broker exports spans, metrics and log records with OpenTelemetry. Needs ``pip install mqcore[otel]``.
    The variables ``OTEL_*`` say where to. Default no."""
    mask_fields: tuple[str, ...] = ()
    """Names of headers and of members of JSON bodies whose values the admin side hides, such as ``*password*``. Upper
    and lower case are the same, and ``*`` stands for any text. Default none."""
    mask_bodies: tuple[str, ...] = ()
    """Queues whose bodies the admin side hides, such as ``payments/*``. Default none."""
    allow_remote: bool = False
    """Whether the broker may listen on addresses other than loopback without a login. Default no. It has no effect
    once there is a user, a token or an authenticator."""
    shards: int = 0
    """Number of shards, which work in parallel, at most 16; 0: one for each core. Default 0."""
    channel: ChannelOptions = field(default_factory=ChannelOptions)
    """Default options of channels and their queues: ``[channel_defaults]`` in a file, or ``[channel]``."""
    channels: tuple[ChannelDeclaration, ...] = ()
    """Channels that exist from the start, each a table ``[[channel]]``. Default none."""
    queues: tuple[QueueDeclaration, ...] = ()
    """Queues that exist from the start, each a table ``[[queue]]``. Default none."""
    auto_create_channels: bool = False
    """Publishing to, or joining, a missing channel creates it. Default no."""
    auto_create_queues: bool = False
    """Publishing to a missing queue creates it. Default no."""
    client_limit: int = 0
    """Maximum number of clients; 0: limited by `connections_max` only. Default 0."""
    channel_limit: int = 0
    """Maximum number of channels of one shard; 0: no limit. Default 0."""
    delivery_handler: str = "memory"
    """The handler or policy of queues whose channel names none. Default ``memory``."""
    event_handler: str | None = None
    """Key of the event handler that receives events of all channels, besides that of the channel. Default none."""
    frame_bytes_max: int = 64 * 1024 * 1024
    """Maximum size of a frame in bytes. Default 64 MiB."""
    header_bytes_max: int = 65_535
    """Maximum size of the header text of a frame in bytes. Default 65,535."""
    connections_max: int = 65_536
    """Maximum number of connections of all listeners together. Default 65,536."""
    half_open_max: int = 16_384
    """Maximum number of connections that have not finished the handshake. Default 16,384."""
    login_bytes_max: int = 64 * 1024
    """Maximum bytes of a login: of input before the broker accepts a peer that has to log in. Protocols with a smaller
    limit for their handshake keep it. Default 64 KiB."""
    half_open_bytes_max: int = 64 * 1024 * 1024
    """Maximum bytes of unfinished input of all connections without a login. Beyond it, the broker closes the connection
    whose input has waited longest. Default 64 MiB."""
    unfinished_bytes_max: int = 1 << 30
    """Maximum bytes of unfinished frames and messages of all clients, counting those from 32 KiB on. Beyond it, or
    beyond a quarter of the memory that the process may use, the broker disconnects the client whose input has waited
    longest. Default 1 GiB."""
    output_bytes_max: int = 8 * 1024 * 1024
    """Maximum bytes waiting to be written to one connection. Default 8 MiB."""
    slow_consumer_timeout: Duration = 30.0
    """How long a consumer may stall before the broker disconnects it. Default 30 s."""
    handshake_timeout: Duration = 10.0
    """Longest TLS handshake, and again longest handshake of the protocol. Default 10 s."""
    ping_interval: Duration = 60.0
    """Silence of a peer after which the broker sends a ping. Default 60 s."""
    pong_timeout: Duration = 10.0
    """Longest wait for anything after a ping. Then the broker disconnects the peer. Default 10 s."""
    undecided_max: int = 100_000
    """Maximum number of messages of one queue that wait for a handler's decision. Default 100,000."""
    topic_subscriptions_max: int = 16_384
    """Maximum number of topics that one connection subscribes to by name, on each shard. Default 16,384."""
    topic_patterns_max: int = 1_024
    """Maximum number of patterns of topics that one connection subscribes to. Default 1,024."""
    topic_patterns_per_user_max: int = 65_536
    """Maximum number of patterns of topics that all connections of one user or token subscribe to. Default 65,536."""
    channels_per_user_max: int = 16_384
    """Maximum number of existing channels that one user or token, or one connection without a login, has created since
    the broker started. Declarations of the configuration and the program do not count. Default 16,384."""
    queues_per_user_max: int = 16_384
    """The same for queues. Default 16,384."""
    publish_limit: str | None = None
    """Publish rate of one client, ``"1000/s"`` or ``"6000/1m"``. The broker rejects what exceeds it and tells the
    client when to retry. Default no limit."""
    connect_limit: str | None = None
    """Rate of connects and logins of one address, such as ``"10/s"``. Default no limit."""
    limiter_keys_max: int = 1 << 24
    """Maximum number of counters and buffers of the limiter. A further one replaces the one that expires soonest.
    Default 16,777,216."""
    limiter_keys_per_user_max: int = 1 << 23
    """Maximum number of existing counters and buffers that one user or token, or one connection without a login, has
    created. The broker rejects more. Default 8,388,608."""
    limiter_bytes_max: int = 2 << 30
    """Maximum bytes of counters and buffers: 120 for each, plus keys above 16 bytes and values. Default 2 GiB."""
    limiter_persist_interval: Duration = 0.1
    """Longest delay before changes of Throttr listeners with ``?persist=on`` are written to the data directory. A crash
    loses no more than that. Default 100 ms."""
    routers: tuple[RouterOptions, ...] = ()
    """Routers that the broker creates at its start. They replace saved routers of the same names. In a file,
    ``[[router]]`` and ``[[router.binding]]``. Default none."""
    memory_watermark: int = 256 * 1024 * 1024
    """Bytes of saved messages in memory above which the broker pages out bodies far from delivery. It reads them back
    from the data directory before they are needed. Default 256 MiB."""
    unsaved_memory_max: int | None = None
    """Maximum bytes of messages that are only in memory; 0: no limit. Above it, the broker rejects messages of queues
    that do not save. Default: a third of the memory that the process may use, also in a container."""
    unsaved_memory_per_user_max: int = 0
    """Maximum bytes of messages of one user or token that are only in memory; 0: no limit besides
    `unsaved_memory_max`. Default 0."""

    authority: AuthorityOptions = field(default_factory=AuthorityOptions)
    """Settings of authorization beside users and tokens."""
    user: tuple[UserOptions, ...] = ()
    """Users, each a table ``[[user]]``. Default none."""
    token: tuple[TokenOptions, ...] = ()
    """Tokens, each a table ``[[token]]``. Default none."""

    def __post_init__(self) -> None:
        check(self)

    def _traces(self) -> bool:
        """Return whether the core is to make spans."""
        from mqcore.otel.environment import wants

        return self.otel and wants("TRACES")

    def _authority(self) -> str:
        """Return what the core wants to know about users and tokens, as JSON."""
        return json.dumps(
            {
                "users": [
                    {
                        "name": user.name,
                        "password": user.password_hash,
                        "certificate": user.certificate,
                        "allow": user.allow,
                        "restrict": _restrictions(user),
                    }
                    for user in self.user
                ],
                "tokens": [
                    {
                        "id": token.id,
                        "name": token.name,
                        "hash": token.hash,
                        "allow": token.allow,
                        "expires_ms": token.expires_ms,
                        "restrict": _restrictions(token),
                    }
                    for token in self.token
                ],
                **dataclasses.asdict(self.authority),
            }
        )

    @classmethod
    def load(
        cls,
        file: str | os.PathLike[str] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        **flags: Any,
    ) -> Self:
        """Read the configuration: `flags`, then ``MQCORE_*`` of `environ`, then `file` (TOML), then defaults.

        Keys are the fields' names; tables and double underscores lead to the inner options:
        ``[channel_defaults.queue]`` with ``status = "push"``, or ``MQCORE_CHANNEL_DEFAULTS__QUEUE__STATUS=push``.
        ``[channel]`` means the same, and a list ``[[channel]]`` means channels to create. Flags that are ``None``
        were not given. `environ` is ``os.environ`` unless said otherwise. Raises `ConfigError` for unknown keys and
        wrong values.
        """
        merged: dict[str, Any] = {}
        for layer in layers(file, os.environ if environ is None else environ, flags):
            _merge(merged, layer.settings)
        loaded: Self = build(cls, merged, "")
        return loaded

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read the content of a configuration file. Raises `ConfigError`."""
        loaded: Self = build(cls, _named(document), "")
        return loaded


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings of one origin."""

    kind: Literal["file", "environment", "flag"]
    settings: Mapping[str, Any]
    """By the names of the fields of `BrokerConfig`."""
    document: Mapping[str, Any]
    """The same as it was written."""


def layers(
    file: str | os.PathLike[str] | None, environ: Mapping[str, str], flags: Mapping[str, Any]
) -> tuple[Layer, ...]:
    """Read all settings; a later layer overrides an earlier one. Raises `ConfigError` for a file that is not TOML."""
    found = []
    if file is not None:
        document = read_document(Path(file))
        found.append(Layer("file", _named(document), document))
    variables = _from_environ(environ)
    given = {name: value for name, value in flags.items() if value is not None}
    return (*found, Layer("environment", _named(variables), variables), Layer("flag", given, given))


_DECLARED: Final = {"channel": "channels", "queue": "queues"}


def document_keys(document: Mapping[str, Any]) -> dict[str, Key]:
    """Return the keys of a configuration file. `channel` has the type that its value in `document` asks for."""
    known = dict(keys(BrokerConfig))
    known |= {"channel_defaults": known["channel"], "queue": known["queues"], "upstream": keys(NodeConfig)["upstreams"]}
    if isinstance(document.get("channel"), list):
        known["channel"] = known["channels"]
    return known


def check_names(document: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if two tables of a file mean the same, or one has the form of another."""
    _named(document)


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Give tables the names of the fields: a list ``channel`` declares channels, a table has their defaults."""
    named: dict[str, Any] = {}
    upstreams: Any = None
    for key, value in settings.items():
        if key == "upstream":
            # A table of its own, as `[[upstream]]` reads better than `[[node.upstreams]]`.
            upstreams = value
            continue
        if isinstance(value, list) and key in _DECLARED:
            field_name = _DECLARED[key]
        elif key == "queue":
            raise ConfigError(
                "'queue' is a list: write [[queue]] with a name for each queue, and defaults of all queues in "
                "[channel_defaults.queue]"
            )
        else:
            field_name = "channel" if key == "channel_defaults" else key
        if field_name in named:
            alias = next((name for name, field in _DECLARED.items() if field == field_name), field_name)
            given = "[channel] and [channel_defaults]" if field_name == "channel" else f"{alias} and {field_name}"
            raise ConfigError(f"{given} mean the same; write one of them")
        named[field_name] = value
    if upstreams is not None:
        node = named.get("node", {})
        if isinstance(node, Mapping) and "upstreams" in node:
            raise ConfigError("upstream and node.upstreams mean the same; write one of them")
        if isinstance(node, Mapping):
            named["node"] = {**node, "upstreams": upstreams}
    return named


def _restrictions(options: UserOptions | TokenOptions) -> dict[str, tuple[str, ...]]:
    return {
        "client_ids": options.client_ids,
        "client_names": options.client_names,
        "client_types": options.client_types,
        "addresses": options.addresses,
    }


# Variables with the prefix that are not settings of a broker but of the command line.
_COMMAND_LINE: Final = frozenset(
    {
        "APP",
        "CONFIG",
        "CONTEXT",
        "DEBUG",
        "DRAIN_TIMEOUT",
        "LOG_FORMAT",
        "LIMIT_URL",
        "JOBS_URL",
        "LOG_LEVEL",
        "PASSWORD",
        "TIMEOUT",
        "TOKEN",
        "URL",
        "USER",
    }
)


def read_document(path: Path) -> dict[str, Any]:
    """Read a TOML file. Raises `ConfigError`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: invalid TOML: {error}") from error


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for variable, value in environ.items():
        name = variable.removeprefix("MQCORE_")
        if name == variable or name in _COMMAND_LINE:
            continue
        *tables, key = name.lower().split("__")
        place = settings
        for table in tables:
            place = place.setdefault(table, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{variable} sets a part of {table}, and another variable sets all of it; unset one")
        if isinstance(place.get(key), dict):
            raise ConfigError(f"{variable} sets all of {key}, and another variable sets a part of it; unset one")
        place[key] = value
    return settings


def _merge(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        inner = below.get(key)
        if isinstance(inner, dict) and isinstance(value, Mapping):
            _merge(inner, value)
        else:
            below[key] = dict(value) if isinstance(value, Mapping) else value
