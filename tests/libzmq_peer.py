"""Programs with libzmq's sockets at a broker's listeners, run by interpreters with different versions of it:

    python libzmq_peer.py SCENARIO '{"backend": "tcp://...", ...}'

It ends with code 0 if all is as it should be. Needs nothing but pyzmq.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

CONTEXT = zmq.Context()
EMQP = b"eMQP/1.0"
LIMIT_MS = 20_000


def connected(kind: int, url: str, identity: bytes = b"", **options: int) -> Any:
    """A socket of this type; options by libzmq's names."""
    made = CONTEXT.socket(kind)
    made.setsockopt(zmq.LINGER, 0)
    if identity:
        made.setsockopt(zmq.IDENTITY, identity)
    for name, value in options.items():
        made.setsockopt(getattr(zmq, name), value)
    made.connect(url)
    return made


def hear(peer: Any) -> list[bytes]:
    """The next message that is not a heartbeat."""
    while True:
        assert peer.poll(LIMIT_MS), "nothing comes"
        said: list[bytes] = peer.recv_multipart()
        if said[2:3] != [b"HEARTBEAT"]:
            return said


def join(urls: dict[str, str], slots: int, **options: int) -> Any:
    """A worker."""
    worker = connected(zmq.DEALER, urls["backend"], b"worker", **options)
    worker.send_multipart([b"", EMQP, b"INFORM", b"i", b"", b"worker"])
    assert hear(worker)[2] == b"ACK"
    for _ in range(slots):
        worker.send_multipart([b"", EMQP, b"READY", b"r"])
    return worker


def request(client: Any, job: bytes, body: bytes, *more: bytes) -> None:
    """Send a job."""
    client.send_multipart([b"", EMQP, b"REQUEST", job, b"default", b"", body, *more])


def sizes(urls: dict[str, str]) -> None:
    """Frames around the place where lengths become long, many of them, and one that takes many reads."""
    worker, client = join(urls, 0), connected(zmq.DEALER, urls["frontend"])
    for number, size in enumerate((0, 1, 254, 255, 256, 257, 65_535, 65_536, 8 << 20)):
        body, job = bytes(range(256)) * (size // 256) + b"x" * (size % 256), b"j%d" % number
        worker.send_multipart([b"", EMQP, b"READY", b"r"])
        # Frames behind a job stand in a header, which is bounded.
        more = [b"y" * min(size, 500)] * 20
        request(client, job, body, *more)
        assert hear(worker)[3:] == [job, b"default", b"", body, *more], size
        assert hear(client)[4] == job


def identities(urls: dict[str, str]) -> None:
    """Any identity but libzmq's own; none; and the lockstep of REQ."""
    worker = join(urls, 8)
    for identity in (b"", b"a", b"x" * 255, b"\xff\xfe", "Ärger".encode()):
        client = connected(zmq.DEALER, urls["frontend"], identity)
        request(client, b"of-" + identity[:9], b"job")
        assert hear(worker)[3] == b"of-" + identity[:9]
        assert hear(client)[4] == b"of-" + identity[:9]
        client.close()
    lockstep = connected(zmq.REQ, urls["frontend"])
    for job in (b"one", b"two"):
        lockstep.send_multipart([EMQP, b"REQUEST", job, b"default", b"", b"job"])
        assert hear(worker)[3] == job
        assert lockstep.poll(LIMIT_MS)
        assert lockstep.recv_multipart()[1::2] == [b"REPLY", job]
    router = connected(zmq.DEALER, urls["admin"], b"boss")
    router.send_multipart([b"", EMQP, b"ROUTER_SHOW_WORKERS", b"q"])
    assert "worker" in json.loads(hear(router)[4])["connected_workers"]


def heartbeats(urls: dict[str, str]) -> None:
    """Sockets with ZMTP's own heartbeats stay connected to each listener."""
    options = {"HEARTBEAT_IVL": 100, "HEARTBEAT_TIMEOUT": 2000, "HEARTBEAT_TTL": 2000}
    peers = []
    for role, url in urls.items():
        kind = zmq.SUB if role == "subscribe" else zmq.DEALER
        peer = CONTEXT.socket(kind)
        watch = peer.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        for name, value in options.items():
            peer.setsockopt(getattr(zmq, name), value)
        peer.setsockopt(zmq.LINGER, 0)
        peer.connect(url)
        assert watch.poll(LIMIT_MS), role
        assert recv_monitor_message(watch)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED, role
        peers.append((role, peer, watch))
    # 20 heartbeats; that nothing happens meanwhile can only be seen by waiting.
    time.sleep(2)
    for role, peer, watch in peers:
        assert not watch.poll(0), f"{role}: its connection was cut"
        peer.disable_monitor()


def topics(urls: dict[str, str]) -> None:
    """Prefixes, several of them, their end, and XSUB, whose program writes subscriptions itself."""
    subscriber = connected(zmq.SUB, urls["subscribe"])
    by_hand = connected(zmq.XSUB, urls["subscribe"])
    publisher = connected(zmq.DEALER, urls["publish"])
    for prefix in (b"news.", b"news.local", b"all"):
        subscriber.setsockopt(zmq.SUBSCRIBE, prefix)
    by_hand.send(b"\x01")

    def publish(topic: bytes, body: bytes) -> None:
        publisher.send_multipart([b"", EMQP, b"PUBLISH", b"p", topic, body])

    # Subscriptions need time to arrive, and ZeroMQ does not report their arrival.
    for peer in (subscriber, by_hand):
        while not peer.poll(100):
            publish(b"all", b"?")
    publish(b"all", b"all are there")
    for peer in (subscriber, by_hand):
        while hear(peer) != [b"all", b"all are there"]:
            pass
    long = b"z" * 100_000
    for topic, body in ((b"news.local", b"1"), (b"weather", b"2"), (b"news.far", long), (b"all", b"end")):
        publish(topic, body)
    # Each topic has an order; there is none among several.
    assert sorted(hear(subscriber) for _ in range(3)) == [[b"all", b"end"], [b"news.far", long], [b"news.local", b"1"]]
    assert sorted(hear(by_hand)[0] for _ in range(4)) == [b"all", b"news.far", b"news.local", b"weather"]
    subscriber.setsockopt(zmq.UNSUBSCRIBE, b"news.")
    rounds_without = 0
    for number in range(1000):
        publish(b"news.far", b"%d" % number)
        publish(b"all", b"%d" % number)
        rounds_without += 1
        while (said := hear(subscriber)) != [b"all", b"%d" % number]:
            assert said[0] == b"news.far"
            rounds_without = 0
        if rounds_without == 5:
            return
    raise AssertionError("the subscription does not end")


def slow_subscriber(urls: dict[str, str]) -> None:
    """One that reads nothing costs others nothing."""
    slow = connected(zmq.SUB, urls["subscribe"], RCVHWM=1, RCVBUF=4096)
    quick = connected(zmq.SUB, urls["subscribe"], RCVHWM=0)
    publisher = connected(zmq.DEALER, urls["publish"], SNDHWM=0)
    for peer in (slow, quick):
        peer.setsockopt(zmq.SUBSCRIBE, b"")
        while not peer.poll(100):
            publisher.send_multipart([b"", EMQP, b"PUBLISH", b"p", b"first", b""])
    body = b"x" * 100_000
    # 60 MB, of which the slow one takes next to nothing; the quick one never has more than ten before it.
    for number in range(600):
        publisher.send_multipart([b"", EMQP, b"PUBLISH", b"p", b"t", b"%d " % number + body])
        if number % 10 == 9:
            for expected in range(number - 9, number + 1):
                while (said := hear(quick))[0] != b"t":
                    pass
                assert said[1] == b"%d " % expected + body


def many(urls: dict[str, str]) -> None:
    """Three hundred clients at once, each with a connection of its own."""
    CONTEXT.set(zmq.MAX_SOCKETS, 2000)
    worker = join(urls, 300)
    clients = [connected(zmq.DEALER, urls["frontend"], b"c%d" % number) for number in range(300)]
    for number, client in enumerate(clients):
        request(client, b"j%d" % number, b"job")
    assert {hear(worker)[3] for _ in clients} == {b"j%d" % number for number in range(300)}
    for number, client in enumerate(clients):
        assert hear(client)[4] == b"j%d" % number


def reconnect(urls: dict[str, str]) -> None:
    """The broker stops and restarts: this program prints a line when to do so, and reads a line when it is done."""
    worker, client = join(urls, 1), connected(zmq.DEALER, urls["frontend"])
    request(client, b"before", b"job")
    assert hear(worker)[3] == b"before"
    assert hear(client)[4] == b"before"
    print("now", flush=True)
    assert sys.stdin.readline()
    # A socket of libzmq sends its queued messages when it is connected again.
    assert hear(worker)[2] == b"KBYE"
    worker.send_multipart([b"", EMQP, b"INFORM", b"i", b"", b"worker"])
    assert hear(worker)[2] == b"ACK"
    worker.send_multipart([b"", EMQP, b"READY", b"r"])
    request(client, b"after", b"job")
    assert hear(worker)[3] == b"after"
    assert hear(client)[4] == b"after"


SCENARIOS = {each.__name__: each for each in (sizes, identities, heartbeats, topics, slow_subscriber, many, reconnect)}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](json.loads(sys.argv[2]))
    CONTEXT.destroy(linger=0)
