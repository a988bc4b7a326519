"""Requests to the admin side of a broker over HTTP.

::

    for failed in errors("http://127.0.0.1:2627"):
        print(failed.at, failed.request, failed.why)
"""

from __future__ import annotations

import base64
import urllib.parse
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mqcore._admin_changes import (
    MoveResult,
    cancel_job,
    clear,
    discard,
    disconnect,
    drain,
    move,
    remove_queue,
    set_status,
)
from mqcore._admin_cluster import ClusterNode, ClusterState, cluster
from mqcore._admin_pages import (
    JobQueueState,
    JobsState,
    LimitPage,
    LimitState,
    RunningJob,
    ScheduleInfo,
    ScheduleList,
    WorkerState,
    dead_letter_queue,
    jobs,
    limits,
    remove_limit,
    route,
    schedules,
    set_limit,
    unschedule,
)
from mqcore._admin_policies import Policy, PolicyResult, policies, remove_policy, set_policy
from mqcore._admin_stacks import HandlerStack, StackFrame, ThreadStack, handler_stack
from mqcore._admin_users import (
    CredentialRestrictions,
    NewToken,
    TokenState,
    UserState,
    add_user,
    create_token,
    remove_user,
    revoke_token,
    set_password,
    tokens,
    users,
)
from mqcore._http import DEFAULT_URL, REFUSALS, AdminClient, query, queue_path, reading
from mqcore.config import Duration
from mqcore.notebook import Tabular

if TYPE_CHECKING:
    from mqcore.tls import TLSConfig

__all__ = [
    "DEFAULT_URL",
    "Attention",
    "ClusterNode",
    "ClusterState",
    "CredentialRestrictions",
    "FailedRequest",
    "Finding",
    "HandlerStack",
    "JobQueueState",
    "JobsState",
    "LimitPage",
    "LimitState",
    "MessageLocation",
    "MoveResult",
    "NewToken",
    "PeekedMessage",
    "Policy",
    "PolicyResult",
    "QueuePage",
    "QueueRates",
    "QueueState",
    "RunningJob",
    "ScheduleInfo",
    "ScheduleList",
    "StackFrame",
    "ThreadStack",
    "TokenState",
    "Trace",
    "TraceStep",
    "TracedClient",
    "UserState",
    "WorkerState",
    "add_user",
    "attention",
    "cancel_job",
    "clear",
    "cluster",
    "create_token",
    "dead_letter_queue",
    "discard",
    "disconnect",
    "drain",
    "errors",
    "handler_stack",
    "jobs",
    "limits",
    "move",
    "peek",
    "policies",
    "queues",
    "remove_limit",
    "remove_policy",
    "remove_queue",
    "remove_user",
    "revoke_token",
    "route",
    "schedules",
    "set_limit",
    "set_password",
    "set_policy",
    "set_status",
    "tokens",
    "trace",
    "unschedule",
    "users",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRequest:
    """A failed request whose client received only an error number."""

    id: str
    """The error number: 20 digits of the time in UTC, and four characters."""
    request: str
    """The request's id as the client wrote it. Bytes other than printable ASCII are escaped."""
    why: str
    """The error and how to fix it."""
    at_ms: int
    """Time in Unix milliseconds."""
    client: str
    """The client's id."""
    connection: int
    """The number of its connection."""
    protocol: str
    """Its protocol: ``mqks``."""

    @property
    def at(self) -> datetime:
        """The time in UTC."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)


def errors(
    url: str = DEFAULT_URL,
    *,
    limit: int = 100,
    token: str | None = None,
    timeout: Duration = 15.0,
    tls: TLSConfig | None = None,
) -> tuple[FailedRequest, ...]:
    """Return the last failed requests of the broker with this admin side, the latest first.

    A broker keeps the last 1,000. `token` belongs to an administrator, if the broker has users. `timeout` is the
    longest time to connect and the longest silence. `tls` is the trust for
    ``https://``; default: the authorities of the system.

    Raises `ConfigError` for another URL, `ConnectFailed` if the broker does not answer, `Unauthorized`, `Busy` if it is
    overloaded, `ConnectionLost` while it stops, and `BadAnswer` if the answer is not that of a broker of this version.
    """
    content = AdminClient(url, token=token, timeout=timeout, tls=tls).ask("GET", f"/errors?limit={limit:d}")
    with reading("its errors", url):
        return tuple(FailedRequest(**failed) for failed in content["errors"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that needs an operator's attention."""

    kind: str
    """``records-lost``, ``disk-full``, ``blocked-handler``, ``missing-handler``, ``failing-handler``,
    ``no-consumer``, ``slow-consumer``, ``dead-letters``, ``limit-reached``, ``paused-queue``, ``node-down``,
    ``clock-jump``, ``archive-lag``, ``backup-lag``, ``certificate-expiry``, ``cluster-node-down``,
    ``cluster-node-failing``, ``cluster-no-vote``, ``cluster-lag``, ``cluster-slow-sync``, ``cluster-clock`` or
    ``cluster-versions``."""
    severity: str
    """``critical``: messages can be lost or are not accepted, or code hangs; ``warning``: messages wait or are
    rejected; ``info``: an operator chose it, and may have forgotten it."""
    subject: str
    """The object with the problem, such as ``queue orders/1001``."""
    cause: str
    """The problem, with numbers."""
    remedy: str
    """The action that solves it."""
    since_ms: int
    """Since when it holds, in Unix milliseconds."""

    @property
    def since(self) -> datetime:
        """Since when it holds, in UTC."""
        return datetime.fromtimestamp(self.since_ms / 1000, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The health of a broker, and what needs attention."""

    status: str
    """The worst severity: ``critical``, ``warning`` or ``healthy``; ``starting`` before the first check."""
    summary: str
    """One sentence about the worst finding."""
    checked_at_ms: int
    """When the broker last checked, in Unix milliseconds. It does so every one to five seconds."""
    total: int
    """Number of all findings."""
    counts: dict[str, int]
    """Number of findings of each kind that occurs."""
    findings: tuple[Finding, ...]
    """Up to `limit` of them, the worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRates:
    """How fast a queue moved during the last two to seven seconds, in messages per second."""

    received: float
    """Accepted from producers."""
    delivered: float
    """Deliveries to consumers."""
    settled: float
    """Acknowledgements, positive and negative, and acknowledgement timeouts."""
    growth: float
    """Change of the number of waiting messages; negative while it shrinks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """A queue at one moment."""

    queue: str
    """Its address, ``channel/id``."""
    status: str
    """Its delivery mode: ``push``, ``roundrobin``, ``paused``, ..."""
    delivery_handler: str | None
    """The key of its delivery handler; ``None``: the broker's default."""
    missing_handler: str | None
    """The key, if no handler is registered under it."""
    dead_letter: str | None
    """The queue of its dead letters, or ``drop``; ``None``: the dead-letter queue of its channel, ``CHANNEL/65535``."""
    ready: int
    """Messages that could be delivered now."""
    delayed: int
    """Messages that wait for the time of their next delivery."""
    in_flight: int
    """Deliveries that are not settled."""
    undecided: int
    """Messages that wait for a handler to decide whether the queue takes them."""
    consumers: int
    """Clients that joined the channel for this queue, and subscriptions."""
    oldest_seconds: float | None
    """How long the oldest message next in turn has waited; ``None``: none waits, or its time is not in memory."""
    block: str | None
    """Why the next message is not delivered: ``no-consumers``, ``not-pulled``, ``paused``, ``missing-handler``,
    ``handler-busy``, ``awaits-acknowledgement``, ``prefetch-reached`` or ``consumers-congested``."""
    memory_bytes: int
    """Bytes of its messages in memory."""
    rates: QueueRates
    """How fast it moves."""
    messages: dict[str, Any]
    """Its counters since it was created or the broker started: ``received``, ``rejected``, ``deliveries``, ``acks``,
    ``negative_acks``, ``dead_lettered``, ``dropped`` by reason, and others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePage:
    """A part of a list of queues."""

    total: int
    """Number of all queues."""
    matched: int
    """Number of queues that match."""
    queues: tuple[QueueState, ...]
    """Up to `limit` of them from `offset` on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekedMessage(Tabular):
    """A message that waits in a queue. Looking at it does not change it."""

    id: str
    """Its id; empty if it has none."""
    producer: str
    """The id of the client that published it; empty if it is unknown."""
    received_ms: int
    """When the broker received it, in Unix milliseconds."""
    priority: int
    """Its priority: higher is sooner."""
    attempts: int
    """Deliveries so far."""
    put_backs: int
    """Requeues so far."""
    saved: bool
    """Whether it is durable."""
    headers: tuple[tuple[str, str], ...]
    """Its headers in order. A name may occur twice."""
    body: bytes | None
    """Its body, or the first `body_bytes` of it; ``None`` if the broker could not read it."""
    body_bytes: int
    """Length of the whole body in bytes."""

    @property
    def received(self) -> datetime:
        """When the broker received it, in UTC."""
        return datetime.fromtimestamp(self.received_ms / 1000, UTC)


def peek(
    url: str,
    queue: str,
    *,
    offset: int = 0,
    limit: int = 20,
    body_bytes: int = 4096,
    token: str | None = None,
    timeout: Duration = 15.0,
    tls: TLSConfig | None = None,
) -> tuple[PeekedMessage, ...]:
    """Return the next messages of a queue in the order of their delivery. They stay in the queue.

    `queue` is ``channel/id``. `limit` is at most 500, and `body_bytes`, the shown part of each body, at most 1 MiB.
    Messages that wait for the time of a delayed delivery are not among them. The other arguments and the exceptions
    are those of `errors`; a missing queue raises `NotFound`.

    ::

        for message in peek("http://127.0.0.1:2627", "orders/1001"):
            print(message.received, message.id, message.body)
    """
    path = f"{queue_path(queue)}/messages?" + query({"offset": offset, "limit": limit, "body_bytes": body_bytes})
    client = AdminClient(url, token=token, timeout=timeout, tls=tls)
    content = client.ask("GET", path, bytes_max=64 << 20, rejections=REFUSALS)
    with reading("messages", url):
        return tuple(_peeked(message) for message in content["messages"])


def _peeked(message: dict[str, Any]) -> PeekedMessage:
    body: bytes | None = None
    if "body" in message:
        body = message["body"].encode()
    elif "body_base64" in message:
        body = base64.b64decode(message["body_base64"])
    return PeekedMessage(
        id=message.get("id", ""),
        producer=message.get("producer", ""),
        received_ms=message.get("received_ms", 0),
        priority=message.get("priority", 0),
        attempts=message["attempts"],
        put_backs=message["put_backs"],
        saved=message["saved"],
        headers=tuple((name, value) for name, value in message.get("headers", ())),
        body=body,
        body_bytes=message.get("body_bytes", 0),
    )


def attention(
    url: str = DEFAULT_URL,
    *,
    limit: int = 100,
    token: str | None = None,
    timeout: Duration = 15.0,
    tls: TLSConfig | None = None,
) -> Attention:
    """Return what needs attention in the broker with this admin side: stuck queues, failing handlers, full disks.

    `limit` is at most 10,000. The other arguments and the exceptions are those of `errors`.

    ::

        for finding in attention().findings:
            print(finding.severity, finding.subject, finding.cause, finding.remedy, sep="\n")
    """
    content = AdminClient(url, token=token, timeout=timeout, tls=tls).ask("GET", f"/attention?limit={limit:d}")
    with reading("its findings", url):
        return Attention(
            status=content["status"],
            summary=content["summary"],
            checked_at_ms=content["checked_at_ms"],
            total=content["total"],
            counts=dict(content["counts"]),
            findings=tuple(Finding(**finding) for finding in content["findings"]),
        )


def queues(
    url: str = DEFAULT_URL,
    *,
    matching: str = "",
    sort: str = "name",
    reverse: bool = False,
    offset: int = 0,
    limit: int = 100,
    token: str | None = None,
    timeout: Duration = 15.0,
    tls: TLSConfig | None = None,
) -> QueuePage:
    """Return the contents and rates of queues of the broker with this admin side.

    `matching` is text that their addresses contain, in upper or lower case. `sort` is ``name``, or one of these, the
    largest first: ``ready``, ``delayed``, ``in_flight``, ``consumers``, ``oldest``, ``received``, ``delivered``,
    ``growth``, ``dead_lettered``. `reverse` turns the order around. `limit` is at most 10,000. The other arguments and
    the exceptions are those of `errors`; an unknown `sort` raises `BadRequest`.
    """
    parameters = {"filter": matching, "sort": sort, "reverse": int(reverse), "offset": offset, "limit": limit}
    path = "/queues?" + query(parameters)
    client = AdminClient(url, token=token, timeout=timeout, tls=tls)
    content = client.ask("GET", path, bytes_max=64 << 20, rejections=REFUSALS)
    with reading("its queues", url):
        found = tuple(QueueState(**{**state, "rates": QueueRates(**state["rates"])}) for state in content["queues"])
        return QueuePage(total=int(content["total"]), matched=int(content["matched"]), queues=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedClient:
    """A client that produced or received a message."""

    id: str
    """Its client id."""
    name: str | None
    """Its name; in EventMQ its identity."""
    type: str | None
    """Its type; in EventMQ ``eventmq-backend`` for workers, ``eventmq-frontend`` for clients."""
    protocol: str
    """Its protocol: ``emqp``, ``tmqp``, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStep:
    """A lifecycle event of a message in the history."""

    at_ms: int
    """Time in Unix milliseconds."""
    kind: str
    """``produced``, ``saved``, ``delivered``, ``acked``, ``nacked``, ``put-back``, ``dropped``, ..."""
    queue: str
    """The queue."""
    attempt: int | None
    """Deliveries of the message so far."""
    last: bool
    """Whether the message left its queue for good."""
    reason: str | None
    """The reason, if one was given."""
    target: str | None
    """The queue that it moved to."""
    producer: TracedClient | None
    """The producer, if the event names it."""
    consumer: TracedClient | None
    """The consumer, if the event names it."""
    shard: int
    """With `number`, the identity of the message. A dead letter is a new message with the same id."""
    number: int
    """See `shard`."""

    @property
    def at(self) -> datetime:
        """The time in UTC."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLocation:
    """The location of a message that is in a queue now."""

    queue: str
    """The queue."""
    state: str
    """``waiting``, ``delayed`` until a time, ``delivered`` and not settled, or ``undecided`` by its handler."""
    until_ms: int | None
    """End of the delay in Unix milliseconds."""
    consumers: tuple[TracedClient, ...]
    """Consumers that hold it unsettled."""
    attempts: int
    """Deliveries so far."""
    put_backs: int
    """Requeues so far."""
    saved: bool
    """Whether it is durable."""
    producer: TracedClient | None
    """The producer; unknown after a restart."""
    shard: int
    """See `TraceStep`."""
    number: int
    """See `TraceStep`; 0 without a history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Where a message is, and what happened to it."""

    id: str
    """Its id. Producers choose it, so several messages may have the same."""
    history: bool
    """Whether the broker keeps a history; without one `steps` is empty."""
    steps: tuple[TraceStep, ...]
    """Its lifecycle events in order."""
    now: tuple[MessageLocation, ...]
    """Its locations now."""
    truncated: bool
    """Whether there are more than the returned 10,000 steps."""
    not_all_looked_at: bool
    """Whether the broker searched only a part of the queued messages, because there are too many."""

    @property
    def outcome(self) -> str:
        """The state of a `MessageLocation`, or how the message ended: ``done``, ``dead-lettered``, ``dropped``, ...

        ``unknown`` if it is in no queue and the history has no end: it was only in memory when the broker was killed.
        """
        if self.now:
            return self.now[-1].state
        ends = [step.kind for step in self.steps if step.last]
        if not ends:
            return "unknown"
        return "done" if ends[-1] in {"acked", "delivered"} else ends[-1]


def trace(
    url: str,
    message_id: str,
    *,
    token: str | None = None,
    timeout: Duration = 60.0,
    tls: TLSConfig | None = None,
) -> Trace:
    """Return where the message, or the job, with this id is, and what happened to it.

    If the broker keeps a history, it searches all of it, which takes up to `timeout`. Without a history, the answer has
    the locations only, and misses a waiting message whose body is not in memory, as after a restart. `token` belongs to
    an administrator, if the broker has users.

    Raises `NotFound` if there is no such message, `ConfigError` for another URL, `ConnectFailed` if the broker does not
    answer, `Unauthorized`, and `BadAnswer` if the answer is not that of a broker of this version.
    """
    content = AdminClient(url, token=token, timeout=timeout, tls=tls).ask(
        "GET", f"/trace/{urllib.parse.quote(message_id, safe='')}"
    )
    with reading("traces", url):
        return Trace(
            **{
                **content,
                "steps": tuple(TraceStep(**_clients(step)) for step in content["steps"]),
                "now": tuple(MessageLocation(**_clients(found)) for found in content["now"]),
            }
        )


def _clients(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the same with `TracedClient` objects."""
    for name in ("producer", "consumer"):
        if fields.get(name) is not None:
            fields[name] = TracedClient(**fields[name])
    if "consumers" in fields:
        fields["consumers"] = tuple(TracedClient(**consumer) for consumer in fields["consumers"])
    return fields
