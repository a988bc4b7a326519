"""Names, ids and properties that one protocol allows never become a second message, header or line in another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from eventmq_peer import EventmqPeer
from hostile.attacks import LISTENERS
from mm2_peer import MM2Peer, message
from mqks_peer import MqksPeer
from protocols.conversation import ADD_BINDING, CREATE_QUEUE, JOIN, OK
from served import ServedBroker, serving
from test_unfinished_input import endpoint, url
from throttr_peer import ThrottrPeer
from tmqp_peer import QUEUE, RawFrame, TmqpPeer

NAMES = (
    b"a.b",
    b"a.\n",
    b"a.\r\nlines ok forged event=evil body",
    b"a.\nlines ok forged event=evil body",
    b"a.b\r\nEvil:1",
    b"a.\0b",
    b"a.\tb",
    b"a. b",
    b"a.*",
    b"a.>",
    b"a.#",
    b"a./",
    b"a.b/1",
    b"a.%0Ab",
    b"a.%",
    b"a.b,retry=9",
    b"a.b;c=d,e:f",
    b"a.\"b'",
    b"a.\x1b[31m",
    b"a.\x7f",
    b"a.\x85",
    b"a.\xff\xfe",
    b"a.\xe2\x80\xa8",
    b"a." + b"x" * 245,
    b"a." + b"x" * 253,
)
"""Topics with exactly one dot, which the pattern of the queue matches."""
IDS = (b"id", b"-", b"--all", b"%:", b"%:x", b"a b", b"a\nb", b"a\r\nb", b"a\tb", b"a\0b", b"\xff", b"a,b;c=d")
"""Message ids, which only TMQP lets a producer choose freely."""
BODY = b"the body"

Publish = Callable[[ServedBroker, ExitStack, bytes], None]


def by_throttr(broker: ServedBroker, stack: ExitStack, name: bytes) -> None:
    peer = stack.enter_context(ThrottrPeer(endpoint(broker, "throttr"), width=4))
    assert peer.status(peer.publish(name, BODY))


def by_tmqp(broker: ServedBroker, stack: ExitStack, name: bytes) -> None:
    with TmqpPeer(*endpoint(broker, "tmqp")) as peer:
        peer.hello()
        peer.send(RawFrame(kind=QUEUE, id=b"id", target=b"@topic:" + name, payload=BODY, pending_acknowledge=True))
        assert peer.receive().id == b"id"


def by_mm2(broker: ServedBroker, stack: ExitStack, name: bytes) -> None:
    with MM2Peer(url(broker, "mm2")).open("pub-sub;x-mqcore") as peer:
        peer.send(message(1, "topic/" + name.decode(), BODY))
        assert peer.ask("ping;id=p").startswith("ok")


def by_emqp(broker: ServedBroker, stack: ExitStack, name: bytes) -> None:
    peer = stack.enter_context(EventmqPeer(url(broker, "emqp-publish")))
    peer.say("PUBLISH", "id", name, BODY)
    assert peer.until_now() == []


PUBLISHERS: dict[str, tuple[Publish, int]] = {
    "throttr": (by_throttr, 255),
    "tmqp": (by_tmqp, 248),
    "mm2": (by_mm2, 249),
    "emqp": (by_emqp, 248),
}
"""How to publish to a topic, and the longest name that the protocol has room for."""


@pytest.fixture(scope="module")
def broker() -> Iterator[ServedBroker]:
    with serving(
        *(argument for each in LISTENERS if "tmqps" not in each for argument in ("--listen", each)), "--auto-create"
    ) as running:
        yield running


def bind(broker: ServedBroker, channel: str) -> None:
    """Bind the queue to all topics with one dot."""
    with TmqpPeer(*endpoint(broker, "tmqp")) as peer:
        peer.hello()
        body = b'{"Target":"%s/0"}' % channel.encode()
        assert peer.ask(ADD_BINDING, "@topic:*.*", body=body).content_type == OK


@pytest.mark.parametrize("protocol", PUBLISHERS)
def test_a_topic_is_one_line_for_mqks_consumers(protocol: str, broker: ServedBroker) -> None:
    publish, longest = PUBLISHERS[protocol]
    queue = f"lines-{protocol}"
    with MqksPeer(url(broker, "mqks")) as consumer:
        assert consumer.ask(f"lines consume --confirm {queue}") == b"lines ok "
        bind(broker, queue)
        for name in NAMES:
            if len(name) > longest or (protocol == "mm2" and not is_text(name)):
                continue
            with ExitStack() as stack:
                publish(broker, stack, name)
                line = consumer.line()
            head, consumer_id, ok = line.partition(b" ")[0], line.split(b" ")[0], line.split(b" ")[1]
            assert (head, consumer_id, ok) == (b"lines", b"lines", b"ok"), (name, line)
            # "lines ok ID event=NAME body": no part of the name is read as the message or as another field.
            _, _, _, event, body = line.split(b" ", 4)
            assert body == BODY, (name, line)
            assert event in (b"event=" + name, b"event=" + name + b",retry=0", b"event=" + queue.encode()), (name, line)
            assert b"retry=9" not in event or event.endswith(b",retry=0"), "the last one counts"
        assert consumer.until_now() == [], "each message is one line"


def is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("protocol", PUBLISHERS)
def test_a_topic_adds_no_header_but_its_own_for_tmqp_consumers(protocol: str, broker: ServedBroker) -> None:
    publish, longest = PUBLISHERS[protocol]
    queue = f"headers-{protocol}"
    with TmqpPeer(*endpoint(broker, "tmqp")) as joined, TmqpPeer(*endpoint(broker, "tmqp")) as subscribed:
        joined.hello()
        subscribed.hello()
        assert joined.ask(CREATE_QUEUE, queue, headers={"Queue-Id": "0"}).content_type == OK
        assert joined.ask(JOIN, queue).content_type == OK
        bind(broker, queue)
        assert subscribed.ask(JOIN, "@topic:*.*").content_type == OK
        for name in NAMES:
            if len(name) > longest or (protocol == "mm2" and not is_text(name)):
                continue
            with ExitStack() as stack:
                publish(broker, stack, name)
                copy = raw_headers(joined)
                assert copy in ([], [b"Topic:" + name]), (name, copy)
                if len(name) <= 248:
                    # EventMQ's messages have the header from their start, others get it in a queue.
                    own = [b"Topic:" + name] if protocol == "emqp" else []
                    assert raw_headers(subscribed) in ([], own), name


def raw_headers(peer: TmqpPeer) -> list[bytes]:
    """The header lines of the next message, as bytes."""
    head = peer.read(8)
    assert head[0] & 0x3F == QUEUE, head
    size = head[7]
    if size >= 253:
        size = int.from_bytes(peer.read({253: 2, 254: 4, 255: 8}[size]), "little")
    peer.read(head[2] + head[3] + head[4])
    text = peer.read(int.from_bytes(peer.read(2), "little")) if head[1] & 0x20 else b""
    assert peer.read(size) == BODY
    return (
        [line for line in text.split(b"\n") if line]
        if b"\r\n" not in text
        else [line for line in text.split(b"\r\n") if line]
    )


def test_an_id_is_one_word_for_mqks_consumers_and_settles_its_message(broker: ServedBroker) -> None:
    with MqksPeer(url(broker, "mqks")) as consumer, TmqpPeer(*endpoint(broker, "tmqp")) as producer:
        producer.hello()
        assert consumer.ask("ids consume --confirm ids --manual-ack") == b"ids ok "
        for number in IDS:
            producer.send(RawFrame(kind=QUEUE, id=number, target=b"ids", payload=BODY))
            line = consumer.line()
            start, ok, word, event, body = line.split(b" ", 4)
            assert (start, ok, event, body) == (b"ids", b"ok", b"event=ids", BODY), (number, line)
            consumer.send_bytes(b"ack-1 ack --confirm ids " + word + b"\n")
            assert consumer.line() == b"ack-1 ok ", (number, word)
        assert consumer.until_now() == []


@pytest.mark.parametrize(
    "properties",
    ["k:Ta%0D%0AEvil%3A1;", "Topic:Tevil.topic;", "Mqcore-Priority:T255;", "Mqcore-Delay:T600000;", "cc:Tother/1;"],
)
def test_properties_of_micromessage2_stay_one_header(properties: str, broker: ServedBroker) -> None:
    """A header of TMQP that has a meaning for the broker cannot be set, and no line can be added, by a property."""
    with TmqpPeer(*endpoint(broker, "tmqp")) as consumer, MM2Peer(url(broker, "mm2")).open("pub-sub;x-mqcore") as peer:
        consumer.hello()
        assert consumer.ask(JOIN, "properties").content_type == OK
        peer.send(message(1, "properties", BODY, properties))
        assert peer.ask("ping;id=p").startswith("ok")
        assert raw_headers(consumer) == [b"Mm2-Properties:" + properties.encode()]


JOB_HEADERS = (
    b"a:b\r\nEvil:1",
    b"a:b\nEvil:1",
    b"a:b\rEvil:1",
    b"\r\n\r\nbody",
    b"a:b\0c",
    b"Topic:evil",
    b"a:\xff",
    b"CC:other/1",
)


@pytest.mark.parametrize("headers", JOB_HEADERS)
def test_headers_of_eventmq_stay_one_header(headers: bytes, broker: ServedBroker) -> None:
    """The broker rejects a job with such headers, or a consumer of TMQP gets them as one line."""
    queue = f"jobs-{JOB_HEADERS.index(headers)}"
    with (
        TmqpPeer(*endpoint(broker, "tmqp")) as consumer,
        EventmqPeer(url(broker, "emqp-frontend"), identity=b"producer") as producer,
    ):
        consumer.hello()
        assert consumer.ask(JOIN, queue).content_type == OK
        producer.say("REQUEST", "job", f"{queue}/0", headers, BODY)
        # If the broker rejects the first one, this one shows that nothing is left of it.
        producer.say("REQUEST", "job-2", f"{queue}/0", b"", BODY)
        producer.until_now()
        lines = raw_headers(consumer)
        assert all(line.partition(b":")[0].lower().startswith(b"eventmq-") for line in lines), lines


def test_ids_of_jobs_are_one_word_for_mqks_consumers(broker: ServedBroker) -> None:
    with (
        MqksPeer(url(broker, "mqks")) as consumer,
        EventmqPeer(url(broker, "emqp-frontend"), identity=b"producer") as producer,
    ):
        assert consumer.ask("words consume --confirm words --manual-ack") == b"words ok "
        for number in IDS:
            producer.say("REQUEST", number, "words/0", b"", BODY)
            line = consumer.line()
            start, ok, word, _, body = line.split(b" ", 4)
            assert (start, ok, body) == (b"words", b"ok", BODY), (number, line)
            consumer.send_bytes(b"ack-1 ack --confirm words " + word + b"\n")
            assert consumer.line() == b"ack-1 ok ", (number, word)
        assert consumer.until_now() == []
