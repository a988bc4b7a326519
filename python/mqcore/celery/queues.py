"""Declares AMQP queues as queues of the broker, and binds them to topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from mqcore import errors
from mqcore.celery.link import Link, new_id
from mqcore.celery.naming import QUEUE_ID, binding_topics, channel_of

__all__ = ["JOIN", "LEAVE", "QueueInfo", "Queues", "queue_headers"]

JOIN, LEAVE = 601, 602
_CREATE_CHANNEL, _REMOVE_CHANNEL = 603, 604
_CREATE_QUEUE, _REMOVE_QUEUE, _CLEAR, _INFORMATION, _LIST_QUEUES = 610, 611, 613, 615, 616
_BIND, _UNBIND = 662, 663

_OK, _EXISTS, _NOT_FOUND = 0, 481, 404

# Ten years: a worker may take as long as it needs. If it dies, its connection ends, and the message is redelivered.
_ACKNOWLEDGE_TIMEOUT_MS: Final = 10 * 365 * 24 * 3600 * 1000
_PROBE_MS: Final = 1000


class QueueInfo(msgspec.Struct, rename="pascal"):
    """Numbers of messages and consumers of a queue."""

    priority_messages: int = 0
    messages: int = 0
    consumers: int = 0

    @property
    def waiting(self) -> int:
        """Messages that wait, whatever their priority."""
        return self.priority_messages + self.messages


def queue_headers(**more: object) -> dict[str, str]:
    """Return the headers of an operation on an AMQP queue."""
    return {"Queue-Id": str(QUEUE_ID)} | {key.replace("_", "-"): str(value) for key, value in more.items()}


class Queues:
    """The queues of one virtual host, over one connection.

    `policy` is the policy of durable queues. By default they are saved if the broker has a data directory.
    """

    def __init__(self, link: Link, vhost: str, policy: str | None) -> None:
        self._link = link
        self._vhost = vhost
        self._policy = policy
        self._temporary: dict[str, Mapping[str, Any]] = {}
        self._bindings: dict[str, set[tuple[str, str, str]]] = {}

    def declare(
        self, queue: str, *, durable: bool, temporary: bool, arguments: Mapping[str, Any]
    ) -> tuple[bool, QueueInfo]:
        """Create a queue unless it exists. Return whether it was created, and what is in it.

        A `temporary` queue is removed when its last consumer has left and it is empty.
        """
        channel = channel_of(self._vhost, queue)
        if temporary:
            self._temporary[queue] = arguments
            answer = self._link.ask_all([(_CREATE_CHANNEL, channel, {}, {"DestroyWhenEmpty": True})])[0]
            if answer.content_type not in (_OK, _EXISTS):
                self._link.ask(_CREATE_CHANNEL, channel, {}, {"DestroyWhenEmpty": True})
        policy = "memory" if temporary or not durable else self._policy or _saving_policy(self._link)
        options = _options(arguments, temporary) | {"MessageDeliveryHandler": policy}
        try:
            self._link.ask(_CREATE_QUEUE, channel, queue_headers(), options)
        except errors.AlreadyExists:
            return False, self.information(queue, required=False)
        return True, QueueInfo()

    def information(self, queue: str, *, required: bool = True) -> QueueInfo:
        """Describe a queue. Raises `NotFound`. Unless `required`, a client without the permission gets zeros."""
        channel = channel_of(self._vhost, queue)
        try:
            answer = self._link.ask(_INFORMATION, channel, queue_headers())
        except errors.Unauthorized:
            if required:
                raise
            return QueueInfo()
        return msgspec.json.decode(answer.payload, type=QueueInfo)

    def clear(self, queue: str) -> int:
        """Remove the messages that wait, and return how many there were."""
        count = self.information(queue, required=False).waiting
        self._link.ask(_CLEAR, channel_of(self._vhost, queue), queue_headers(Priority_Messages="yes", Messages="yes"))
        return count

    def restore(self, queue: str) -> bool:
        """Create a temporary queue that was declared here again, with its bindings. False: it was not."""
        arguments = self._temporary.get(queue)
        if arguments is None:
            return False
        self.declare(queue, durable=False, temporary=True, arguments=arguments)
        for exchange, kind, routing_key in list(self._bindings.get(queue, ())):
            self.bind(queue, exchange, kind, routing_key)
        return True

    def remove(self, queue: str) -> None:
        """Remove a queue, if it exists; and its channel, unless that has dead letters."""
        self._temporary.pop(queue, None)
        self._bindings.pop(queue, None)
        channel = channel_of(self._vhost, queue)
        try:
            self._link.ask(_REMOVE_QUEUE, channel, queue_headers())
            if not msgspec.json.decode(self._link.ask(_LIST_QUEUES, channel).payload):
                self._link.ask(_REMOVE_CHANNEL, channel)
        except errors.NotFound:
            pass

    def bind(self, queue: str, exchange: str, kind: str, routing_key: str) -> None:
        """Bind a queue to an exchange of this kind."""
        if queue in self._temporary:
            self._bindings.setdefault(queue, set()).add((exchange, kind, routing_key))
        channel = channel_of(self._vhost, queue)
        binding = {"Target": channel, "ContentType": QUEUE_ID, "BindingType": 1}
        topics = binding_topics(self._vhost, exchange, kind, routing_key)
        answers = self._link.ask_all([(_BIND, f"@topic:{topic}", {}, binding) for topic in topics])
        for topic, answer in zip(topics, answers, strict=True):
            if answer.content_type not in (_OK, _EXISTS):
                # Asked again alone, for its error.
                self._link.ask(_BIND, f"@topic:{topic}", {}, binding)

    def unbind(self, queue: str, exchange: str, kind: str, routing_key: str) -> None:
        """Remove a binding, if there is one."""
        self._bindings.get(queue, set()).discard((exchange, kind, routing_key))
        headers = {"Binding-Name": f"{channel_of(self._vhost, queue)}/{QUEUE_ID}"}
        topics = binding_topics(self._vhost, exchange, kind, routing_key)
        for topic, answer in zip(
            topics, self._link.ask_all([(_UNBIND, f"@topic:{topic}", headers, None) for topic in topics]), strict=True
        ):
            if answer.content_type not in (_OK, _NOT_FOUND):
                self._link.ask(_UNBIND, f"@topic:{topic}", headers)


def _options(arguments: Mapping[str, Any], temporary: bool) -> dict[str, object]:
    options: dict[str, object] = {
        "Status": "roundrobin",
        "RequestAcknowledge": True,
        "AcknowledgeTimeout": _ACKNOWLEDGE_TIMEOUT_MS,
        "RetryDelay": 0,
    }
    # A temporary queue lives until it is empty, so its messages must not stay for ever.
    lifetimes = [arguments.get("x-message-ttl"), arguments.get("x-expires") if temporary else None]
    if known := [int(lifetime) for lifetime in lifetimes if lifetime]:
        options["MessageTimeout"] = min(known)
    if limit := arguments.get("x-max-length"):
        options["MessageLimit"] = int(limit)
    return options


def _saving_policy(link: Link) -> str:
    """Return ``at-least-once`` if the broker can save messages, else ``memory``.

    The protocol does not tell, so a message is sent to a queue that saves and removes itself.
    """
    channel = f"kombu-probe-{new_id().decode()}"
    link.ask(_CREATE_CHANNEL, channel, {}, {"DestroyWhenEmpty": True})
    link.ask(
        _CREATE_QUEUE, channel, queue_headers(), {"Status": "roundrobin", "MessageDeliveryHandler": "at-least-once"}
    )
    try:
        link.publish(channel, QUEUE_ID, f"Mqcore-Expires-In:{_PROBE_MS}\r\n".encode(), b"", confirm=True)
    except errors.Unacceptable:
        # Nothing is in the queue, so only a consumer that leaves lets the broker remove it.
        link.ask(JOIN, channel, {"Queue-Ids": str(QUEUE_ID)})
        link.ask(LEAVE, channel, {"Queue-Ids": str(QUEUE_ID)})
        return "memory"
    return "at-least-once"
