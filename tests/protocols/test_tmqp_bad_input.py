"""Invalid, lying, greedy and dead peers lose at most their own connection and do not affect other clients.

Each test ends with a look at a client that does nothing wrong: it must be served as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mqcore
from protocols.conversation import (
    ACKNOWLEDGE,
    BAD_REQUEST,
    BROADCAST,
    CHANNEL_INFORMATION,
    CHANNEL_LIST,
    CLIENT_LIST,
    DIRECT,
    EVENT,
    FAILED,
    NOT_FOUND,
    OK,
    PULL,
    PULLED,
    QUEUE,
    RESPONSE,
    ROUND_ROBIN,
    SERVER,
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
from tmqp_peer import ACCEPTED, CREATE_CHANNEL, HELLO, JOIN, PREAMBLE, RawFrame

MIB = 1024 * 1024


@pytest.fixture
def bystander(connect: Connect) -> Iterator[Client]:
    """A client that does nothing wrong, and must get its own message through when the test is over."""
    client = connect("bystander")
    client.create_queue("bystanders", 1)
    client.join("bystanders")
    yield client
    body = random.Random(1).randbytes(1000)
    client.publish("bystanders", 1, body)
    assert client.receive().payload == body


def head(
    kind: int = QUEUE, *, lengths: tuple[int, int, int] = (1, 0, 2), length: bytes = b"\x00", flags: int = 0x10
) -> bytes:
    """The fixed part of a frame with these lengths of id, source and target, and this length of the body."""
    return bytes((kind, flags, *lengths)) + struct.pack("<H", 1) + length


class ServedProcess:
    """A broker in a process of its own, whose memory can be looked at."""

    def __init__(self, process: subprocess.Popen[str], ready: dict[str, str]) -> None:
        self.process = process
        host, _, port = ready["tmqp"].removeprefix("tmqp://").rpartition(":")
        self.address = (host, int(port))
        self.admin_url = ready["admin"]

    def resident_bytes(self) -> int:
        """Memory of the process that is really there."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()


_PROGRAM = """
import json, resource, sys
import mqcore
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
options = json.loads(sys.argv[1])
with mqcore.Broker(listen=["tmqp://127.0.0.1:0"], admin="http://127.0.0.1:0", shards=2, **options) as broker:
    print(json.dumps({"tmqp": broker.listeners[0], "admin": broker.admin_url}), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def start_process() -> Iterator[Callable[..., ServedProcess]]:
    """Starts brokers in processes of their own, with the given options."""
    with contextlib.ExitStack() as stack:

        def start(**options: object) -> ServedProcess:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, json.dumps(options)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.send_signal, signal.SIGKILL)
            assert process.stdout is not None
            return ServedProcess(process, json.loads(process.stdout.readline()))

        yield start


@pytest.fixture
def served_process(start_process: Callable[..., ServedProcess]) -> ServedProcess:
    if not Path("/proc/self/statm").exists():
        pytest.skip("what a process has in memory is read from /proc")
    return start_process()


# --- frames that lie -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "length",
    [
        b"\xff" + b"\xff" * 8,
        b"\xff" + (2**63).to_bytes(8, "little"),
        b"\xff" + (2**63 - 1).to_bytes(8, "little"),
        b"\xff" + (2**32).to_bytes(8, "little"),
        b"\xfe" + b"\xff" * 4,
        b"\xfe" + (64 * MIB + 1).to_bytes(4, "little"),
    ],
    ids=["2^64-1", "2^63", "2^63-1", "2^32", "2^32-1", "64MiB+1"],
)
def test_a_frame_that_announces_more_than_the_limit_closes_its_connection_at_once(
    broker: mqcore.Broker, bystander: Client, connect: Connect, length: bytes
) -> None:
    """Nothing is reserved for it, and no byte of it is waited for."""
    liar = connect("liar")
    liar.socket.sendall(head(length=length))
    assert liar.is_closed_within(5)
    wait_until(lambda: closed_for(broker, "protocol-error") == 1)


@pytest.mark.parametrize(
    "length", [b"\xff" + b"\xff" * 8, b"\xfe" + (65 * 1024).to_bytes(4, "little")], ids=["2^64-1", "65KiB"]
)
def test_a_hello_that_announces_too_much_closes_its_connection_at_once(
    broker: mqcore.Broker, bystander: Client, open_socket: Connect, length: bytes
) -> None:
    """A stranger may make the broker keep far less than a client may."""
    liar = open_socket(broker)
    liar.socket.sendall(PREAMBLE + bytes((0x90, 0x10, 0, 0, 0)) + struct.pack("<H", HELLO) + length)
    assert liar.read(8) == PREAMBLE
    assert liar.receive().content_type == 482
    assert liar.is_closed_within(5)
    wait_until(lambda: closed_for(broker, "login-too-large") == 1)


def test_a_frame_as_large_as_the_limit_is_delivered_and_one_larger_is_not(
    start_broker: StartBroker, connect: Connect
) -> None:
    broker = start_broker(frame_bytes_max=100_000)
    producer, consumer = connect("prod", to=broker), connect("c1", to=broker)
    producer.create_queue()
    consumer.join()
    frame = RawFrame(kind=QUEUE, id=b"m", target=b"ch", content_type=1)
    # Fixed part, four bytes of length, id and target.
    room = 100_000 - 8 - 4 - 1 - 2
    frame.payload = bytes(room)
    producer.send(frame)
    assert len(consumer.receive().payload) == room
    frame.payload = bytes(room + 1)
    with contextlib.suppress(ConnectionError):
        producer.send(frame)
    assert producer.is_closed_within(5)
    wait_until(lambda: closed_for(broker, "protocol-error") == 1)
    assert consumer.lives()


def test_announced_sizes_reserve_no_memory(served_process: ServedProcess) -> None:
    """Two hundred peers announce 64 MiB each, and send one KiB."""
    before = served_process.resident_bytes()
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            liar = stack.enter_context(Client(*served_process.address))
            assert liar.hello().content_type == ACCEPTED
            liar.socket.sendall(head(length=b"\xfe" + (64 * MIB - 100).to_bytes(4, "little")) + b"mch" + bytes(1024))
        witness = stack.enter_context(Client(*served_process.address))
        witness.hello()
        assert len(witness.json(CLIENT_LIST)) == 201
        assert served_process.resident_bytes() - before < 16 * MIB


@pytest.mark.parametrize("lengths", [(255, 255, 255), (255, 0, 0), (0, 255, 0), (0, 0, 255)])
def test_names_that_are_announced_and_do_not_come_keep_only_their_sender_waiting(
    bystander: Client, connect: Connect, lengths: tuple[int, int, int]
) -> None:
    """The broker reads the following bytes as the names, and then as a frame again."""
    confused = connect("confused")
    confused.socket.sendall(head(0x3F, lengths=lengths) + bytes(100))
    confused.close()
    assert bystander.lives()


@pytest.mark.parametrize("announced", [1, 100, 65535])
def test_header_text_that_is_announced_and_does_not_come_keeps_only_its_sender_waiting(
    bystander: Client, connect: Connect, announced: int
) -> None:
    confused = connect("confused")
    confused.socket.sendall(head(flags=0x30) + b"mch" + struct.pack("<H", announced))
    assert bystander.lives()
    # When it comes after all, the conversation continues.
    confused.socket.sendall(b"x" * announced)
    assert confused.lives()


def test_header_text_beyond_the_limit_closes_its_connection(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker(header_bytes_max=1000)
    client, other = connect("cli", to=broker), connect("other", to=broker)
    client.create_queue()
    client.publish(body=b"x", headers=[("K", "v" * 900)])
    assert client.stored() == (0, 1)
    client.publish(body=b"x", headers=[("K", "v" * 1000)])
    assert client.is_closed_within(5)
    wait_until(lambda: closed_for(broker, "protocol-error") == 1)
    assert other.stored() == (0, 1)


# --- frames that mean nothing ----------------------------------------------------------------------------------

KNOWN_KINDS = {0x00, 0x08, 0x09, 0x0A, SERVER, QUEUE, DIRECT, ACKNOWLEDGE, RESPONSE, PULL, EVENT, 0x17}


def test_frames_of_unknown_types_are_ignored_and_counted(
    broker: mqcore.Broker, bystander: Client, connect: Connect, eventually: Eventually
) -> None:
    client = connect("cli")
    unknown = [kind for kind in range(64) if kind not in KNOWN_KINDS]
    for kind in unknown:
        client.send(RawFrame(kind=kind, id=b"u", target=b"ch", pending_response=True, pending_acknowledge=True))
    assert client.lives()
    assert client.arrived() == []
    client.close()
    ignored = 'mqcore_frames_ignored_total{protocol="tmqp"}'
    eventually(lambda: metrics(broker)[ignored] == len(unknown))


@pytest.mark.parametrize("operation", [0, 1, 100, 102, 106, 199, 206, 600, 609, 614, 642, 650, 656, 664, 65535])
def test_unknown_operations_are_refused_to_who_waits(bystander: Client, connect: Connect, operation: int) -> None:
    client = connect("cli")
    answer = client.ask(operation, "ch", headers={"Queue-Id": "1"})
    assert answer.content_type >= 400
    assert (answer.payload, bool(answer.header("Reason"))) == (b"", True)
    client.send(RawFrame(kind=SERVER, id=b"quiet", target=b"ch", content_type=operation))
    assert client.arrived() == []


def test_a_second_hello_changes_nothing(broker: mqcore.Broker, bystander: Client, connect: Connect) -> None:
    client = connect("cli")
    client.send(RawFrame(kind=SERVER, id=b"h", content_type=HELLO, payload=b"CONNECT /\r\nClient-Id: other\r\n"))
    assert sorted(entry["Id"] for entry in client.json(CLIENT_LIST)) == ["bystander", "cli"]


@pytest.mark.parametrize(
    "body", [b"{", b"[1,2]", b'"text"', b"\x00", b'{"ClientLimit":-1}', b'{"AllowedQueues":[70000]}', b"{}{}", b"nul"]
)
def test_bad_json_is_refused_and_the_connection_stays(bystander: Client, connect: Connect, body: bytes) -> None:
    client = connect("cli")
    assert client.ask(CREATE_CHANNEL, "ch", body=body).content_type == BAD_REQUEST
    assert client.ask(CHANNEL_INFORMATION, "ch").content_type == NOT_FOUND


def test_options_larger_than_any_options_are_refused(bystander: Client, connect: Connect) -> None:
    client = connect("cli")
    body = b'{"Tag":"' + b"t" * (2 * MIB) + b'"}'
    assert client.ask(CREATE_CHANNEL, "ch", body=body).content_type == BAD_REQUEST


def test_refusals_are_counted(broker: mqcore.Broker, bystander: Client, connect: Connect) -> None:
    client = connect("cli")
    before = metrics(broker)["mqcore_commands_rejected_total"]
    client.ask(JOIN, "nope")
    client.publish("nope", 1, b"x")
    client.send_direct("nobody", b"x", pending_response=True)
    for _ in range(2):
        assert client.receive().content_type == NOT_FOUND
    assert metrics(broker)["mqcore_commands_rejected_total"] == before + 3


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_after_the_handshake_harm_only_their_sender(
    bystander: Client, connect: Connect, seed: int
) -> None:
    """Half of them pure noise, half of them frames with a few bytes changed."""
    dice = random.Random(seed)
    noisy = connect(f"noisy-{seed}")
    if seed % 2:
        data = dice.randbytes(20_000)
    else:
        frames = bytearray(b"".join(vector(f"V{number:02}") for number in range(9, 44)))
        for _ in range(40):
            frames[dice.randrange(len(frames))] = dice.randrange(256)
        data = bytes(frames)
    with contextlib.suppress(ConnectionError):
        noisy.socket.sendall(data)
    assert bystander.lives()


@pytest.mark.parametrize("seed", range(10))
def test_random_bytes_instead_of_a_handshake_harm_only_their_sender(
    broker: mqcore.Broker, bystander: Client, open_socket: Connect, seed: int
) -> None:
    noisy = open_socket(broker)
    with contextlib.suppress(ConnectionError):
        noisy.socket.sendall(random.Random(seed).randbytes(5000))
    assert noisy.is_closed_within(5)
    wait_until(lambda: closed_for(broker, "protocol-error") == 1)


# --- names that lie ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SERVER, QUEUE, DIRECT, ACKNOWLEDGE, RESPONSE, PULL, EVENT, 0x17])
def test_a_foreign_source_closes_the_connection_whatever_the_frame(
    broker: mqcore.Broker, bystander: Client, connect: Connect, kind: int
) -> None:
    forger = connect("forger")
    forger.send(
        RawFrame(kind=kind, id=b"m", source=b"bystander", target=b"bystander", content_type=1, payload=b"forged")
    )
    assert forger.is_closed_within(5)
    wait_until(lambda: closed_for(broker, "protocol-error") == 1)
    assert bystander.arrived("bystanders") == []


@pytest.mark.parametrize("name", ["Client-Id", "Client-Name", "Client-Type"])
@pytest.mark.parametrize("value", [b"n" * 256, b"n" * 60_000, b"a\x00b", b"a\x1bb"], ids=["256", "60000", "nul", "esc"])
def test_a_client_with_an_impossible_name_is_refused(
    broker: mqcore.Broker, bystander: Client, open_socket: Connect, name: str, value: bytes
) -> None:
    peer = open_socket(broker)
    body = b"CONNECT /\r\n" + name.encode() + b": " + value + b"\r\n"
    hello = RawFrame(kind=SERVER, id=b"h", content_type=HELLO, payload=body)
    peer.socket.sendall(PREAMBLE + hello.encode())
    assert peer.read(8) == PREAMBLE
    answer = peer.receive()
    assert (answer.kind, answer.content_type) == (SERVER, BAD_REQUEST)
    assert answer.payload
    assert peer.is_closed_within(5)


def test_names_of_255_bytes_work_everywhere(bystander: Client, connect: Connect) -> None:
    long_id, long_name = "i" * 255, "n" * 255
    client = connect(long_id, Client_Name=long_name, Client_Type="t" * 255)
    other = connect("other")
    message = other.send_direct(f"@name:{'n' * 249}", pending_response=True)
    assert other.answer(message).content_type == NOT_FOUND
    other.send_direct(long_id, b"x")
    assert client.receive().payload == b"x"
    client.send_direct("other", b"y")
    assert other.receive().source == long_id.encode()


@pytest.mark.parametrize("message_id", [b"a\r\nNo-Content: End", b"\r\n", b"\n", b"\r", b"a\x00b"])
def test_an_id_cannot_put_a_line_into_headers_of_answers(
    bystander: Client, connect: Connect, message_id: bytes
) -> None:
    """Pulled messages repeat the request's id in a header: there it must not become a line of its own."""
    client = connect("cli")
    client.create_queue("ch", 1, Status=PULLED)
    client.join()
    client.publish(body=b"x", message_id=message_id)
    client.send(RawFrame(kind=PULL, id=message_id, target=b"ch", content_type=1, headers=[("Count", "1")]))
    pulled, end = client.receive(), client.receive()
    assert (pulled.id, pulled.payload) == (message_id, b"x")
    assert pulled.header("No-Content") is None
    assert end.header("No-Content") == "End"
    assert {key for key, _ in pulled.headers} <= {"Request-Id", "Count", "Index"}


def test_a_reason_cannot_put_a_line_into_headers(bystander: Client, connect: Connect) -> None:
    """Reasons of refusals repeat what was asked for; a producer sees them in a header."""
    client = connect("cli")
    frame = RawFrame(
        kind=QUEUE, id=b"m", target=b"a\r\nInjected: yes", content_type=1, pending_acknowledge=True, payload=b"x"
    )
    client.send(frame)
    client.send(RawFrame(kind=SERVER, id=b"s", target=frame.target, content_type=JOIN, pending_acknowledge=True))
    for expected in (RESPONSE, ACKNOWLEDGE, ACKNOWLEDGE):
        answer = client.receive()
        assert answer.kind == expected
        assert answer.header("Injected") is None
        assert len(answer.headers) == 1


@pytest.mark.parametrize("reason", [b"x\rInjected: yes", b"x\nInjected: yes", b"\x00\x01", b"\xff\xfe", b"r" * 60_000])
def test_a_consumers_reason_reaches_the_producer_as_one_line(
    bystander: Client, connect: Connect, reason: bytes
) -> None:
    producer, consumer = connect("prod"), connect("c1")
    producer.create_queue("ch", 1, RequestAcknowledge=True, MessageDeliveryHandler="ack-on-consume", PutBackLimit=0)
    consumer.join()
    message = producer.publish(body=b"x", confirm=True)
    consumer.receive()
    text = b"Nack-Reason:" + reason + b"\r\n"
    consumer.socket.sendall(
        head(ACKNOWLEDGE, lengths=(len(message), 0, 2), flags=0x30)
        + message
        + b"ch"
        + struct.pack("<H", len(text))
        + text
    )
    length = 0
    first = producer.read(8)
    assert first[0] & 0x3F == ACKNOWLEDGE
    assert first[1] & 0x20
    producer.read(sum(first[2:5]))
    length = int.from_bytes(producer.read(2), "little")
    lines = producer.read(length).split(b"\r\n")
    assert [line.partition(b":")[0] for line in lines if line] == [b"Nack-Reason"]


def test_events_cannot_be_forged_through_names(bystander: Client, connect: Connect) -> None:
    """A name with quotes stays inside its JSON text."""
    bystander.subscribe("ClientConnected")
    connect('x","Type":"admin', Client_Name='"}{"')
    event = bystander.receive()
    assert json.loads(event.payload) == {"Id": 'x","Type":"admin', "Name": '"}{"', "Type": None, "Node": None}


def test_a_thousand_copies_are_not_made(bystander: Client, connect: Connect) -> None:
    """More than a fixed number of CC headers, or more bytes than a frame may have, are refused with one answer."""
    client = connect("cli")
    client.create_queue("ch", 1, Status=PULLED)
    client.create_queue("copies", 1, Status=PULLED)
    client.publish(body=b"x", headers=[("CC", "copies")] * 1000)
    refused = client.receive()
    assert (refused.kind, refused.content_type) == (RESPONSE, 482)
    assert client.arrived() == []
    assert client.stored("copies") == (0, 64)


# --- peers that are slow, or never end -------------------------------------------------------------------------


@pytest.mark.timeout(180)
def test_ten_thousand_half_open_connections_keep_no_client_out_and_cost_little_each(
    start_process: Callable[..., ServedProcess],
) -> None:
    """As many as the system lets one process open; each in the middle of its Hello."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("what a process has in memory is read from /proc")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(10_000, hard - 300)
    served = start_process(handshake_timeout=60.0)
    before = served.resident_bytes()
    half_hello = PREAMBLE + RawFrame(kind=SERVER, content_type=HELLO, payload=b"CONNECT /\r\n").encode()[:-4]
    sockets = []
    try:
        for _ in range(count):
            one = socket.create_connection(served.address, timeout=10)
            sockets.append(one)
            one.sendall(half_hello)
        for one in sockets:
            assert one.recv(8) == PREAMBLE
        with Client(*served.address) as client:
            assert client.hello().content_type == ACCEPTED
            assert len(client.json(CLIENT_LIST)) == 1
        assert served.resident_bytes() - before < count * 12 * 1024
    finally:
        for one in sockets:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_strangers_than_the_limit_push_out_the_oldest(start_broker: StartBroker, open_socket: Connect) -> None:
    broker = start_broker(half_open_max=10)
    strangers = [open_socket(broker) for _ in range(15)]
    for stranger in strangers[:5]:
        assert stranger.is_closed_within(5)
    for stranger in strangers[5:]:
        assert stranger.hello().content_type == ACCEPTED
    wait_until(lambda: closed_for(broker, "half-open-limit") == 5)


def test_connections_over_the_limit_are_rejected_and_counted(
    start_broker: StartBroker, open_socket: Connect, eventually: Eventually
) -> None:
    broker = start_broker(connections_max=3)
    clients = [open_socket(broker) for _ in range(3)]
    for client in clients:
        client.hello()
    assert open_socket(broker).is_closed_within(5)
    assert metrics(broker)['mqcore_connections_rejected_total{protocol="tmqp"}'] == 1
    clients.pop().close()

    def let_in() -> bool:
        with contextlib.suppress(ConnectionError):
            return open_socket(broker).hello().content_type == ACCEPTED
        return False

    eventually(let_in)
    assert all(client.lives() for client in clients)


def never_reading(broker: mqcore.Broker, connect: Connect) -> Client:
    """A client of which the system buffers little, so that what it does not read waits in the broker."""
    client = connect("deaf", to=broker)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return client


def test_a_round_robin_consumer_that_never_reads_is_closed_and_what_it_had_goes_to_others(
    start_broker: StartBroker, connect: Connect, eventually: Eventually
) -> None:
    broker = start_broker(output_bytes_max=256 * 1024, slow_consumer_timeout=2.0)
    producer, reader = connect("prod", to=broker), connect("reader", to=broker)
    deaf = never_reading(broker, connect)
    producer.create_queue("ch", 1, Status=ROUND_ROBIN, RequestAcknowledge=True, AcknowledgeTimeout=60_000)
    deaf.join()
    reader.join()
    bodies = {b"%06d" % number + bytes(10_000) for number in range(1500)}
    for body in bodies:
        producer.publish(body=body)
    received = set()
    while len(received) < len(bodies):
        delivery = reader.receive()
        received.add(delivery.payload)
        reader.acknowledge(delivery)
    assert received == bodies
    eventually(lambda: [client.id for client in broker.stats().clients] == ["prod", "reader"])
    wait_until(lambda: closed_for(broker, "slow-consumer") == 1)
    reader.arrived()
    information = producer.queue()
    assert (information["InFlight"], information["Messages"]) == (0, 0)


def test_a_broadcast_passes_a_consumer_that_never_reads_by_and_counts_what_it_missed(
    start_broker: StartBroker, connect: Connect, eventually: Eventually
) -> None:
    broker = start_broker(output_bytes_max=256 * 1024, slow_consumer_timeout=2.0)
    producer, reader = connect("prod", to=broker), connect("reader", to=broker)
    deaf = never_reading(broker, connect)
    producer.create_queue("ch", 1, Status=BROADCAST)
    deaf.join()
    reader.join()
    for number in range(1500):
        producer.publish(body=b"%06d" % number + bytes(10_000))
        assert reader.receive().payload.startswith(b"%06d" % number)
    assert producer.queue()["DroppedMessages"]["slow"] > 0
    assert metrics(broker)['mqcore_messages_dropped_total{reason="slow"}'] > 0
    eventually(lambda: closed_for(broker, "slow-consumer") == 1)
    assert reader.lives()


def test_a_consumer_that_never_reads_costs_no_more_memory_than_its_buffer(
    start_process: Callable[..., ServedProcess],
) -> None:
    """A hundred MiB are broadcast past it."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("what a process has in memory is read from /proc")
    served = start_process(output_bytes_max=4 * MIB, slow_consumer_timeout=60.0)
    with Client(*served.address) as producer, Client(*served.address) as deaf, Client(*served.address) as reader:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for client in (producer, deaf, reader):
            client.hello()
        producer.create_queue("ch", 1, Status=BROADCAST)
        deaf.join()
        reader.join()
        body = bytes(100_000)
        before = served.resident_bytes()
        most = 0
        for _ in range(1000):
            producer.publish(body=body)
            assert reader.receive().payload == body
            most = max(most, served.resident_bytes() - before)
        assert most < 32 * MIB
        assert producer.queue()["DroppedMessages"]["slow"] > 500


def test_a_peer_that_asks_and_never_reads_is_closed(start_broker: StartBroker, connect: Connect) -> None:
    """Answers pile up to the limit of its buffer and not beyond."""
    broker = start_broker(output_bytes_max=64 * 1024, slow_consumer_timeout=2.0)
    other = connect("other", to=broker)
    greedy = never_reading(broker, connect)
    greedy.socket.setblocking(False)
    # Long answers: with short ones the peer's requests fill the buffers of the system before its answers do.
    for number in range(100):
        other.create_channel(f"c{number}")
    request = RawFrame(kind=SERVER, id=b"q", content_type=CHANNEL_LIST, pending_response=True).encode() * 1000
    deadline = time.monotonic() + 20
    with contextlib.suppress(ConnectionError):
        while True:
            assert time.monotonic() < deadline, "it is still served"
            _, writable, _ = select.select([], [greedy.socket], [], 0.1)
            if writable:
                with contextlib.suppress(BlockingIOError):
                    greedy.socket.send(request)
            elif closed_for(broker, "slow-consumer"):
                break
    wait_until(lambda: closed_for(broker, "slow-consumer") == 1)
    assert other.lives()


def test_writer_of_single_bytes_does_not_delay_others(bystander: Client, connect: Connect) -> None:
    slow = connect("slow")
    slow.create_queue()
    frame = RawFrame(kind=QUEUE, id=b"m", target=b"ch", content_type=1, payload=b"x" * 50).encode()
    for byte in frame:
        slow.socket.sendall(bytes((byte,)))
        assert bystander.lives()
    assert slow.stored() == (0, 1)


def test_a_thousand_connections_that_are_reset_leave_nothing(
    broker: mqcore.Broker, bystander: Client, eventually: Eventually
) -> None:
    for number in range(1000):
        with socket.create_connection(address(broker), timeout=10) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.sendall(PREAMBLE[: number % 9])
    eventually(lambda: metrics(broker)['mqcore_connections{protocol="tmqp",state="half-open"}'] == 0)
    assert [client.id for client in broker.stats().clients] == ["bystander"]


def test_frames_behind_terminate_are_not_obeyed(bystander: Client, connect: Connect) -> None:
    client = connect("going")
    create = RawFrame(kind=SERVER, id=b"c", target=b"late", content_type=CREATE_CHANNEL).encode()
    client.socket.sendall(vector("V05") + create)
    assert client.is_closed_within(5)
    assert bystander.ask(CHANNEL_INFORMATION, "late").content_type == NOT_FOUND


def test_a_connection_that_is_open_is_not_closed_for_the_errors_of_the_protocol_it_survives(
    broker: mqcore.Broker, bystander: Client, connect: Connect
) -> None:
    """Refusals of all kinds, one after the other, on one connection."""
    client = connect("cli")
    assert client.ask(JOIN, "nope").content_type == NOT_FOUND
    assert client.subscribe("Nothing") == FAILED
    assert client.pull("nope", 1, Count=1) == ([], "No-Channel")
    assert client.ask(CREATE_CHANNEL, "a b").content_type == BAD_REQUEST
    assert client.ask(9999).content_type == BAD_REQUEST
    assert client.ask(CREATE_CHANNEL, "fine").content_type == OK
    assert closed_for(broker, "protocol-error") == 0
