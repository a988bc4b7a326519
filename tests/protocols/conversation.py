"""A raw TMQP client for conformance tests: it keeps the bytes of what it reads, and knows when all has arrived.

Nothing here waits for a time to pass. `Client.arrived` asks the broker a question about the channel instead: its answer
comes from the part of the broker that delivers the channel's messages, behind everything that was said before.
"""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import mqcore
from tmqp_peer import (
    ACKNOWLEDGE,
    CREATE_CHANNEL,
    CREATE_QUEUE,
    DIRECT,
    EVENT,
    JOIN,
    LEAVE,
    PULL,
    QUEUE,
    QUEUE_INFORMATION,
    RESPONSE,
    SERVER,
    UPDATE_QUEUE,
    PeerClosed,
    RawFrame,
    TmqpPeer,
)

ROUTER = 0x17
REMOVE_CHANNEL, CHANNEL_INFORMATION, CHANNEL_LIST, CHANNEL_CONSUMERS = 604, 605, 606, 607
ROUTER_LIST, CREATE_ROUTER, REMOVE_ROUTER, TEST_ROUTE, ENABLE_ROUTER = 651, 652, 653, 654, 655
BINDING_LIST, ADD_BINDING, REMOVE_BINDING = 661, 662, 663
REMOVE_QUEUE, CLEAR_MESSAGES, QUEUE_LIST, NODE_LIST, CLIENT_LIST = 611, 613, 616, 621, 631

OK, FAILED, BAD_REQUEST, UNAUTHORIZED, NOT_FOUND = 0, 1, 400, 401, 404
UNACCEPTABLE, ALREADY_EXISTS, LIMIT_EXCEEDED, BUSY = 406, 481, 482, 503

BROADCAST, PUSH, ROUND_ROBIN, PULLED, CACHE, PAUSED, STOPPED = range(7)

SUBSCRIBE, UNSUBSCRIBE = 1, 0

_VECTORS = Path(__file__).parent.parent / "vectors" / "tmqp.jsonl"


def vector(name: str) -> bytes:
    """The bytes of a vector of `tests/vectors/tmqp.jsonl`."""
    for line in _VECTORS.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["name"] == name:
            return bytes.fromhex(entry["hex"])
    raise KeyError(name)


class Client(TmqpPeer):
    """One connection. `raw` has the bytes of the frame that was received last."""

    def __init__(self, host: str, port: int, *, timeout: float = 10.0, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(host, port, timeout=timeout, tls=tls)
        self.raw = b""
        self._buffer = bytearray()
        self._frame = bytearray()
        self._unread: deque[tuple[RawFrame, bytes]] = deque()

    # --- reading -------------------------------------------------------------------------------------------

    def read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            part = self.socket.recv(1 << 16)
            if not part:
                raise PeerClosed(f"closed after {len(self._buffer)} of {size} bytes")
            self._buffer += part
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._frame += taken
        return taken

    def receive(self) -> RawFrame:
        if self._unread:
            frame, self.raw = self._unread.popleft()
            return frame
        return self._receive_new()

    def _receive_new(self) -> RawFrame:
        self._frame.clear()
        frame = super().receive()
        self.raw = bytes(self._frame)
        # PINGs that came before it were read with it.
        while self.raw[:2] in (b"\x89\xff", b"\x8a\xff"):
            self.raw = self.raw[8:]
        return frame

    def answer(self, message_id: bytes, kinds: tuple[int, ...] = (RESPONSE,)) -> RawFrame:
        """The answer to a frame with this id; what comes before it stays to be received."""
        kept: list[tuple[RawFrame, bytes]] = []
        while True:
            frame = self.receive()
            if frame.kind in kinds and frame.id == message_id:
                self._unread.extendleft(reversed(kept))
                return frame
            kept.append((frame, self.raw))

    def arrived(self, channel: str = "ch") -> list[RawFrame]:
        """Everything that the broker has sent here about a channel so far."""
        self.ask(CHANNEL_INFORMATION, channel)
        frames = [frame for frame, _ in self._unread]
        self._unread.clear()
        return frames

    def bodies(self, channel: str = "ch") -> list[bytes]:
        """The bodies of the queue messages that have arrived."""
        return [frame.payload for frame in self.arrived(channel) if frame.kind == QUEUE]

    # --- operations ----------------------------------------------------------------------------------------

    def ask(
        self,
        operation: int,
        target: str = "",
        *,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        acknowledge: bool = False,
    ) -> RawFrame:
        """A server operation and its answer: a response, or with `acknowledge` an acknowledgement."""
        request = RawFrame(
            kind=SERVER,
            id=self.new_id(),
            source=self.client_id,
            target=target.encode(),
            content_type=operation,
            headers=list((headers or {}).items()),
            payload=body,
            pending_response=not acknowledge,
            pending_acknowledge=acknowledge,
        )
        self.send(request)
        return self.answer(request.id, (ACKNOWLEDGE,) if acknowledge else (RESPONSE,))

    def do(self, operation: int, target: str = "", **rest: Any) -> bytes:
        """A server operation that must succeed; the body of the answer."""
        answer = self.ask(operation, target, **rest)
        assert answer.content_type == OK, (answer.content_type, answer.payload)
        return answer.payload

    def json(self, operation: int, target: str = "", **rest: Any) -> Any:
        """A server operation that must succeed and answers JSON."""
        return json.loads(self.do(operation, target, **rest))

    def join(self, channel: str = "ch") -> None:
        self.do(JOIN, channel)

    def leave(self, channel: str = "ch") -> None:
        self.do(LEAVE, channel)

    def create_channel(self, channel: str = "ch", **options: Any) -> None:
        self.do(CREATE_CHANNEL, channel, body=json.dumps(options).encode() if options else b"")

    def create_queue(self, channel: str = "ch", queue: int = 1, **options: Any) -> None:
        """A new queue, its options by their names on the wire; the channel too, if it is missing."""
        body = json.dumps(options).encode() if options else b""
        self.do(CREATE_QUEUE, channel, headers={"Queue-Id": str(queue)}, body=body)

    def update_queue(self, channel: str = "ch", queue: int = 1, **options: Any) -> None:
        self.do(UPDATE_QUEUE, channel, headers={"Queue-Id": str(queue)}, body=json.dumps(options).encode())

    def queue(self, channel: str = "ch", queue: int = 1) -> dict[str, Any]:
        """Queue information."""
        information = self.json(QUEUE_INFORMATION, channel, headers={"Queue-Id": str(queue)})
        assert isinstance(information, dict)
        return information

    def stored(self, channel: str = "ch", queue: int = 1) -> tuple[int, int]:
        """Stored messages: of high priority, and the others."""
        information = self.queue(channel, queue)
        return information["PriorityMessages"], information["Messages"]

    # --- messages ------------------------------------------------------------------------------------------

    def publish(
        self,
        channel: str = "ch",
        queue: int = 1,
        body: bytes = b"",
        *,
        confirm: bool = False,
        message_id: bytes | None = None,
        **fields: Any,
    ) -> bytes:
        """Send a queue message; its id. An empty `message_id` leaves the id out."""
        frame = RawFrame(
            kind=QUEUE,
            id=self.new_id() if message_id is None else message_id,
            source=self.client_id,
            target=channel.encode(),
            content_type=queue,
            payload=body,
            pending_acknowledge=confirm,
            **fields,
        )
        self.send(frame)
        return frame.id

    def publish_all(self, bodies: Iterable[bytes], channel: str = "ch", queue: int = 1) -> None:
        """Send queue messages, and return when the broker has taken them."""
        for body in bodies:
            self.publish(channel, queue, body)
        self.ask(CHANNEL_INFORMATION, channel)

    def acknowledge(self, delivery: RawFrame, reason: str | None = None) -> None:
        """Acknowledge a delivery; negatively with a reason."""
        headers = [] if reason is None else [("Nack-Reason", reason)]
        self.send(
            RawFrame(
                kind=ACKNOWLEDGE,
                id=delivery.id,
                source=self.client_id,
                target=delivery.target,
                content_type=delivery.content_type,
                headers=headers,
            )
        )

    def request_pull(self, channel: str = "ch", queue: int = 1, **headers: Any) -> bytes:
        """Send a pull request with these headers; its id."""
        frame = RawFrame(
            kind=PULL,
            id=self.new_id(),
            source=self.client_id,
            target=channel.encode(),
            content_type=queue,
            headers=[(key, str(value)) for key, value in headers.items()],
        )
        self.send(frame)
        return frame.id

    def pull(self, channel: str = "ch", queue: int = 1, **headers: Any) -> tuple[list[RawFrame], str]:
        """Pull: the messages, and the word with which the pull ended."""
        request = self.request_pull(channel, queue, **headers)
        messages: list[RawFrame] = []
        while True:
            frame = self.receive()
            assert frame.kind == QUEUE
            assert frame.header("Request-Id") == request.decode()
            word = frame.header("No-Content")
            if word is not None:
                assert (frame.id, frame.payload) == (request, b"")
                return messages, word
            messages.append(frame)

    def send_direct(self, target: str, body: bytes = b"", **fields: Any) -> bytes:
        """Send a direct message; its id."""
        frame = RawFrame(
            kind=DIRECT, id=self.new_id(), source=self.client_id, target=target.encode(), payload=body, **fields
        )
        self.send(frame)
        return frame.id

    # --- routers -------------------------------------------------------------------------------------------

    def create_router(self, router: str, method: int | str = 0) -> None:
        """A new router; the method by its number (0 distribute, 1 round robin, 2 only first) or its name."""
        self.do(CREATE_ROUTER, router, headers={"Route-Method": str(method)})

    def bind(self, router: str, target: str, **members: Any) -> None:
        """One more binding, its members by their names on the wire."""
        self.do(ADD_BINDING, router, body=json.dumps({"Target": target, **members}).encode())

    def route(self, router: str, body: bytes = b"", **fields: Any) -> bytes:
        """Send a message to a router; its id."""
        frame = RawFrame(
            kind=ROUTER, id=self.new_id(), source=self.client_id, target=router.encode(), payload=body, **fields
        )
        self.send(frame)
        return frame.id

    def routed(self, router: str, body: bytes = b"", **fields: Any) -> RawFrame:
        """Send a message to a router, and wait for the acknowledgement; all receivers have it by then."""
        message = self.route(router, body, pending_acknowledge=True, **fields)
        return self.answer(message, (ACKNOWLEDGE,))

    # --- events --------------------------------------------------------------------------------------------

    def subscribe(self, event: str, *, content_type: int = SUBSCRIBE, **headers: str) -> int:
        """Subscribe to an event, or unsubscribe; the code of the answer. Keywords: `Channel_Name="ch"`."""
        frame = RawFrame(
            kind=EVENT,
            id=self.new_id(),
            source=self.client_id,
            target=event.encode(),
            content_type=content_type,
            headers=[(key.replace("_", "-"), value) for key, value in headers.items()],
        )
        self.send(frame)
        return self.answer(frame.id).content_type

    def unsubscribe(self, event: str, **headers: str) -> int:
        return self.subscribe(event, content_type=UNSUBSCRIBE, **headers)

    def lives(self) -> bool:
        """Whether the broker still serves this connection."""
        try:
            self.ask(CHANNEL_LIST)
        except ConnectionError:
            return False
        return True


Connect = Callable[..., Client]
StartBroker = Callable[..., mqcore.Broker]
Eventually = Callable[[Callable[[], bool]], None]


def address(broker: mqcore.Broker) -> tuple[str, int]:
    """Host and port of a broker's first listener."""
    host, _, port = broker.listeners[0].partition("://")[2].rpartition(":")
    return host, int(port)


def metrics(broker: mqcore.Broker) -> dict[str, float]:
    """The samples of GET /metrics."""
    with urllib.request.urlopen(f"{broker.admin_url}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def closed_for(broker: mqcore.Broker, reason: str) -> float:
    """How many TMQP connections the broker closed for this reason."""
    return metrics(broker)[f'mqcore_connections_closed_total{{protocol="tmqp",reason="{reason}"}}']
