"""The rows of the comparison, and how each broker does the same work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from peers.servers import Durability

__all__ = ["ROWS", "Entry", "Row"]

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Entry:
    """How one competitor does the work of a row."""

    program: str
    """`load`, or a module of `clients`."""
    work: str
    """First argument of a client, or the protocol of `load`."""
    server: str | None
    """The broker; `None`: the work needs none."""
    addresses: tuple[str, ...] = ()
    """Protocols whose addresses the program gets."""
    prepare: str | None = None
    """Work of this broker's client that comes first."""
    count: int = 0
    """Messages of a run that has a fixed number of them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement."""

    name: str
    title: str
    unit: str
    value: str
    """The value of the program's output that counts."""
    better: Better
    durability: Durability
    entries: Mapping[str, Entry]
    """By competitor. mqcore comes first."""
    load: tuple[str, ...] = ()
    """Work and numbers of `load`."""
    others: tuple[str, ...] = field(default=())
    """Other values of the output that the report lists."""
    is_pinned: bool = True
    """Whether server and program run on processors of their own."""


def _generated(*servers: str, prepare: str | None = None) -> dict[str, Entry]:
    protocols = {"mqcore": "tmqp", "redis": "redis", "nats": "nats", "rabbitmq": "amqp", "mosquitto": "mqtt"}
    # Brokers whose queues need not be created have no such work.
    prepared = {"prepare-broadcast": {"mqcore", "rabbitmq"}, "prepare-fsync": {"mqcore", "nats", "rabbitmq"}}
    return {
        server: Entry(
            "load",
            protocols[server],
            server,
            (protocols[server],),
            prepare if prepare is not None and server in prepared[prepare] else None,
        )
        for server in servers
    }


def _clients(work: str, count: int = 0) -> dict[str, Entry]:
    protocols = {"mqcore": "tmqp", "nats": "nats", "redis": "redis", "rabbitmq": "amqp"}
    return {
        server: Entry(f"{server}_client", work, server, (protocol,), count=count)
        for server, protocol in protocols.items()
    }


def _imports(**modules: str) -> dict[str, Entry]:
    return {name: Entry("startup", module, None, count=10) for name, module in modules.items()}


_EVERYBODY = ("mqcore", "redis", "nats", "rabbitmq", "mosquitto")
_SAVING = ("mqcore", "redis", "nats", "rabbitmq")

ROWS: Mapping[str, Row] = {
    row.name: row
    for row in (
        Row(
            "publish-unconfirmed",
            "Python: await publish without confirmation, in a loop",
            "messages/s",
            "rate",
            "higher",
            "memory",
            _clients("publish-unconfirmed"),
        ),
        Row(
            "publish-confirmed",
            "Python: await a confirmed publish, one at a time",
            "us, p50",
            "p50",
            "lower",
            "memory",
            _clients("publish-confirmed"),
            others=("p99",),
        ),
        Row(
            "publish-gather",
            "Python: 1,000 confirmed publishes by gather",
            "messages/s",
            "rate",
            "higher",
            "memory",
            _clients("publish-gather"),
        ),
        Row(
            "consume-ack",
            "Python: consume, and acknowledge each message",
            "messages/s",
            "rate",
            "higher",
            "memory",
            _clients("consume-ack", count=50_000),
        ),
        Row(
            "request-response",
            "Python to Python: request and response, one at a time",
            "us, p50",
            "p50",
            "lower",
            "memory",
            _clients("request-response"),
            others=("p99",),
        ),
        Row(
            "broadcast-1-1",
            "One producer, one consumer, 1 KiB",
            "deliveries/s",
            "rate",
            "higher",
            "memory",
            _generated(*_EVERYBODY, prepare="prepare-broadcast"),
            load=("broadcast", "consumers=1", "body=1024"),
        ),
        Row(
            "broadcast-1-10",
            "One producer, ten consumers, 1 KiB",
            "deliveries/s",
            "rate",
            "higher",
            "memory",
            _generated(*_EVERYBODY, prepare="prepare-broadcast"),
            load=("broadcast", "consumers=10", "body=1024"),
        ),
        Row(
            "latency",
            "Age of a message at 20,000/s, open loop",
            "us, p99",
            "p99",
            "lower",
            "memory",
            _generated(*_EVERYBODY, prepare="prepare-broadcast"),
            load=("latency", "rate=20000"),
            others=("p50", "p999", "max"),
        ),
        Row(
            "fsync-512",
            "Saved before confirmed: one producer, window 512",
            "messages/s",
            "rate",
            "higher",
            "fsync",
            _generated(*_SAVING, prepare="prepare-fsync"),
            load=("confirmed", "producers=1", "window=512"),
        ),
        Row(
            "fsync-64x8",
            "Saved before confirmed: 64 producers, window 8",
            "messages/s",
            "rate",
            "higher",
            "fsync",
            _generated(*_SAVING, prepare="prepare-fsync"),
            load=("confirmed", "producers=64", "window=8"),
        ),
        Row(
            "counter-50",
            "Counter on 50 connections, no pipeline: Throttr UPDATE, Redis INCR",
            "requests/s",
            "rate",
            "higher",
            "memory",
            {
                "mqcore": Entry("load", "throttr", "mqcore", ("throttr",)),
                "redis": Entry("load", "redis", "redis", ("redis",)),
            },
            load=("counter", "connections=50", "pipeline=1"),
        ),
        Row(
            "jobs",
            "Jobs that do nothing, enqueued to result, worker of 4 processes",
            "jobs/s",
            "rate",
            "higher",
            "memory",
            {
                "mqcore": Entry("mqcore_jobs", "jobs", "mqcore", ("emqp", "emqp-frontend"), count=20_000),
                "celery": Entry("celery_jobs", "jobs", "redis", ("redis",), count=4_000),
                "dramatiq": Entry("dramatiq_jobs", "jobs", "redis", ("redis",), count=4_000),
                "taskiq": Entry("taskiq_jobs", "jobs", "redis", ("redis",), count=4_000),
            },
            is_pinned=False,
        ),
        Row(
            "import",
            "Import of what connects a client",
            "ms",
            "milliseconds",
            "lower",
            "memory",
            # With an attribute, because some packages import their modules when they are used.
            _imports(
                mqcore="mqcore:connect", nats="nats:connect", redis="redis.asyncio:Redis", rabbitmq="aio_pika:connect"
            ),
        ),
        Row(
            "import-jobs",
            "Import of what declares jobs",
            "ms",
            "milliseconds",
            "lower",
            "memory",
            _imports(
                mqcore="mqcore.jobs:Jobs",
                celery="celery:Celery",
                dramatiq="dramatiq:actor",
                taskiq="taskiq:AsyncBroker",
            ),
        ),
        Row(
            "version",
            "Run `mqcore version`, including the interpreter",
            "ms",
            "milliseconds",
            "lower",
            "memory",
            {"mqcore": Entry("startup", "-m mqcore version", None, count=10)},
        ),
    )
}
"""All rows by name."""
