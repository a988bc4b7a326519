"""A raw Throttr connection, and the dialogues of the vectors taken apart, to be derived for other widths."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parent / "vectors" / "throttr.jsonl"
WIDTHS = {"uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8}

INSERT, QUERY, UPDATE, PURGE, SET, GET, LIST, INFO, STAT = range(1, 10)
STATS, SUBSCRIBE, UNSUBSCRIBE, PUBLISH, CONNECTIONS, CONNECTION, CHANNELS, CHANNEL, WHOAMI, EVENT = range(0x10, 0x1A)
CONSUME, CONSUME_ALL = 0xC0, 0xC1
QUOTA, TTL = 0, 1
PATCH, INCREASE, DECREASE = 0, 1, 2
NS, US, MS, S, MINUTES, HOURS = range(1, 7)
FIXED, SLIDING, GCRA = range(3)
TAKE, PEEK, DRY_RUN, REFUND = range(4)


class Cut(Exception):
    """The peer closed the connection."""


class ThrottrPeer:
    """One connection to a Throttr listener, that speaks bytes."""

    def __init__(self, address: tuple[str, int] | str, width: int = 2) -> None:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family)
        self.socket.settimeout(10)
        self.socket.connect(address)
        if not isinstance(address, str):
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.width = width

    def __enter__(self) -> ThrottrPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def leave(self) -> None:
        """Close the connection, and wait until the other side knows."""
        self.socket.shutdown(socket.SHUT_WR)
        assert self.is_cut()
        self.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def read(self, size: int) -> bytes:
        """Receive exactly so many bytes. Raises `Cut` if the other side closes before."""
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(min(size - len(data), 1 << 20))
            if not part:
                raise Cut(bytes(data))
            data += part
        return bytes(data)

    def ask(self, data: bytes, size: int) -> bytes:
        """Send a request and receive an answer of so many bytes."""
        self.send(data)
        return self.read(size)

    def status(self, data: bytes) -> bool:
        """Send a request that is answered yes or no."""
        answer = self.ask(data, 1)
        assert answer in (b"\x00", b"\x01"), answer
        return answer == b"\x01"

    def is_quiet(self, seconds: float = 0.1) -> bool:
        """Whether nothing comes for a while."""
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1) == b"never"
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(10)

    def is_cut(self) -> bool:
        """Whether the other side closes without another byte."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    # --- requests -------------------------------------------------------------------------------------------------

    def number(self, value: int) -> bytes:
        """A value of the listener's width."""
        return value.to_bytes(self.width, "little")

    def insert(self, key: bytes, quota: int, ttl: int, unit: int = S) -> bytes:
        """An INSERT."""
        return b"".join([bytes([INSERT]), self.number(quota), bytes([unit]), self.number(ttl), _named(key)])

    def update(self, key: bytes, attribute: int, change: int, value: int) -> bytes:
        """An UPDATE."""
        return b"".join([bytes([UPDATE, attribute, change]), self.number(value), _named(key)])

    def set(self, key: bytes, value: bytes, ttl: int, unit: int = S) -> bytes:
        """A SET."""
        sizes = bytes([len(key)]) + self.number(len(value))
        return b"".join([bytes([SET, unit]), self.number(ttl), sizes, key, value])

    def keyed(self, code: int, name: bytes) -> bytes:
        """A request that has a key or a channel, and nothing else."""
        return bytes([code]) + _named(name)

    def publish(self, channel: bytes, payload: bytes) -> bytes:
        """A PUBLISH."""
        return b"".join([bytes([PUBLISH, len(channel)]), self.number(len(payload)), channel, payload])

    def event(self, channel: bytes, request: bytes) -> bytes:
        """An EVENT."""
        return b"".join([bytes([EVENT, len(channel)]), self.number(len(request)), channel, request])

    def rule(self, key: bytes, limit: int, cost: int, period: int, algorithm: int = FIXED, unit: int = S) -> bytes:
        """A rule of CONSUME and CONSUME ALL."""
        return b"".join(
            [bytes([algorithm]), self.number(limit), self.number(cost), bytes([unit]), self.number(period), _named(key)]
        )

    # --- answers --------------------------------------------------------------------------------------------------

    def query(self, key: bytes) -> tuple[int, int, int] | None:
        """Quota, unit and remaining time of a counter."""
        self.send(self.keyed(QUERY, key))
        if self.read(1) == b"\x00":
            return None
        quota, unit, ttl = self._value(), self.read(1)[0], self._value()
        return quota, unit, ttl

    def get(self, key: bytes) -> tuple[int, int, bytes] | None:
        """Unit, remaining time and value of a buffer."""
        self.send(self.keyed(GET, key))
        if self.read(1) == b"\x00":
            return None
        unit, ttl = self.read(1)[0], self._value()
        return unit, ttl, self.read(self._value())

    def stat(self, key: bytes) -> tuple[int, ...] | None:
        """Reads and writes per minute, reads and writes in all."""
        self.send(self.keyed(STAT, key))
        return None if self.read(1) == b"\x00" else self._numbers(4)

    def info(self) -> tuple[tuple[int, ...], bytes]:
        """The numbers of INFO, and the version."""
        self.send(bytes([INFO]))
        assert self.read(1) == b"\x01"
        return self._numbers(52), self.read(16)

    def whoami(self) -> bytes:
        """The id of this connection."""
        answer = self.ask(bytes([WHOAMI]), 17)
        assert answer[0] == 1
        return answer[1:]

    def verdict(self) -> tuple[int, int, int, int, int]:
        """Status, limit, remaining, retry after and reset after, both in nanoseconds."""
        status, limit, remaining = self.read(1)[0], self._value(), self._value()
        retry, reset = self._numbers(2)
        return status, limit, remaining, retry, reset

    def consume(self, rule: bytes, mode: int = TAKE) -> tuple[int, int, int, int, int]:
        """Apply a rule."""
        self.send(bytes([CONSUME, mode]) + rule)
        return self.verdict()

    def consume_all(self, rules: list[bytes], mode: int = TAKE) -> tuple[int, list[tuple[int, int, int, int, int]]]:
        """Apply several rules, all or none."""
        self.send(bytes([CONSUME_ALL, mode, len(rules)]) + b"".join(rules))
        status, count = self.read(2)
        return status, [self.verdict() for _ in range(count)]

    def fragments(self, code: int, record_size: int) -> list[list[tuple[bytes, bytes]]]:
        """An answer in fragments: in each, records with their names."""
        self.send(bytes([code]))
        assert self.read(1) == b"\x01"
        (count,) = self._numbers(1)
        return [self._fragment(number, code, record_size) for number in range(1, count + 1)]

    def _fragment(self, expected: int, code: int, record_size: int) -> list[tuple[bytes, bytes]]:
        number, count = self._numbers(2)
        assert number == expected
        records = [self.read(record_size) for _ in range(count)]
        return [(record, b"" if code == CONNECTIONS else self.read(record[0])) for record in records]

    def list_keys(self) -> list[bytes]:
        """The keys that LIST tells, in its order."""
        return [name for fragment in self.fragments(LIST, 11 + self.width) for _, name in fragment]

    def _value(self) -> int:
        return int.from_bytes(self.read(self.width), "little")

    def _numbers(self, count: int) -> tuple[int, ...]:
        data = self.read(8 * count)
        return tuple(int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8))


def _named(name: bytes) -> bytes:
    return bytes([len(name)]) + name


# --- dialogues ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One step of a dialog: something sent, something expected, or both."""

    conn: str
    send: str = ""
    expect: bytes = b""
    mask: bytes = b""
    checks: tuple[tuple[int, int, int, int], ...] = ()
    """Offset, size, least and most of numbers in the answer."""
    capture: dict[str, tuple[int, int]] = field(default_factory=dict)
    pause_ms: int = 0
    quiet_ms: int = 0
    split_at: tuple[int, ...] = ()
    eof: bool = False
    close: bool = False


@dataclass(frozen=True)
class Dialogue:
    """Requests to a fresh server, and its answers."""

    id: str
    name: str
    family: str
    width: str
    metrics: bool
    kind: str
    unordered: bool
    steps: tuple[Step, ...]

    @property
    def url(self) -> str:
        """A listener for it."""
        metrics = "on" if self.metrics else "off"
        return f"throttr://127.0.0.1:0?value={self.width}&protocol={self.family}&metrics={metrics}"


def dialogues() -> Iterator[Dialogue]:
    """All that were recorded."""
    for line in VECTORS.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        yield Dialogue(
            id=record["id"],
            name=record["name"],
            family=record["protocol"][:3],
            width=record["variant"],
            metrics=record["metrics"],
            kind=record["class"],
            unordered=record.get("unordered", False),
            steps=tuple(_step(step) for step in record["steps"]),
        )


def _step(step: dict[str, Any]) -> Step:
    return Step(
        conn=step["conn"],
        send=step.get("send_hex", ""),
        expect=bytes.fromhex(step.get("expect_hex", "")),
        mask=bytes.fromhex(step.get("mask", "")),
        checks=tuple((c["offset"], c["len"], c["min"], c["max"]) for c in step.get("checks", ())),
        capture={name: (part["offset"], part["len"]) for name, part in step.get("capture", {}).items()},
        pause_ms=step.get("pre_sleep_ms", 0),
        quiet_ms=step.get("quiet_ms", 0),
        split_at=tuple(step.get("split_at", ())),
        eof=step.get("eof", False),
        close=step.get("close", False),
    )


def replay(dialogue: Dialogue, connect: Callable[[], ThrottrPeer], pause: Callable[[int], None]) -> None:
    """Say it again, and compare. `pause` lets so many milliseconds pass for the server."""
    peers: dict[str, ThrottrPeer] = {}
    captured: dict[str, str] = {}
    try:
        for number, step in enumerate(dialogue.steps):
            if step.conn not in peers:
                peers[step.conn] = connect()
            peer = peers[step.conn]
            if step.close:
                peer.leave()
                continue
            if step.pause_ms:
                pause(step.pause_ms)
            sent = step.send
            for name, value in captured.items():
                sent = sent.replace(f"{{{name}hex}}", value.encode().hex()).replace(f"{{{name}}}", value)
            _send(peer, bytes.fromhex(sent), step.split_at)
            answer = peer.read(len(step.expect))
            _compare(f"{dialogue.id} step {number}", step, answer, dialogue.unordered)
            for name, (offset, size) in step.capture.items():
                captured[name] = answer[offset : offset + size].hex()
            if step.eof:
                assert peer.is_cut(), f"{dialogue.id} step {number}: still open"
            elif step.quiet_ms:
                assert peer.is_quiet(), f"{dialogue.id} step {number}: not quiet"
    finally:
        for peer in peers.values():
            peer.close()


def _send(peer: ThrottrPeer, data: bytes, split_at: tuple[int, ...]) -> None:
    ends = [*split_at, len(data)]
    begin = 0
    for end in ends:
        if begin:
            # So that the pieces are read one by one, as far as that can be arranged from here.
            time.sleep(0.002)
        peer.send(data[begin:end])
        begin = end


def _compare(place: str, step: Step, answer: bytes, unordered: bool) -> None:
    for offset, size, least, most in step.checks:
        number = int.from_bytes(answer[offset : offset + size], "little")
        assert least <= number <= most, f"{place}: {number} at {offset}"
    if unordered and len(answer) > 100:
        # Records may come in any order; what they are made of may not change.
        assert answer[:17] == step.expect[:17], place
        return
    for at, (found, wanted, mask) in enumerate(zip(answer, step.expect, step.mask, strict=True)):
        assert found & mask == wanted & mask, f"{place}: byte {at} of {answer.hex()} is not that of {step.expect.hex()}"


# --- other widths -------------------------------------------------------------------------------------------------

Part = tuple[bytes, bytes, bool]
"""Bytes, their mask, and whether they are a value of the listener's width."""


class Inexpressible(Exception):
    """The dialog has a value that the width cannot hold."""


def derive(dialogue: Dialogue, width: str) -> Dialogue:
    """The same dialog in another width. Raises `Inexpressible`."""
    size = WIDTHS[width]
    asked: dict[str, list[bytes]] = {}
    pending: dict[str, bytes] = {}
    steps = []
    for step in dialogue.steps:
        marked = step.send.replace("{idhex}", "61" * 32).replace("{id}", "07" * 16)
        data = pending.get(step.conn, b"") + bytes.fromhex(marked)
        requests, rest = _requests(data, dialogue.family)
        split = bool(step.split_at) or bool(rest) or bool(pending.get(step.conn))
        pending[step.conn] = rest
        asked.setdefault(step.conn, []).extend(requests)
        sent = b"".join(_emit(_request_parts(request), size)[0] for request in requests)
        if split and (rest or not requests or len(data) != len(bytes.fromhex(marked))):
            raise Inexpressible("cut requests are cut elsewhere in another width")
        parts = _answer_parts(step, requests, dialogue)
        expect, mask, moved = _emit(parts, size)
        hexed = sent.hex()
        if "{idhex}" in step.send:
            hexed = hexed.replace("61" * 32, "{idhex}")
        if "{id}" in step.send:
            hexed = hexed.replace("07" * 16, "{id}")
        checks = tuple((moved[at], size, least, most) for at, _, least, most in step.checks)
        steps.append(replace(step, send=hexed, expect=expect, mask=mask, checks=checks, split_at=()))
    return replace(dialogue, id=f"{dialogue.id} as {width}", width=width, steps=tuple(steps))


def _emit(parts: list[Part], size: int) -> tuple[bytes, bytes, dict[int, int]]:
    """Bytes and mask in another width, and where each part went."""
    data, masks, moved, before = b"", b"", {}, 0
    for part, mask, is_value in parts:
        moved[before] = len(data)
        before += len(part)
        if is_value:
            value = int.from_bytes(part, "little")
            if part == b"\xff" * len(part):
                value = (1 << (8 * size)) - 1
            if value >= 1 << (8 * size):
                raise Inexpressible(f"{value}")
            data += value.to_bytes(size, "little")
            masks += (b"\xff" if mask == b"\xff" * len(mask) else b"\x00") * size
        else:
            data += part
            masks += mask
    return data, masks, moved


def _requests(data: bytes, family: str) -> tuple[list[bytes], bytes]:
    """Whole requests of width 2, and what is behind them."""
    found = []
    while data:
        size = _request_size(data, family)
        if size is None or size > len(data):
            break
        found.append(data[:size])
        data = data[size:]
    return found, data


def _request_size(data: bytes, family: str) -> int | None:
    code = data[0]
    heads = {
        INSERT: 7,
        QUERY: 2,
        UPDATE: 6,
        PURGE: 2,
        SET: 7,
        GET: 2,
        STAT: 2,
        SUBSCRIBE: 2,
        UNSUBSCRIBE: 2,
        CHANNEL: 2,
    }
    if code in (LIST, INFO, STATS, CONNECTIONS, CHANNELS, WHOAMI):
        return 1
    if code == CONNECTION:
        return 17
    if code == PUBLISH or (code == EVENT and family == "7.3"):
        return None if len(data) < 4 else 4 + data[1] + int.from_bytes(data[2:4], "little")
    if code not in heads or len(data) < heads[code]:
        # An unknown code ends the dialog: it is sent as it is.
        return None if code in heads or code in (PUBLISH,) else len(data)
    if code == SET:
        return 7 + data[4] + int.from_bytes(data[5:7], "little")
    return heads[code] + data[heads[code] - 1]


def _plain(data: bytes) -> Part:
    return data, b"\xff" * len(data), False


def _value(data: bytes) -> Part:
    return data, b"\xff" * len(data), True


def _request_parts(request: bytes) -> list[Part]:
    code = request[0]
    if code == INSERT:
        return [
            _plain(request[:1]),
            _value(request[1:3]),
            _plain(request[3:4]),
            _value(request[4:6]),
            _plain(request[6:]),
        ]
    if code == UPDATE:
        return [_plain(request[:3]), _value(request[3:5]), _plain(request[5:])]
    if code == SET:
        return [
            _plain(request[:2]),
            _value(request[2:4]),
            _plain(request[4:5]),
            _value(request[5:7]),
            _plain(request[7:]),
        ]
    if code == PUBLISH:
        return [_plain(request[:2]), _value(request[2:4]), _plain(request[4:])]
    if code == EVENT:
        channel_end = 4 + request[1]
        raise Inexpressible(f"the size of {request[channel_end:]!r} is another in another width")
    return [_plain(request)]


def _answer_parts(step: Step, requests: list[bytes], dialogue: Dialogue) -> list[Part]:
    """The expected answer taken apart, by what was asked."""
    parts: list[Part] = []
    at = 0

    def take(size: int, is_value: bool = False) -> bytes:
        nonlocal at
        data = step.expect[at : at + size]
        parts.append((data, step.mask[at : at + size], is_value))
        at += size
        return data

    def pushes() -> None:
        marker = 0x03 if dialogue.family == "7.1" else 0x19
        while at < len(step.expect) and step.expect[at] == marker:
            take(1)
            name = take(1)[0] if dialogue.family == "7.3" else 0
            size = int.from_bytes(take(2, True), "little")
            take(name + size)

    for request in requests:
        pushes()
        if at < len(step.expect):
            _one_answer(request[0], step, take)
    pushes()
    assert at == len(step.expect), (dialogue.id, at, step.expect.hex())
    return parts


def _one_answer(code: int, step: Step, take: Callable[..., bytes]) -> None:
    status = take(1)[0]
    if not status and code != INFO:
        return
    if code == QUERY:
        take(2, True), take(1), take(2, True)
    elif code == GET:
        take(1), take(2, True)
        take(int.from_bytes(take(2, True), "little"))
    elif code == LIST:
        fragments = int.from_bytes(take(8), "little")
        for _ in range(fragments):
            take(8)
            keys = 0
            for _ in range(int.from_bytes(take(8), "little")):
                keys += take(1)[0]
                kind = take(1)[0]
                take(9)
                # A counter is as large as its width.
                if kind == 0:
                    raise Inexpressible("sizes of counters differ")
                take(2, True)
            take(keys)
    elif code == INFO:
        raise Inexpressible("INFO counts bytes")
    elif code in (WHOAMI, STAT, STATS, CONNECTIONS, CONNECTION, CHANNELS, CHANNEL):
        size = {WHOAMI: 16, STAT: 32}.get(code, len(step.expect) - 1)
        if code in (CONNECTION, CONNECTIONS):
            raise Inexpressible("CONNECTION counts bytes")
        take(size)
