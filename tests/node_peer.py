"""A peer that speaks the protocol between nodes as a downstream broker, made of raw frames."""

from __future__ import annotations

from tmqp_peer import QUEUE, RawFrame, TmqpPeer

TERMINAL = 0
CONTROL = b"mqcore-node"
NEXT, DONE = 1, 2
"""Content types of control frames: the number of the next frame, and the last number that is done."""


def link(address: tuple[str, int], epoch: int) -> TmqpPeer:
    """A connection of the node `replayer`."""
    peer = TmqpPeer(*address)
    peer.hello(
        Client_Id="replayer",
        Client_Name="replayer",
        Client_Type="server",
        Mqcore_Node="1",
        Mqcore_Node_Epoch=str(epoch),
    )
    return peer


def frames(first: int, bodies: list[bytes]) -> bytes:
    """Messages of a client of the node for the queue replayed/1, numbered from `first`."""
    number = RawFrame(kind=TERMINAL, target=CONTROL, content_type=NEXT, payload=first.to_bytes(8, "little"))
    messages = [
        RawFrame(kind=QUEUE, id=b"m" + body, source=b"far", target=b"replayed", content_type=1, payload=body, hops=9)
        for body in bodies
    ]
    return b"".join(frame.encode() for frame in (number, *messages))


def wait_until_done(peer: TmqpPeer, last: int) -> None:
    """Wait until the broker says that it is done with the frame `last`."""
    number = 0
    while number < last:
        frame = peer.receive()
        if frame.target == CONTROL and frame.content_type == DONE:
            number = int.from_bytes(frame.payload, "little")
            assert number <= last
