"""Permitted answers of a broker to peers that it has not accepted, for each protocol."""

from __future__ import annotations

import struct

import eventmq_peer as zmtp
import mm2_peer as mm2
from mqks_peer import ERROR
from tmqp_peer import PREAMBLE, SERVER, RawFrame


def tmqp_frames(answer: bytes) -> list[RawFrame]:
    """Kind and content type of each whole frame of an answer."""
    assert PREAMBLE.startswith(answer[:8])
    rest, found = answer[8:], []
    while len(rest) >= 8:
        (content_type,) = struct.unpack("<H", rest[5:7])
        length, at = rest[7], 8
        if length >= 253:
            width = {253: 2, 254: 4, 255: 8}[length]
            length, at = int.from_bytes(rest[at : at + width], "little"), at + width
        names = sum(rest[2:5])
        headers = 0
        if rest[1] & 0x20:
            headers = 2 + int.from_bytes(rest[at + names : at + names + 2], "little")
        found.append(RawFrame(kind=rest[0] & 0x3F, content_type=content_type))
        rest = rest[at + names + headers + length :]
    return found


def check_tmqp(answer: bytes) -> None:
    """Frames that refuse or end, and answers to a PING."""
    for frame in tmqp_frames(answer):
        assert frame.kind in (SERVER, 0x08, 0x0A), "a goodbye, a PONG, or"
        assert frame.kind != SERVER or 400 <= frame.content_type < 600, "a refusal"


def check_mqks(answer: bytes) -> None:
    """Lines with errors."""
    # Not `splitlines`: an id may have a CR in it.
    assert not answer or answer.endswith(b"\n")
    for line in answer.split(b"\n")[:-1]:
        assert ERROR.match(line), line


def check_throttr(answer: bytes) -> None:
    """Nothing."""
    assert not answer


def check_mm2(answer: bytes) -> None:
    """The other half of the handshake, and then an error at most, which is the last frame."""
    if answer and answer[0] == 1:
        rest = answer[4 + answer[3] :]
        for _ in ("required", "optional"):
            rest = rest[2 + int.from_bytes(rest[:2]) :]
        answer = rest
    if answer:
        assert answer[0] & mm2.ERROR, answer
        wide = answer[0] & mm2.LARGE
        assert len(answer) == (5 + int.from_bytes(answer[1:5]) if wide else 2 + answer[1]), answer


def check_emqp(answer: bytes) -> None:
    """No answer of the protocol; ZMTP's own commands are none."""
    for word in (b"ACK", b"REPLY", b"HEARTBEAT", b"REQUEST", b"KBYE"):
        assert word not in answer[len(zmtp.GREETING) :], answer


CHECKS = {"tmqp": check_tmqp, "mqks": check_mqks, "throttr": check_throttr, "mm2": check_mm2, "emqp": check_emqp}
"""Raises `AssertionError` if an answer is more than a refusal, by protocol."""
