"""The vectors of tests/vectors, through the codec that Python sees: each whole, a byte at a time, and with
a tail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mqcore import errors
from mqcore.testing import tmqp

FILE = Path(__file__).parent / "vectors" / "tmqp.jsonl"
VECTORS: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
TAIL = b"\x10\x20next frame"
FLAGS = ("first_acquirer", "high_priority", "pending_response", "pending_acknowledge")
# A body beyond this is not put in memory; its head is tested all the same.
BODY_IN_MEMORY_MAX = 1 << 20


def frame_of(vector: dict[str, Any]) -> tmqp.Frame:
    fields = vector["fields"]
    payload = fields.get("payload")
    return tmqp.Frame(
        fields["kind"],
        **{name: fields[name] for name in (*FLAGS, "hops", "content_type")},
        **{name: bytes.fromhex(fields[name]) for name in ("id", "source", "target", "headers")},
        payload=body_of(vector) if payload is None else bytes.fromhex(payload),
    )


def body_of(vector: dict[str, Any]) -> bytes:
    return bytes.fromhex(vector["body_fill"]) * int(vector["body_size"])


def bytes_of(vector: dict[str, Any]) -> bytes:
    data = bytes.fromhex(vector["hex"])
    return data + body_of(vector) if vector["kind"] == "head" else data


WITH_FRAME = [
    pytest.param(vector, id=vector["name"])
    for vector in VECTORS
    if "fields" in vector and vector.get("body_size", 0) <= BODY_IN_MEMORY_MAX
]


def test_all_vectors_are_there() -> None:
    assert [vector["name"] for vector in VECTORS] == [f"V{number:02}" for number in range(1, 57)]


@pytest.mark.parametrize("vector", WITH_FRAME)
def test_a_whole_frame_is_decoded(vector: dict[str, Any]) -> None:
    data = bytes_of(vector)
    assert tmqp.decode(data) == (frame_of(vector), len(data))


@pytest.mark.parametrize("vector", WITH_FRAME)
def test_bytes_after_a_frame_are_not_consumed(vector: dict[str, Any]) -> None:
    data = bytes_of(vector)
    assert tmqp.decode(data + TAIL) == (frame_of(vector), len(data))


@pytest.mark.parametrize("vector", WITH_FRAME)
def test_frame_fed_byte_by_byte_is_complete_only_at_its_end(vector: dict[str, Any]) -> None:
    data = bytes_of(vector)
    arrived = bytearray()
    for byte in data[:-1]:
        arrived.append(byte)
        assert tmqp.decode(arrived) == (None, 0)
    arrived.append(data[-1])
    assert tmqp.decode(arrived) == (frame_of(vector), len(data))


@pytest.mark.parametrize("vector", WITH_FRAME)
def test_fields_encode_to_the_bytes(vector: dict[str, Any]) -> None:
    data = bytes_of(vector)
    if vector["encodes_back"]:
        assert tmqp.encode(frame_of(vector)) == data
    elif "encoded" in vector:
        assert tmqp.encode(frame_of(vector)) == bytes.fromhex(vector["encoded"])
    else:
        # PING and PONG are constants: no writer makes them of their fields.
        assert data in (tmqp.PING, tmqp.PONG)


@pytest.mark.parametrize("vector", WITH_FRAME)
def test_header_text_splits_into_its_pairs(vector: dict[str, Any]) -> None:
    frame, _ = tmqp.decode(bytes_of(vector))
    assert frame is not None
    pairs = [(bytes.fromhex(key), bytes.fromhex(value)) for key, value in vector["header_pairs"]]
    assert frame.header_pairs == pairs


def test_preambles_are_those_of_the_document() -> None:
    preambles = [bytes.fromhex(vector["hex"]) for vector in VECTORS if vector["kind"] == "preamble"]
    assert preambles == [tmqp.PREAMBLE, b"TMQ/1.01"]


def test_malformed_frame_raises() -> None:
    invalid = [vector for vector in VECTORS if vector["kind"] == "invalid"]
    assert [vector["error"] for vector in invalid] == ["malformed"]
    for vector in invalid:
        with pytest.raises(errors.BadFrame, match="header"):
            tmqp.decode(bytes.fromhex(vector["hex"]))


def test_a_frame_beyond_the_limit_is_refused_by_its_head_alone() -> None:
    (vector,) = [vector for vector in VECTORS if vector.get("body_size", 0) > BODY_IN_MEMORY_MAX]
    head = bytes.fromhex(vector["hex"])
    with pytest.raises(errors.TooLarge) as refused:
        tmqp.decode(head)
    assert refused.value.limit == 64 * 1024 * 1024
    assert tmqp.decode(head, frame_bytes_max=1 << 33) == (None, 0)


def test_a_frame_that_cannot_be_written_cannot_be_made() -> None:
    with pytest.raises(errors.TooLarge):
        tmqp.Frame(0x11, target=b"x" * 256)
    with pytest.raises(errors.BadFrame):
        tmqp.Frame(0x40)
