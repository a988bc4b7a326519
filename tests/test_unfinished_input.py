"""Peers that announce large frames and never finish them: what the broker stores for them, and who is disconnected."""

from __future__ import annotations

import base64
import contextlib
import re
import socket
import struct
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eventmq_peer import COMMAND, GREETING, LONG, EventmqPeer
from mm2_peer import MM2Peer
from mqcore import QueueOptions
from mqcore._core import hash_password
from mqcore.sync import connect
from mqks_peer import MqksPeer
from served import ServedBroker, serving, wait_until
from throttr_peer import SET, S, ThrottrPeer
from tmqp_peer import PREAMBLE, TmqpPeer

PEERS = 200
"""Peers that attack at once."""

SENT = 900_000
"""Bytes that each of them sends of a frame; a line of MQKS can have a few more."""

BUDGET = 16 << 20
"""Bytes that the broker may store for all of them together."""

SLACK = 64 << 20
"""Growth of the process for other reasons: connections, buffers being read, memory that the allocator returns later."""

ANNOUNCED = 64_000_000
"""Size of the frames that never end, below the limit of 64 MiB."""

USERS = f"""
[authority]
audit = "off"
[[user]]
name = "ann"
password_hash = "{hash_password("correct horse")}"
allow = ["*"]
"""

LISTENERS = (
    "tmqp://127.0.0.1:0",
    "mqks://127.0.0.1:0",
    "mm2://127.0.0.1:0",
    "throttr://127.0.0.1:0?value=uint32",
    "emqp://127.0.0.1:0?role=frontend",
)


@contextlib.contextmanager
def a_broker(directory: Path, settings: str) -> Iterator[ServedBroker]:
    """A broker with a listener of each protocol."""
    file = directory / "mqcore.toml"
    file.write_text(settings)
    listen = [argument for url in LISTENERS for argument in ("--listen", url)]
    others = ("--admin", "http://127.0.0.1:0", "--auto-create", "--config", str(file))
    with serving(*listen, *others, environment={"MQCORE_SHARDS": "2"}) as broker:
        yield broker


def endpoint(broker: ServedBroker, protocol: str) -> tuple[str, int]:
    host, _, port = str(broker.ready["listeners"][protocol]).partition("?")[0].rpartition(":")
    return host, int(port)


def url(broker: ServedBroker, protocol: str) -> str:
    host, port = endpoint(broker, protocol)
    return f"{protocol.partition('-')[0]}://{host}:{port}"


def closed(broker: ServedBroker, reason: str) -> int:
    """Connections of all protocols that the broker has closed for this reason."""
    shown = base64.b64encode(b"ann:correct horse").decode()
    asked = urllib.request.Request(f"{broker.admin_url}/metrics", headers={"Authorization": f"Basic {shown}"})
    with urllib.request.urlopen(asked, timeout=10) as page:
        text = page.read().decode()
    counts = re.findall(rf'^mqcore_connections_closed_total\{{.*reason="{reason}"\}} (\d+)$', text, re.MULTILINE)
    assert counts
    return sum(map(int, counts))


def resident(broker: ServedBroker) -> int:
    """Bytes of memory of the broker's process."""
    status = Path(f"/proc/{broker.process.pid}/status").read_text(encoding="ascii")
    line = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert line
    return int(line[1]) * 1024


def a_client_works(broker: ServedBroker, user: str | None = None, password: str | None = None) -> None:
    with connect(url(broker, "tmqp"), user=user, password=password) as client:
        client.declare("calm", 1, QueueOptions(status="pull"))
        client.publish("calm/1", b"x" * 100_000, confirm=True)
        (message,) = client.queue("calm/1").pull(1)
        assert message.body == b"x" * 100_000


def read_all(connection: socket.socket) -> bytes:
    """Everything until the broker closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


# --- logged in -----------------------------------------------------------------------------------------------------


def tmqp_half(broker: ServedBroker) -> socket.socket:
    peer = TmqpPeer(*endpoint(broker, "tmqp"))
    peer.hello()
    # A message to the queue 1 of the channel "c" with a large body.
    peer.socket.sendall(bytes([0x11, 0x10, 1, 0, 1]) + struct.pack("<HBI", 1, 254, ANNOUNCED) + b"mc")
    return peer.socket


def mqks_half(broker: ServedBroker) -> socket.socket:
    peer = MqksPeer(url(broker, "mqks"))
    assert peer.ask("p ping x") == b"p ok x"
    peer.send_bytes(b"m publish event ")
    return peer.socket


def mm2_half(broker: ServedBroker) -> socket.socket:
    peer = MM2Peer(url(broker, "mm2")).open()
    # A message whose payload has a length of four bytes.
    peer.send(struct.pack(">BHB", 8, 1, 1) + b"c" + struct.pack(">HI", 0, ANNOUNCED))
    return peer.socket


def throttr_half(broker: ServedBroker) -> socket.socket:
    peer = ThrottrPeer(endpoint(broker, "throttr"), width=4)
    peer.send(bytes([SET, S]) + peer.number(60) + bytes([1]) + peer.number(ANNOUNCED) + b"k")
    return peer.socket


def emqp_half(broker: ServedBroker) -> socket.socket:
    peer = EventmqPeer(url(broker, "emqp-frontend"))
    peer.send_bytes(bytes([LONG]) + struct.pack(">Q", ANNOUNCED))
    return peer.socket


def attack(broker: ServedBroker, half: Callable[[ServedBroker], socket.socket], count: int) -> list[socket.socket]:
    """Start frames on so many connections, and send a part of each. The broker may disconnect some meanwhile."""
    sockets = []
    for _ in range(count):
        peer = half(broker)
        with contextlib.suppress(ConnectionError):
            peer.sendall(b"x" * SENT)
        sockets.append(peer)
    return sockets


def survive(broker: ServedBroker, half: Callable[[ServedBroker], socket.socket]) -> None:
    """Check that the broker disconnects most peers of an attack, keeps its memory and serves others."""
    a_client_works(broker)
    before = resident(broker)
    with contextlib.ExitStack() as stack:
        for peer in attack(broker, half, PEERS):
            stack.callback(peer.close)
        # Each of the others was disconnected: their buffers alone are larger than the budget.
        kept = BUDGET // SENT
        wait_until(lambda: closed(broker, "input-limit") >= PEERS - kept, limit=30.0, what="the disconnects")
        assert resident(broker) - before < BUDGET + SLACK
        a_client_works(broker)


@pytest.mark.parametrize("half", [tmqp_half, mqks_half, mm2_half, throttr_half, emqp_half])
def test_clients_that_never_finish_frames_do_not_exceed_the_budget(
    tmp_path: Path, half: Callable[[ServedBroker], socket.socket]
) -> None:
    with a_broker(tmp_path, f"unfinished_bytes_max = {BUDGET}") as broker:
        survive(broker, half)


# --- not logged in -------------------------------------------------------------------------------------------------


def mqks_first_line(broker: ServedBroker) -> socket.socket:
    peer = MqksPeer(url(broker, "mqks"))
    peer.send_bytes(b"m publish event ")
    return peer.socket


def test_first_lines_that_never_end_do_not_exceed_the_budget(tmp_path: Path) -> None:
    with a_broker(tmp_path, f"half_open_bytes_max = {BUDGET}") as broker:
        survive(broker, mqks_first_line)
        # A long first line is valid as long as no login is required.
        with MqksPeer(url(broker, "mqks")) as peer:
            assert peer.ask("p ping " + "x" * 500_000) == b"p ok " + b"x" * 500_000


def tmqp_login(broker: ServedBroker) -> bytes:
    with contextlib.closing(socket.create_connection(endpoint(broker, "tmqp"), timeout=10)) as peer:
        peer.sendall(PREAMBLE + bytes([0x10, 0x10, 0, 0, 0]) + struct.pack("<HBI", 101, 254, ANNOUNCED) + b"x" * 1000)
        return read_all(peer)


def mqks_login(broker: ServedBroker) -> bytes:
    with MqksPeer(url(broker, "mqks")) as peer:
        peer.send_bytes(b"a1 auth " + b"x" * 3000)
        return read_all(peer.socket)


def mm2_login(broker: ServedBroker) -> bytes:
    with MM2Peer(url(broker, "mm2")) as peer:
        # A list of extensions of 60,000 bytes.
        peer.send(struct.pack(">BBBB", 1, 0, 0, 1) + b"x" + struct.pack(">H", 60_000) + b"y" * 1000)
        return read_all(peer.socket)


def emqp_login(broker: ServedBroker) -> bytes:
    with EventmqPeer(url(broker, "emqp-frontend"), shakes=False) as peer:
        peer.send_bytes(GREETING + bytes([COMMAND | LONG]) + struct.pack(">Q", ANNOUNCED))
        return read_all(peer.socket)


@pytest.mark.parametrize(
    ("login", "refusal"),
    [
        # The frame has content type 482: a limit would be exceeded.
        (tmqp_login, rb"^TMQP/2\.0.*\xe2\x01.*exceeds the limit of 2048 bytes$"),
        (mqks_login, rb"^a1 error \d{20}[0-9A-Za-z]{4}\n$"),
        (mm2_login, rb"too-large: .*limit of 2048 bytes"),
        (emqp_login, rb"\x05ERROR.*exceeds the limit of 512 bytes"),
    ],
)
def test_large_login_is_refused_in_the_form_of_the_protocol_and_counted(
    tmp_path: Path, login: Callable[[ServedBroker], bytes], refusal: bytes
) -> None:
    with a_broker(tmp_path, "login_bytes_max = 2048\n" + USERS) as broker:
        assert re.search(refusal, login(broker), re.DOTALL)
        wait_until(lambda: closed(broker, "login-too-large") == 1, what="the count")
        a_client_works(broker, user="ann", password="correct horse")


def test_throttr_peers_without_a_login_send_nothing_that_is_stored(tmp_path: Path) -> None:
    with a_broker(tmp_path, USERS) as broker:
        peer = throttr_half(broker)
        with contextlib.closing(peer), contextlib.suppress(ConnectionError):
            peer.sendall(b"x" * SENT)
            assert read_all(peer) == b""
        wait_until(lambda: closed(broker, "refused") == 1, what="the refusal")
        a_client_works(broker, user="ann", password="correct horse")


def test_silent_half_of_a_login_keeps_no_client_out(tmp_path: Path) -> None:
    """The budget is full of peers that have sent nearly a whole login; clients still log in."""
    with (
        a_broker(tmp_path, "half_open_bytes_max = 1048576\n" + USERS) as broker,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(100):
            peer = stack.enter_context(MqksPeer(url(broker, "mqks")))
            with contextlib.suppress(ConnectionError):
                peer.send_bytes(b"a auth " + b"x" * 60_000)
        wait_until(lambda: closed(broker, "input-limit") >= 80, what="the disconnects")
        slow = stack.enter_context(socket.create_connection(endpoint(broker, "tmqp"), timeout=10))
        slow.sendall(PREAMBLE[:4])
        a_client_works(broker, user="ann", password="correct horse")
        slow.sendall(PREAMBLE[4:])
        assert slow.recv(8) == PREAMBLE
