"""How connections begin, stay and end: preamble, Hello, keep-alive, Terminate, and the list of clients."""

from __future__ import annotations

import socket

import pytest

import mqcore
from protocols.conversation import (
    CLIENT_LIST,
    OK,
    Client,
    Connect,
    Eventually,
    StartBroker,
    address,
    closed_for,
    metrics,
    vector,
)
from served import wait_until
from tmqp_peer import ACCEPTED, HELLO, PING_FRAME, PONG_FRAME, PREAMBLE, SERVER, PeerClosed, RawFrame


def hello(body: bytes, **fields: object) -> bytes:
    """The bytes of a Hello frame with this body."""
    values: dict[str, object] = {"first_acquirer": True, "content_type": HELLO, "id": b"id-001", "payload": body}
    return RawFrame(kind=SERVER, **values | fields).encode()  # type: ignore[arg-type]


def client_ids(broker: mqcore.Broker) -> list[str]:
    return sorted(client.id for client in broker.stats().clients)


# --- handshake -------------------------------------------------------------------------------------------


def test_server_knows_the_clients_hello_properties(broker: mqcore.Broker, connect: Connect) -> None:
    """Twino case 1, with a property that the server does not know."""
    connect("cli", Client_Name="nm", Client_Type="ty", Client_Token="tok", Colour="red")
    [client] = broker.stats().clients
    assert (client.id, client.name, client.kind) == ("cli", "nm", "ty")


def test_accepted_frame_matches_the_bytes_of_the_original(broker: mqcore.Broker, open_socket: Connect) -> None:
    """Vectors V06 and V07, V07 but for the message id, of which a live one has 32 hexadecimal digits."""
    peer = open_socket(broker)
    peer.socket.sendall(vector("V01") + vector("V06"))
    assert peer.read(8) == vector("V01")
    accepted = peer.receive()
    assert len(accepted.id) == 32
    int(accepted.id, 16)
    accepted.id = b"acc"
    assert accepted.encode() == vector("V07")
    assert peer.raw[8:40] != peer.raw[9:41]


def test_the_preamble_is_echoed_before_hello(broker: mqcore.Broker, open_socket: Connect) -> None:
    """A client of the document may wait for the echo before it introduces itself."""
    peer = open_socket(broker)
    peer.socket.sendall(PREAMBLE)
    assert peer.read(8) == PREAMBLE
    peer.socket.sendall(hello(b"CONNECT /\r\n"))
    assert peer.receive().content_type == ACCEPTED


def test_the_older_preamble_is_echoed_as_it_came(broker: mqcore.Broker, open_socket: Connect) -> None:
    """Vector V02."""
    peer = open_socket(broker)
    peer.socket.sendall(vector("V02") + hello(b"CONNECT /\r\n"))
    assert peer.read(8) == vector("V02")
    assert peer.receive().content_type == ACCEPTED


@pytest.mark.parametrize("cut", [1, 4, 7, 8, 9, 12, 15, 17, 20, 40])
def test_preamble_and_hello_may_come_in_pieces(broker: mqcore.Broker, open_socket: Connect, cut: int) -> None:
    """Twino case 113."""
    data = PREAMBLE + hello(b"CONNECT /\r\nClient-Id: pieces\r\n")
    peer = open_socket(broker)
    peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.socket.sendall(data[:cut])
    if cut >= 8:
        # The echo proves that the first piece was read alone.
        assert peer.read(8) == PREAMBLE
    peer.socket.sendall(data[cut:])
    if cut < 8:
        assert peer.read(8) == PREAMBLE
    assert peer.receive().target == b"pieces"


@pytest.mark.parametrize(
    "body",
    [
        b"CONNECT /path\r\nClient-Id: cli\r\n",
        b"tmq://remote-host CONNECT\r\nClient-Id: cli\r\n",
        b"CONNECT /\r\nclient-id:cli\r\n",
        b"CONNECT /\r\nno colon here\r\nClient-Id:   cli  \r\n",
        b"CONNECT /\r\nClient-Id: cli",
    ],
    ids=["program", "document", "lower-case-without-space", "a-line-without-colon", "last-line-without-end"],
)
def test_hello_is_read_in_both_orders_of_its_first_line(
    broker: mqcore.Broker, open_socket: Connect, body: bytes
) -> None:
    """Twino case 114."""
    peer = open_socket(broker)
    peer.socket.sendall(PREAMBLE + hello(body))
    assert peer.read(8) == PREAMBLE
    accepted = peer.receive()
    assert (accepted.content_type, accepted.target) == (ACCEPTED, b"cli")


@pytest.mark.parametrize("properties", [{}, {"Client_Id": ""}])
def test_a_client_without_an_id_gets_one_of_32_digits(connect: Connect, properties: dict[str, str]) -> None:
    one, other = connect(**properties), connect(**properties)
    for client in (one, other):
        assert len(client.client_id) == 32
        int(client.client_id, 16)
    assert one.client_id != other.client_id


@pytest.mark.parametrize("line", [b"Client-Id:taken\r\n", b"Client-Id: taken \r\n"])
def test_a_second_client_of_the_same_id_is_refused_as_busy(
    broker: mqcore.Broker, connect: Connect, open_socket: Connect, line: bytes
) -> None:
    """Twino case 107, with and without the space that let duplicates through in the original."""
    first = connect("taken")
    second = open_socket(broker)
    second.socket.sendall(PREAMBLE + hello(b"CONNECT /\r\n" + line))
    assert second.read(8) == PREAMBLE
    answer = second.receive()
    assert (answer.kind, answer.content_type) == (SERVER, 503)
    assert b"taken" in answer.payload
    assert second.is_closed_within(5)
    assert first.lives()
    assert client_ids(broker) == ["taken"]


def test_an_id_is_free_again_when_its_client_has_left(
    broker: mqcore.Broker, connect: Connect, eventually: Eventually
) -> None:
    connect("again").close()
    eventually(lambda: client_ids(broker) == [])
    connect("again")


def test_clients_beyond_the_limit_are_refused_as_busy(start_broker: StartBroker, open_socket: Connect) -> None:
    broker = start_broker(client_limit=2)
    clients = [open_socket(broker) for _ in range(3)]
    codes = [client.hello().content_type for client in clients]
    assert codes == [ACCEPTED, ACCEPTED, 503]
    assert clients[2].is_closed_within(5)
    assert clients[0].lives()
    assert clients[1].lives()


@pytest.mark.parametrize(
    "first_frame",
    [
        vector("V10"),
        PING_FRAME,
        vector("V56"),
        hello(b"CONNECT /\r\n", hops=0),
    ],
    ids=["join", "ping", "later-frame-layout", "hello-without-hops"],
)
def test_other_frames_than_hello_create_no_client(
    broker: mqcore.Broker, open_socket: Connect, first_frame: bytes
) -> None:
    """Closed after the echo, at once."""
    peer = open_socket(broker)
    peer.socket.sendall(PREAMBLE + first_frame)
    assert peer.read(8) == PREAMBLE
    assert peer.is_closed_within(5)
    assert client_ids(broker) == []
    wait_until(lambda: closed_for(broker, "protocol-error") == 1)


def test_a_hello_without_a_body_says_nothing_and_is_a_hello(broker: mqcore.Broker, open_socket: Connect) -> None:
    peer = open_socket(broker)
    peer.socket.sendall(PREAMBLE + hello(b""))
    assert peer.read(8) == PREAMBLE
    accepted = peer.receive()
    assert (accepted.content_type, len(accepted.target)) == (ACCEPTED, 32)


def test_a_hello_that_names_a_property_twice_is_refused(broker: mqcore.Broker, open_socket: Connect) -> None:
    peer = open_socket(broker)
    peer.socket.sendall(PREAMBLE + hello(b"CONNECT /\r\nClient-Id: a\r\nclient-id: b\r\n"))
    assert peer.read(8) == PREAMBLE
    answer = peer.receive()
    assert (answer.kind, answer.content_type) == (SERVER, 400)
    assert peer.is_closed_within(5)


# --- silence ---------------------------------------------------------------------------------------------


def test_silent_sockets_are_closed_in_time_and_do_not_count_as_clients(
    start_broker: StartBroker, open_socket: Connect
) -> None:
    """Twino case 2."""
    broker = start_broker(handshake_timeout=0.5)
    silent = [open_socket(broker) for _ in range(50)]
    for peer in silent:
        assert peer.is_closed_within(5)
    assert client_ids(broker) == []
    wait_until(lambda: closed_for(broker, "handshake-timeout") == 50)


@pytest.mark.parametrize("said", [PREAMBLE[:3], PREAMBLE, PREAMBLE + hello(b"CONNECT /\r\n")[:-3]])
def test_a_handshake_that_stops_half_way_is_closed_in_time(
    start_broker: StartBroker, open_socket: Connect, said: bytes
) -> None:
    broker = start_broker(handshake_timeout=0.3)
    peer = open_socket(broker)
    peer.socket.sendall(said)
    assert peer.is_closed_within(5)
    wait_until(lambda: closed_for(broker, "handshake-timeout") == 1)


def test_an_idle_client_that_answers_pings_stays(start_broker: StartBroker, connect: Connect) -> None:
    """Twino case 4: ten intervals long, and the ping has the original's bytes."""
    broker = start_broker(ping_interval=0.1, pong_timeout=2.0)
    client = connect("idle", to=broker)
    for _ in range(10):
        assert client.read(8) == vector("V03")
        client.socket.sendall(PONG_FRAME)
    assert client.lives()
    assert closed_for(broker, "ping-timeout") == 0


def test_a_client_that_answers_no_ping_is_closed_and_left_once(start_broker: StartBroker, connect: Connect) -> None:
    """Twino case 5."""
    broker = start_broker(ping_interval=0.2, pong_timeout=1.0)
    watcher = connect("watcher", to=broker)
    assert watcher.subscribe("ClientDisconnected") == OK
    mute = connect("mute", to=broker)
    # The watcher answers its own pings while it waits.
    event = watcher.receive()
    assert b'"Id":"mute"' in event.payload
    assert mute.read(8) == PING_FRAME
    assert mute.is_closed_within(5)
    assert watcher.arrived() == []
    wait_until(lambda: closed_for(broker, "ping-timeout") == 1)


def test_clients_that_talk_are_not_pinged(start_broker: StartBroker, connect: Connect) -> None:
    """Twino case 108: one client talks more often than the interval, one less often; both stay."""
    broker = start_broker(ping_interval=0.4, pong_timeout=2.0)
    busy, idle = connect("busy", to=broker), connect("idle", to=broker)
    for _ in range(3):
        assert idle.read(8) == PING_FRAME
        busy.ask(CLIENT_LIST)
        # Any frame counts as a heartbeat, not only a PONG.
        idle.socket.sendall(PING_FRAME)
        assert idle.read(8) == PONG_FRAME
    assert busy.lives()
    assert idle.lives()


def test_slow_writer_stays_connected_while_bytes_arrive(start_broker: StartBroker, connect: Connect) -> None:
    """Twino cases 103 and 108: a frame that takes many intervals, a byte at a time."""
    broker = start_broker(ping_interval=0.2, pong_timeout=1.0)
    client = connect("slow", to=broker)
    watch = connect("watch", to=broker)
    frame = RawFrame(kind=SERVER, id=b"L", content_type=CLIENT_LIST, pending_response=True).encode()
    for byte in frame:
        client.socket.sendall(bytes((byte,)))
        # A round trip and a ping of the other client: time passes, and the broker has read the byte.
        assert watch.read(8) == PING_FRAME
        watch.socket.sendall(PONG_FRAME)
    assert client.receive().id == b"L"


# --- keep alive frames -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ping",
    [
        vector("V03"),
        bytes.fromhex("0910000000000000"),
        bytes.fromhex("8930000000000000"),
        bytes.fromhex("c9ff000000000000"),
    ],
    ids=["constant", "plain", "header-bit", "high-priority"],
)
def test_ping_is_answered_with_pong_whatever_its_flags(connect: Connect, ping: bytes) -> None:
    """Twino case 111."""
    client = connect("cli")
    client.socket.sendall(ping)
    assert client.read(8) == vector("V04")


def test_a_ping_without_hops_is_dropped(connect: Connect) -> None:
    client = connect("cli")
    client.socket.sendall(bytes.fromhex("0900000000000000") + PING_FRAME)
    assert client.read(8) == PONG_FRAME
    client.socket.sendall(PING_FRAME)
    assert client.read(8) == PONG_FRAME
    assert client.arrived() == []


def test_unsolicited_pong_is_harmless(connect: Connect) -> None:
    client = connect("cli")
    client.socket.sendall(PONG_FRAME * 3)
    assert client.lives()


# --- end -------------------------------------------------------------------------------------------------


def test_terminate_closes_at_once_and_without_an_answer(
    broker: mqcore.Broker, connect: Connect, eventually: Eventually
) -> None:
    client, other = connect("going"), connect("staying")
    client.socket.sendall(vector("V05") + vector("V03"))
    with pytest.raises((PeerClosed, ConnectionResetError)):
        client.read(1)
    eventually(lambda: client_ids(broker) == ["staying"])
    assert other.lives()


def test_a_broker_that_stops_says_terminate(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker()
    client = connect("cli", to=broker)
    broker.stop(grace=1.0)
    assert client.read(8) == vector("V05")
    assert client.is_closed_within(5)


def test_an_http_request_is_closed_and_counted(broker: mqcore.Broker, open_socket: Connect, producer: Client) -> None:
    """Twino case 3."""
    peer = open_socket(broker)
    peer.socket.sendall(b"GET /chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
    with pytest.raises((PeerClosed, ConnectionResetError)):
        peer.read(1)
    wait_until(lambda: closed_for(broker, "protocol-error") == 1)
    assert producer.lives()


@pytest.mark.parametrize(("rounds", "at_once"), [(10, 20), (20, 50)])
def test_clients_that_come_and_go_all_come_and_all_go(
    broker: mqcore.Broker,
    open_socket: Connect,
    eventually: Eventually,
    rounds: int,
    at_once: int,
) -> None:
    """Twino case 6."""
    for _ in range(rounds):
        clients = [Client(*address(broker)) for _ in range(at_once)]
        try:
            for client in clients:
                assert client.hello().content_type == ACCEPTED
        finally:
            for client in clients:
                client.close()
    eventually(lambda: client_ids(broker) == [])
    assert metrics(broker)['mqcore_connections_accepted_total{protocol="tmqp"}'] == rounds * at_once
    eventually(lambda: metrics(broker)['mqcore_connections{protocol="tmqp",state="client"}'] == 0)


# --- client list -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [631, 302])
def test_clients_are_listed_by_type(connect: Connect, operation: int) -> None:
    """Twino case 7: no filter, the exact type, and with a star; both numbers of the operation."""
    connect("w1", Client_Type="worker", Client_Name="one")
    connect("w2", Client_Type="worker-eu")
    client = connect("a1", Client_Type="admin")

    def listed(kind: str) -> list[str]:
        return [entry["Id"] for entry in client.json(operation, kind)]

    assert listed("") == ["w1", "w2", "a1"]
    assert listed("worker") == ["w1"]
    assert listed("worker*") == ["w1", "w2"]
    assert listed("*OR*") == ["w1", "w2"]
    assert listed("*eu") == ["w2"]
    assert listed("nobody") == []


def test_a_listed_client_has_the_members_of_the_original_in_their_order(connect: Connect) -> None:
    client = connect("cli", Client_Name="nm", Client_Type="ty")
    [entry] = client.json(CLIENT_LIST)
    assert list(entry) == ["Id", "Name", "Type", "Online", "IsAuthenticated"]
    assert (entry["Id"], entry["Name"], entry["Type"], entry["IsAuthenticated"]) == ("cli", "nm", "ty", False)
    assert 0 <= entry["Online"] < 60_000


@pytest.mark.parametrize("operation", [621, 301])
def test_there_are_no_nodes_yet(connect: Connect, operation: int) -> None:
    assert connect().do(operation) == b"[]"


def test_answers_match_the_bytes_of_the_original(connect: Connect) -> None:
    """Vector V19 asks for `ty*`."""
    client = connect("cli", Client_Type="tyrant")
    client.socket.sendall(vector("V19"))
    answer = client.receive()
    assert client.raw.startswith(bytes.fromhex("141006000300 00".replace(" ", "")))
    assert (answer.id, answer.target, answer.source) == (b"id-020", b"cli", b"")
