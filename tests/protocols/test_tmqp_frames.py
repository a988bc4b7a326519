"""Bodies, headers, names and hops pass through the broker byte by byte, however frames arrive."""

from __future__ import annotations

import random

import pytest

import mqcore
from protocols.conversation import (
    DIRECT,
    OK,
    QUEUE,
    RESPONSE,
    SERVER,
    Client,
    Connect,
    Eventually,
    closed_for,
    metrics,
    vector,
)
from served import wait_until
from tmqp_peer import CREATE_CHANNEL, PING_FRAME, PeerClosed, RawFrame


def test_bodies_of_all_length_forms_arrive_whole(producer: Client, consumer: Client) -> None:
    """Twino case 99: both sides of every boundary between length forms, in the shortest form again."""
    producer.create_queue()
    consumer.join()
    for size in (0, 1, 252, 253, 254, 255, 256, 65535, 65536, 300_000):
        body = random.Random(size).randbytes(size)
        producer.publish(body=body, message_id=b"i")
        frame = consumer.receive()
        assert frame.payload == body
        assert (
            consumer.raw
            == RawFrame(
                kind=QUEUE,
                id=b"i",
                source=b"prod",
                target=b"ch",
                content_type=1,
                payload=body,
                first_acquirer=True,
                hops=15,
            ).encode()
        )


@pytest.mark.parametrize(
    "prefix", [vector("V46"), vector("V47"), vector("V48"), vector("V49"), vector("V50")], ids=range(46, 51)
)
def test_the_length_vectors_are_read(connect: Connect, prefix: bytes) -> None:
    """Vectors V46 to V50, from a client whose id is their source."""
    source, target = connect("s"), connect("c")
    source.create_queue("t")
    target.join("t")
    marker = prefix[7]
    width = {253: 2, 254: 4}.get(marker, 0)
    size = int.from_bytes(prefix[8 : 8 + width], "little") if width else marker
    source.socket.sendall(prefix + b"\xa5" * size)
    assert target.receive().payload == b"\xa5" * size


def test_a_length_in_a_longer_form_than_needed_is_read_and_sent_on_in_the_shortest(connect: Connect) -> None:
    """Vector V52."""
    source, target = connect("s"), connect("c")
    source.create_queue("t")
    target.join("t")
    source.socket.sendall(vector("V52"))
    assert target.receive().payload == b"abc"
    assert target.raw[7] == 3


@pytest.mark.parametrize("body", [bytes(range(256)), bytes(256), b"\xff" * 256, b"\r\n" * 64])
def test_binary_bodies_arrive_untouched(producer: Client, consumer: Client, body: bytes) -> None:
    """Twino case 100."""
    producer.create_queue()
    consumer.join()
    producer.publish(body=body)
    assert consumer.receive().payload == body


def test_headers_arrive_as_they_were_sent(producer: Client, consumer: Client) -> None:
    """Twino case 101: no value, colons in a value, fifty headers, repeated keys, keys and values beyond ASCII."""
    producer.create_queue()
    consumer.join()
    headers = [("Empty", ""), ("Url", "http://a:1/b:c"), ("Kü", "değer:a:b"), ("Kü", "zwei"), (" spaced ", " kept ")]
    headers += [(f"Key-{number}", "v" * number) for number in range(50)]
    producer.publish(body=b"x", headers=headers)
    assert consumer.receive().headers == headers


def test_a_header_vector_beyond_ascii_is_delivered(connect: Connect) -> None:
    """Vector V53, whose channel is `kanal-ş`."""
    source, target = connect("s"), connect("c")
    source.create_queue("kanal-ş")
    target.join("kanal-ş")
    # The vector is a server operation; its parts as a queue message.
    source.publish("kanal-ş", 1, b"x", headers=[("Kü", "değer:a:b")])
    frame = target.receive()
    assert frame.target == "kanal-ş".encode()
    assert frame.header("Kü") == "değer:a:b"


def test_a_frame_without_headers_has_no_header_bit(producer: Client, consumer: Client) -> None:
    """A set bit with a length of zero would make the original's reader close the connection."""
    producer.create_queue()
    consumer.join()
    producer.publish(body=b"x")
    consumer.receive()
    assert not consumer.raw[1] & 0x20


def test_header_text_without_a_valid_line_is_harmless(producer: Client, consumer: Client) -> None:
    """The original passed such a frame on with a header length of zero, which crashed the receiving client."""
    producer.create_queue()
    consumer.join()
    frame = bytearray(RawFrame(kind=QUEUE, id=b"m", target=b"ch", content_type=1).encode())
    frame[1] |= 0x20
    text = b"no colon here\r\n:no key\r\n"
    producer.socket.sendall(bytes(frame) + len(text).to_bytes(2, "little") + text)
    received = consumer.receive()
    assert received.id == b"m"
    if consumer.raw[1] & 0x20:
        length = consumer.raw[8 + len(received.id + received.source + received.target) :][:2]
        assert int.from_bytes(length, "little") > 0
    assert consumer.lives()


def test_the_smallest_frames_have_no_id_no_source_and_no_target(producer: Client) -> None:
    """Twino case 105: ignored or answered, and no reason to close."""
    for kind in (0x00, 0x0C, QUEUE, DIRECT, 0x13, RESPONSE, 0x15, 0x17, 0x3F):
        producer.send(RawFrame(kind=kind))
    assert producer.lives()


def test_a_queue_may_have_any_number_of_sixteen_bits(producer: Client, consumer: Client) -> None:
    """Twino case 106."""
    consumer_channel = "numbers"
    for queue in (0, 1, 255, 256, 65535):
        producer.create_queue(consumer_channel, queue)
    consumer.join(consumer_channel)
    for queue in (0, 1, 255, 256, 65535):
        producer.publish(consumer_channel, queue, b"x")
        assert consumer.receive().content_type == queue
        assert consumer.raw[5:7] == queue.to_bytes(2, "little")


@pytest.mark.parametrize("size", [1, 3])
def test_frames_may_arrive_in_the_smallest_pieces(producer: Client, consumer: Client, size: int) -> None:
    """Twino case 103."""
    producer.create_queue()
    consumer.join()
    frame = RawFrame(
        kind=QUEUE, id=b"m", target=b"ch", content_type=1, headers=[("Key", "value")], payload=bytes(300)
    ).encode()
    for start in range(0, len(frame), size):
        producer.socket.sendall(frame[start : start + size])
    received = consumer.receive()
    assert (received.header("Key"), received.payload) == ("value", bytes(300))


def test_many_frames_may_arrive_in_one_piece(producer: Client, consumer: Client) -> None:
    """Twino case 104."""
    producer.create_queue()
    consumer.join()
    frames = [
        RawFrame(kind=QUEUE, id=b"%d" % number, target=b"ch", content_type=1, payload=b"%d" % number)
        for number in range(500)
    ]
    producer.socket.sendall(b"".join(frame.encode() for frame in frames))
    assert [consumer.receive().payload for _ in frames] == [frame.payload for frame in frames]


def test_a_queue_message_on_its_way_has_one_hop_less(producer: Client, consumer: Client) -> None:
    """Twino case 110: 0 is dropped, 1 arrives with 0, 16 with 15, 31 with 30."""
    producer.create_queue()
    consumer.join()
    for hops in (0, 1, 16, 31):
        producer.publish(body=b"%d" % hops, hops=hops)
    producer.arrived()
    assert [(frame.payload, frame.hops) for frame in consumer.arrived()] == [(b"1", 0), (b"16", 15), (b"31", 30)]


def test_a_direct_message_on_its_way_has_one_hop_less(producer: Client, connect: Connect) -> None:
    """Twino case 110, for relayed frames, with vector V55."""
    source, target = connect("s"), connect("t")
    source.socket.sendall(vector("V55"))
    for hops in (0, 1, 16):
        source.send_direct("t", b"%d" % hops, hops=hops)
    assert [(target.receive().payload, target.raw[1] & 0x1F) for _ in range(2)] == [(b"1", 0), (b"16", 15)]
    # An answer to its own direct message proves that nothing else was on the way.
    target.send_direct("t", b"last")
    assert target.receive().payload == b"last"


def test_frames_without_hops_are_counted(broker: mqcore.Broker, connect: Connect, eventually: Eventually) -> None:
    client = connect("s")
    client.socket.sendall(vector("V55"))
    assert client.lives()
    client.close()
    eventually(lambda: metrics(broker)['mqcore_frames_ignored_total{protocol="tmqp"}'] == 1)


def test_a_source_that_is_not_the_clients_own_closes_the_connection(
    broker: mqcore.Broker, producer: Client, connect: Connect
) -> None:
    """Twino case 112; the message goes nowhere."""
    other = connect("other")
    other.create_queue()
    producer.send(RawFrame(kind=QUEUE, id=b"m", source=b"other", target=b"ch", content_type=1, payload=b"forged"))
    assert producer.is_closed_within(5)
    wait_until(lambda: closed_for(broker, "protocol-error") == 1)
    assert other.stored() == (0, 0)


def test_an_empty_source_is_filled_in(connect: Connect, consumer: Client) -> None:
    client = connect("me")
    client.create_queue()
    consumer.join()
    client.send(RawFrame(kind=QUEUE, id=b"m", target=b"ch", content_type=1))
    assert consumer.receive().source == b"me"


def test_a_header_bit_without_a_header_closes_the_connection(broker: mqcore.Broker, connect: Connect) -> None:
    """Twino case 115, vector V54: as in the original. The broker ignores later frames."""
    source, other = connect("s"), connect("other")
    source.socket.sendall(vector("V54") + PING_FRAME)
    with pytest.raises((PeerClosed, ConnectionResetError)):
        source.read(1)
    wait_until(lambda: closed_for(broker, "protocol-error") == 1)
    assert other.lives()


@pytest.mark.parametrize("kept", [1, 7, 8, 10, 12, 14, 30])
def test_a_frame_that_ends_half_way_ends_only_its_connection(
    broker: mqcore.Broker,
    producer: Client,
    connect: Connect,
    eventually: Eventually,
    kept: int,
) -> None:
    """Twino case 102: cut in the fixed part, the id, the header and the body."""
    connect("other").create_queue()
    frame = RawFrame(
        kind=QUEUE, id=b"mmm", target=b"ch", content_type=1, headers=[("K", "v")], payload=bytes(40)
    ).encode()
    assert kept < len(frame)
    producer.socket.sendall(frame[:kept])
    producer.close()
    eventually(lambda: [client.id for client in broker.stats().clients] == ["other"])
    assert connect("third").stored() == (0, 0)


def test_answers_arrive_for_all_of_many_operations_at_once(connect: Connect) -> None:
    """A client need not wait for one answer before it asks the next."""
    client = connect("cli")
    requests = [
        RawFrame(
            kind=SERVER,
            id=b"r%d" % number,
            target=b"ch%d" % number,
            content_type=CREATE_CHANNEL,
            pending_response=True,
        )
        for number in range(100)
    ]
    client.socket.sendall(b"".join(request.encode() for request in requests))
    answers = {client.receive().id: client.raw for _ in requests}
    assert set(answers) == {request.id for request in requests}
    for data in answers.values():
        assert data[0] == RESPONSE
        assert int.from_bytes(data[5:7], "little") == OK
