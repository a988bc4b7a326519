"""Peers that mean harm, for tests and for benches/hostile.py.

An attack opens its connections and returns a step, which continues the attack each time that it is called: it sends the
next bytes, floods, or makes the broker write to peers that do not read. The broker may disconnect the peers meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from eventmq_peer import GREETING, EventmqPeer, message, ready
from mm2_peer import Handshake, MM2Peer, command, subscribe
from mqks_peer import MqksPeer
from node_peer import frames, link
from served import ServedBroker
from test_unfinished_input import emqp_half, endpoint, mm2_half, mqks_half, throttr_half, tmqp_half, url
from throttr_peer import SUBSCRIBE, ThrottrPeer
from tmqp_peer import HELLO, PREAMBLE, QUEUE, SERVER, RawFrame, TmqpPeer

LISTENERS = (
    "tmqp://127.0.0.1:0",
    "tmqps://127.0.0.1:0",
    "mqks://127.0.0.1:0",
    "mm2://127.0.0.1:0",
    "throttr://127.0.0.1:0?value=uint32",
    "emqp://127.0.0.1:0",
)

SLOW_PEERS = 60
"""Connections of one slow attack."""
SLOW_ADMIN_PEERS = 300
"""Those on the admin side: more than it has places."""
SILENT_CONSUMERS = 8
"""Consumers that never read."""
FLOOD_BYTES = 64 << 10
"""Bytes of a message for them."""

Step = Callable[[], None]
Attack = Callable[[ServedBroker, ExitStack], Step]


def tls_hello() -> bytes:
    """The first message of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def tmqp_hello() -> bytes:
    lines = b"CONNECT /\r\nClient-Name: slow\r\n"
    return RawFrame(kind=SERVER, id=b"h", content_type=HELLO, payload=lines, first_acquirer=True).encode()


# Parts of each handshake; their ends are its states. A protocol without a handshake has its first request here.
OPENINGS: dict[str, tuple[bytes, ...]] = {
    "tmqp": (PREAMBLE, tmqp_hello()),
    "tmqps": (tls_hello(),),
    "mqks": (b"a auth mqt_0123456789ab_nobody\n",),
    "mm2": (Handshake("", "pub-sub").encode(), Handshake("", "pub-sub").encode()),
    "throttr": (b"\x01" + bytes(4) + b"\x04" + bytes(4) + b"\x03key",),
    "emqp-frontend": (GREETING[:10], GREETING[10:], ready(b"DEALER")),
    "emqp-publish": (GREETING, ready(b"PUB")),
    "emqp-subscribe": (GREETING, ready(b"SUB")),
    "emqp-admin": (GREETING, ready(b"DEALER")),
    "admin": (b"GET /overview HTTP/1.1\r\n", b"Host: 127.0.0.1\r\n", b"Accept: */*\r\n"),
}


def stops() -> list[tuple[str, int]]:
    """Where a slow peer begins to be slow: before, within and at the end of each part. Never behind the last byte."""
    found = []
    for protocol, parts in OPENINGS.items():
        ends = list(itertools.accumulate(len(part) for part in parts))
        middles = [end - (len(part) + 1) // 2 for part, end in zip(parts, ends, strict=True)]
        places = {0, *middles, *(end for end in ends[:-1]), ends[-1] - 1}
        found += [(protocol, place) for place in sorted(places)]
    return found


def address(broker: ServedBroker, protocol: str) -> tuple[str, int]:
    if protocol != "admin":
        return endpoint(broker, protocol)
    host, _, port = str(broker.ready["admin"]).rpartition(":")
    return host, int(port)


def slow(protocol: str, stop: int) -> Attack:
    """Peers that begin a handshake, and continue it byte by byte, but never end it."""
    opening = b"".join(OPENINGS[protocol])

    def attack(broker: ServedBroker, stack: ExitStack) -> Step:
        peers = []
        for _ in range(SLOW_ADMIN_PEERS if protocol == "admin" else SLOW_PEERS):
            peer = stack.enter_context(socket.create_connection(address(broker, protocol), timeout=10))
            peer.sendall(opening[:stop])
            peers.append(peer)
        sent = itertools.chain(range(stop, len(opening) - 1), itertools.repeat(None))

        def step() -> None:
            at = next(sent)
            for peer in peers if at is not None else ():
                with contextlib.suppress(OSError):
                    peer.sendall(opening[at : at + 1])

        return step

    return attack


def lying(half: Callable[[ServedBroker], socket.socket]) -> Attack:
    """Peers that announce 64 MB, and send a little of it."""

    def attack(broker: ServedBroker, stack: ExitStack) -> Step:
        peers = [stack.enter_context(contextlib.closing(half(broker))) for _ in range(SLOW_PEERS)]

        def step() -> None:
            for peer in peers:
                with contextlib.suppress(OSError):
                    peer.sendall(b"x" * 4096)

        return step

    return attack


def listen_tmqp(broker: ServedBroker, stack: ExitStack) -> None:
    peer = TmqpPeer(*endpoint(broker, "tmqp"))
    stack.callback(peer.socket.close)
    peer.hello()
    assert peer.ask(601, "@topic:flood").content_type == 0


def listen_mqks(broker: ServedBroker, stack: ExitStack) -> None:
    peer = stack.enter_context(MqksPeer(url(broker, "mqks")))
    name = f"silent-{peer.socket.getsockname()[1]}"
    assert peer.ask(f"c consume --confirm {name} flood").startswith(b"c ok")


def listen_mm2(broker: ServedBroker, stack: ExitStack) -> None:
    peer = stack.enter_context(MM2Peer(url(broker, "mm2")).open("pub-sub;x-mqcore"))
    peer.command(subscribe("topic/flood", name="s"))
    # A subscription has no answer; that to the ping comes behind it.
    assert peer.ask("ping;id=p").startswith("ok")


def listen_throttr(broker: ServedBroker, stack: ExitStack) -> None:
    peer = stack.enter_context(ThrottrPeer(endpoint(broker, "throttr"), width=4))
    assert peer.status(peer.keyed(SUBSCRIBE, b"flood"))


def listen_emqp(broker: ServedBroker, stack: ExitStack) -> None:
    peer = stack.enter_context(EventmqPeer(url(broker, "emqp-subscribe"), b"SUB"))
    peer.send(b"\x01flood")
    peer.until_now()


def silent(listen: Callable[[ServedBroker, ExitStack], None]) -> Attack:
    """Consumers that never read what a producer sends them."""

    def attack(broker: ServedBroker, stack: ExitStack) -> Step:
        for _ in range(SILENT_CONSUMERS):
            listen(broker, stack)
        producer = TmqpPeer(*endpoint(broker, "tmqp"))
        stack.callback(producer.socket.close)
        producer.hello()
        producer.socket.settimeout(1)
        frame = RawFrame(kind=QUEUE, id=b"f", target=b"@topic:flood", payload=b"x" * FLOOD_BYTES).encode()
        return lambda: producer.socket.sendall(frame * 4)

    return attack


def flood_sink(peer: socket.socket, data: bytes) -> None:
    """Send a flood, and read what comes meanwhile, so that the flood itself never waits for its answers."""
    peer.setblocking(False)
    view = memoryview(data)
    while view:
        with contextlib.suppress(BlockingIOError):
            while peer.recv(1 << 16):
                pass
        try:
            view = view[peer.send(view) :]
        except BlockingIOError:
            return
        except OSError:
            return


def flood(connect: Callable[[ServedBroker, ExitStack], socket.socket], request: Callable[[int], bytes]) -> Attack:
    """One peer that sends requests with new names as fast as the broker reads them."""

    def attack(broker: ServedBroker, stack: ExitStack) -> Step:
        peer = connect(broker, stack)
        numbers = itertools.count()

        def step() -> None:
            flood_sink(peer, b"".join(request(number) for number in itertools.islice(numbers, 50)))

        return step

    return attack


def tmqp(broker: ServedBroker, stack: ExitStack) -> socket.socket:
    peer = TmqpPeer(*endpoint(broker, "tmqp"))
    stack.callback(peer.socket.close)
    peer.hello()
    return peer.socket


def mqks(broker: ServedBroker, stack: ExitStack) -> socket.socket:
    return stack.enter_context(MqksPeer(url(broker, "mqks"))).socket


def mm2(broker: ServedBroker, stack: ExitStack) -> socket.socket:
    return stack.enter_context(MM2Peer(url(broker, "mm2")).open("", "pub-sub")).socket


def throttr(broker: ServedBroker, stack: ExitStack) -> socket.socket:
    return stack.enter_context(ThrottrPeer(endpoint(broker, "throttr"), width=4)).socket


def emqp_subscriber(broker: ServedBroker, stack: ExitStack) -> socket.socket:
    return stack.enter_context(EventmqPeer(url(broker, "emqp-subscribe"), b"SUB")).socket


def node(broker: ServedBroker, stack: ExitStack) -> socket.socket:
    peer = link(endpoint(broker, "tmqp"), epoch=7)
    stack.callback(peer.socket.close)
    return peer.socket


def connections(protocol: str) -> Attack:
    """Peers that connect, say nothing and leave, one after the other."""

    def attack(broker: ServedBroker, stack: ExitStack) -> Step:
        def step() -> None:
            for _ in range(50):
                socket.create_connection(address(broker, protocol), timeout=10).close()

        return step

    return attack


def ask_tmqp(operation: int, target: str, headers: Sequence[tuple[str, str]] = ()) -> bytes:
    return RawFrame(
        kind=SERVER,
        id=b"q",
        target=target.encode(),
        content_type=operation,
        headers=list(headers),
        pending_response=True,
    ).encode()


def publish_tmqp(target: str) -> bytes:
    return RawFrame(kind=QUEUE, id=b"p", target=target.encode(), content_type=1, payload=b"x").encode()


FLOODS: dict[str, Attack] = {
    "tmqp subscriptions": flood(tmqp, lambda n: ask_tmqp(601, f"@topic:a.{n}.*")),
    "tmqp channel names": flood(tmqp, lambda n: ask_tmqp(603, f"flood-{n}")),
    "tmqp queue names": flood(tmqp, lambda n: publish_tmqp(f"created-{n}")),
    "tmqp topic names": flood(tmqp, lambda n: publish_tmqp(f"@topic:a.{n}.b")),
    "tmqp connections": connections("tmqp"),
    "tmqp replayed node frames": flood(node, lambda number: frames(1 + number % 3, [b"1", b"2"])),
    "tmqp lists": flood(tmqp, lambda _: ask_tmqp(606, "")),
    "mqks masks": flood(mqks, lambda n: b"m rebind --confirm flood --add a%d.*.b.*\n" % n),
    "mqks consumers": flood(mqks, lambda n: b"m%d consume flood-%d a.b\n" % (n, n)),
    "mm2 filters": flood(
        mm2,
        lambda n: command(
            subscribe(f"topic/f{n}", name=f"s{n}", wanted=" or ".join(f"k{i} = 'v{n}'" for i in range(8)))
        ),
    ),
    "mm2 destinations": flood(mm2, lambda n: command(subscribe(f"topic/d{n}", name=f"s{n}"))),
    "throttr keys": flood(
        throttr, lambda n: b"\x01" + n.to_bytes(4, "little") + b"\x04" + bytes([60, 0, 0, 0, 4]) + n.to_bytes(4)
    ),
    "throttr channels": flood(throttr, lambda n: bytes([SUBSCRIBE, 4]) + n.to_bytes(4)),
    "emqp topics": flood(emqp_subscriber, lambda n: message([b"\x01topic-%d" % n])),
}

LYING = {"tmqp": tmqp_half, "mqks": mqks_half, "mm2": mm2_half, "throttr": throttr_half, "emqp": emqp_half}
SILENT = {
    "tmqp": listen_tmqp,
    "mqks": listen_mqks,
    "mm2": listen_mm2,
    "throttr": listen_throttr,
    "emqp": listen_emqp,
}

ATTACKS: dict[str, Attack] = {
    **{f"slow {protocol} at byte {stop}": slow(protocol, stop) for protocol, stop in stops()},
    **{f"lying {protocol}": lying(half) for protocol, half in LYING.items()},
    **{f"silent {protocol}": silent(listen) for protocol, listen in SILENT.items()},
    **{f"flood of {name}": attack for name, attack in FLOODS.items()},
}
"""All attacks by name. The first word is the kind."""
