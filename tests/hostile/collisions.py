"""Names of which very many have the same hash, for common hash functions without a key.

Each function has a state of 32 bits that a byte changes. Two blocks that lead from a state to the same next state are
found by the birthday paradox. Twenty such pairs, one after the other, give 2**20 names with one hash.
"""

from __future__ import annotations

import itertools
import random
import string
import zlib
from collections.abc import Callable, Iterator

Step = Callable[[int, bytes], int]

_ALPHABET = (string.ascii_lowercase + string.digits).encode()
_WORD = (1 << 32) - 1


def _bytewise(change: Callable[[int, int], int]) -> Step:
    def step(state: int, block: bytes) -> int:
        for byte in block:
            state = change(state, byte) & _WORD
        return state

    return step


HASHES: dict[str, tuple[int, Step]] = {
    "fnv-1a": (0x811C_9DC5, _bytewise(lambda state, byte: (state ^ byte) * 0x0100_0193)),
    # The lower half of its 64 bits, which choose the place in a table, depends on itself only.
    "fnv-1a 64": (0x8422_2325, _bytewise(lambda state, byte: (state ^ byte) * 0x0000_01B3)),
    "djb2": (5381, _bytewise(lambda state, byte: state * 33 + byte)),
    "java": (0, _bytewise(lambda state, byte: state * 31 + byte)),
    "crc-32": (0, lambda state, block: zlib.crc32(block, state)),
}
"""Each function's first state, and the state after a block."""


def colliding(name: str, count: int, chance: random.Random) -> list[bytes]:
    """So many different names of equal length with one hash."""
    state, step = HASHES[name]
    first, pairs = state, []
    while 1 << len(pairs) < count:
        pair, state = _collide(step, state, chance)
        pairs.append(pair)
    names = [b"".join(blocks) for blocks in itertools.islice(itertools.product(*pairs), count)]
    assert {step(first, one) for one in names[:: max(1, count // 50)]} == {state}
    return names


def unrelated(count: int, length: int, chance: random.Random) -> list[bytes]:
    """So many random names of this length."""
    return [bytes(chance.choices(_ALPHABET, k=length)) for _ in range(count)]


def _collide(step: Step, state: int, chance: random.Random) -> tuple[tuple[bytes, bytes], int]:
    seen: dict[int, bytes] = {}
    # There are four billion blocks, far more than the 80,000 in which two collide.
    for block in _blocks(chance):
        after = step(state, block)
        if (other := seen.setdefault(after, block)) != block:
            return (other, block), after
    raise AssertionError("blocks do not end")


def _blocks(chance: random.Random) -> Iterator[bytes]:
    while True:
        yield b"%08x" % chance.getrandbits(32)
