"""MicroMessage2: arguments of commands that do not exist, and messages for queues that do not exist."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import mqcore
from mm2_peer import MM2Peer
from mqcore import errors, sync


@pytest.fixture
def broker() -> Iterator[mqcore.Broker]:
    with mqcore.Broker(listen=("mm2://127.0.0.1:0", "tmqp://127.0.0.1:0"), auto_create_queues=False) as running:
        yield running


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("subscribe;id=s,destination=topic/t,fliter=a>N1", "subscribe has no argument fliter; its arguments are id"),
        ("subscribe;id=s,destination=topic/t,destination=topic/u", "the argument destination twice"),
        ("subscribe;id=s,destination=topic/t,filter=a>N1,filter=a>N2", "the argument filter twice"),
        ("unsubscribe;id=s,filter=a>N1", "unsubscribe has no argument filter"),
        ("ping;id=s,destination=t", "ping has no argument destination"),
    ],
)
def test_unknown_and_doubled_arguments_are_refused(broker: mqcore.Broker, said: str, words: str) -> None:
    with MM2Peer(broker.listeners[0]) as peer:
        peer.open("pub-sub;x-mqcore")
        refused = peer.ask(said)
        assert "malformed" in refused
        assert words in refused
        assert peer.ask("ping;id=p") == "ok", "the connection goes on"


def test_without_answers_an_unknown_argument_ends_the_connection(broker: mqcore.Broker) -> None:
    with MM2Peer(broker.listeners[0]) as peer:
        peer.open("pub-sub")
        peer.command("subscribe;destination=topic/t,fliter=a>N1")
        assert "fliter" in peer.error()


def test_publish_to_a_missing_queue_names_the_queue_and_the_next_step(broker: mqcore.Broker) -> None:
    with sync.connect(broker.listeners[0]) as client:
        for _ in range(2):
            with pytest.raises(errors.NotFound, match=r"missing.*does not exist; create it") as refused:
                client.publish("missing", b"x")
            assert refused.value.code == 404
        with sync.connect(broker.listeners[1]) as maker:
            maker.declare("missing", 0)
        assert client.publish("missing", b"x").by == "server"


def test_a_queue_that_is_full_is_a_limit(broker: mqcore.Broker) -> None:
    with sync.connect(broker.listeners[1]) as maker:
        maker.declare("full", 0, mqcore.QueueOptions(status="pull", message_limit=1))
    with sync.connect(broker.listeners[0]) as client:
        assert client.publish("full", b"x").by == "server"
        with pytest.raises(errors.LimitExceeded):
            client.publish("full", b"y")
