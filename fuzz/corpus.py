"""Pack fuzz corpora into one file for each target, and unpack them: `python fuzz/corpus.py pack|unpack`.

`fuzz/corpus/TARGET.hex` has one input a line: its name, a space, its bytes in hex. The corpus tests read these files;
cargo-fuzz reads and extends the folders `fuzz/corpus/TARGET/`, which git ignores.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"
HASH = re.compile(r"[0-9a-f]{40}")


def packed(path: Path) -> dict[str, bytes]:
    """The inputs of a packed corpus, by name."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {name: bytes.fromhex(digits) for name, _, digits in (line.partition(" ") for line in lines)}


def pack() -> None:
    """Replace each packed corpus by its folder. Inputs with names of their own stay: tests of formats rely on them, and
    cargo-fuzz, which names inputs by their hash, would drop those that reach no other code.
    """
    for folder in sorted(path for path in CORPUS.iterdir() if path.is_dir()):
        target = folder.with_suffix(".hex")
        inputs = {name: data for name, data in packed(target).items() if not HASH.fullmatch(name)}
        named = set(inputs.values())
        found = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        inputs |= {name: data for name, data in found.items() if data not in named}
        lines = [f"{name} {data.hex()}\n" for name, data in sorted(inputs.items())]
        target.write_text("".join(lines))
        print(f"{folder.name}: packed {len(lines)} inputs")


def unpack() -> None:
    """Write the inputs of each packed corpus into its folder."""
    for path in sorted(CORPUS.glob("*.hex")):
        folder = path.with_suffix("")
        folder.mkdir(exist_ok=True)
        for name, data in packed(path).items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    commands = {"pack": pack, "unpack": unpack}
    if sys.argv[1:] not in (["pack"], ["unpack"]):
        sys.exit(__doc__)
    commands[sys.argv[1]]()
