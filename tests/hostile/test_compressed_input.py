"""Compressed input: the broker decompresses nothing that a peer sends, and reads backups in little memory."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import mqcore
from damaged_files import SAVING
from hostile.attacks import LISTENERS, address
from mqcore.backup import backup
from served import ServedBroker, clean_environment, serving
from test_unfinished_input import resident

BOMB = gzip.compress(bytes(64 << 20), 9)
"""A thousandth of its content."""
GROWTH = 24 << 20
"""Bytes that the broker's memory may grow by, much less than one bomb needs."""
MEMORY = 200 << 20
"""Bytes of memory that a restoring process may use, most of it for the interpreter and its modules."""
RESTORING = """
import pathlib, sys
from mqcore.cli.program import run

code = run(sys.argv[1:])
print(pathlib.Path("/proc/self/status").read_text())
sys.exit(code)
"""
"""Prints the peak memory of a command. `getrusage` would count the memory of the process that forked it."""
PATHS = ("/authority/reload", "/schedules/x", "/backup", "/overview", "/metrics", "/history", "/trace/x")
ENCODINGS = ("gzip", "deflate", "br", "zstd", "gzip, gzip", "identity, gzip")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    listen = [argument for each in LISTENERS if "tmqps" not in each for argument in ("--listen", each)]
    data = str(tmp_path_factory.mktemp("compressed") / "data")
    with serving(*listen, "--admin", "http://127.0.0.1:0", "--data-dir", data) as running:
        yield running


def is_alive(broker: ServedBroker) -> bool:
    with urllib.request.urlopen(f"{broker.admin_url}/readyz", timeout=10) as answer:
        return bool(answer.status == 200) and not [line for line in broker.stderr_lines if "panicked" in line]


def answer_to(broker: ServedBroker, request: bytes) -> bytes:
    """The start of the answer; empty if the broker closes without one."""
    with socket.create_connection(address(broker, "admin"), timeout=10) as peer:
        # The broker may answer and close before it has read everything.
        with contextlib.suppress(ConnectionError):
            peer.sendall(request)
        with contextlib.suppress(ConnectionError):
            return peer.recv(1 << 16)
    return b""


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("field", ["Content-Encoding", "Transfer-Encoding"])
def test_compressed_bodies_of_admin_requests_are_not_decompressed(
    field: str, encoding: str, broker: ServedBroker
) -> None:
    before = resident(broker)
    for path in PATHS:
        for method in ("POST", "PUT", "GET", "DELETE"):
            head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            head += f"Content-Type: application/json\r\n{field}: {encoding}\r\n"
            head += f"Content-Length: {len(BOMB)}\r\n" if field == "Content-Encoding" else ""
            answer = answer_to(broker, head.encode() + b"\r\n" + BOMB)
            status = int(answer.split(b" ", 2)[1]) if answer else 400
            assert status < 500, (method, path, answer[:200])
    assert resident(broker) - before < GROWTH
    assert is_alive(broker)


def test_the_admin_side_opens_no_websocket_with_compression(broker: ServedBroker) -> None:
    for path in ("/", "/overview", "/dashboard", "/ws"):
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        head += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        head += "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
        assert not answer_to(broker, head.encode()).startswith(b"HTTP/1.1 101"), path


def test_compressed_bytes_are_invalid_input_for_every_protocol(broker: ServedBroker) -> None:
    before = resident(broker)
    for protocol in broker.ready["listeners"]:
        for start in (b"", b"\x28\xb5\x2f\xfd", b"\x78\x9c", b"SSLv3"):
            with socket.create_connection(address(broker, protocol), timeout=10) as peer:
                with contextlib.suppress(ConnectionError):
                    peer.sendall(start + BOMB)
                peer.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionError):
                    while peer.recv(1 << 16):
                        pass
    assert resident(broker) - before < GROWTH
    assert is_alive(broker)


def test_a_message_that_is_a_bomb_passes_unchanged(broker: ServedBroker) -> None:
    """Payloads are bytes: a header or content type that names a compression changes nothing."""

    async def passes() -> bool:
        async with mqcore.connect(broker.url) as mq:
            await mq.declare("bombs", 1, SAVING)
            await mq.publish("bombs/1", BOMB, headers={"Content-Encoding": "gzip", "Content-Type": "application/gzip"})
            async with mq.join("bombs"):
                (message,) = await mq.queue("bombs/1").pull(1)
                assert await message.ack()
                return bool(message.raw == BOMB)

    assert asyncio.run(passes())


def zstd_bomb(gigabytes: int, window_log: int = 17) -> bytes:
    """A frame of Zstandard with so many zeros: blocks of one repeated byte, 4 bytes for 128 KiB."""
    head = b"\x28\xb5\x2f\xfd" + bytes([0, (window_log - 10) << 3])
    block = struct.pack("<I", (128 << 10) << 3 | 1 << 1)[:3] + b"\0"
    last = struct.pack("<I", 1 << 3 | 1 << 1 | 1)[:3] + b"\0"
    return head + block * (gigabytes << 13) + last


@pytest.mark.parametrize("kind", ["alone", "large window", "behind a backup", "within a backup"])
def test_restoring_a_bomb_fails_in_little_memory_and_leaves_nothing(
    kind: str, broker: ServedBroker, tmp_path: Path
) -> None:
    made = tmp_path / "made.tar.zst"
    backup(made, url=broker.admin_url)
    content = made.read_bytes()
    bomb = {
        "alone": zstd_bomb(1),
        "large window": zstd_bomb(1, window_log=31),
        "behind a backup": content + zstd_bomb(1),
        "within a backup": content[: len(content) // 2] + zstd_bomb(1),
    }[kind]
    made.write_bytes(bomb)
    target = tmp_path / "target"
    done = subprocess.run(
        [sys.executable, "-c", RESTORING, "restore", str(made), "--data-dir", str(target)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if kind != "behind a backup":
        assert done.returncode not in (0, 70), done.stderr
        assert done.stderr.startswith("mqcore: "), done.stderr
    peak = int(done.stdout.split("VmHWM:")[1].split()[0]) << 10
    assert peak < MEMORY, f"{peak >> 20} MiB"
    left = sum(path.stat().st_size for path in target.rglob("*") if path.is_file()) if target.exists() else 0
    assert left < 64 << 20, f"{left} bytes are left"
