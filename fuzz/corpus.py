"""Pack fuzz corpora into one file for each target, and unpack them: `python fuzz/corpus.py pack|unpack`.

`fuzz/corpus/TARGET.hex` has one input a line: its name, a space, its bytes in hex. The corpus tests read these files;
cargo-fuzz reads and extends the folders `fuzz/corpus/TARGET/`, which git ignores.
"""

from __future__ import annotations

import sys
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"


def pack() -> None:
    """Replace each packed corpus by its folder."""
    for folder in sorted(path for path in CORPUS.iterdir() if path.is_dir()):
        inputs = sorted(path for path in folder.iterdir() if path.is_file())
        lines = [f"{path.name} {path.read_bytes().hex()}\n" for path in inputs]
        folder.with_suffix(".hex").write_text("".join(lines))
        print(f"{folder.name}: packed {len(lines)} inputs")


def unpack() -> None:
    """Write the inputs of each packed corpus into its folder."""
    for packed in sorted(CORPUS.glob("*.hex")):
        folder = packed.with_suffix("")
        folder.mkdir(exist_ok=True)
        for line in packed.read_text().splitlines():
            name, _, digits = line.partition(" ")
            (folder / name).write_bytes(bytes.fromhex(digits))


if __name__ == "__main__":
    commands = {"pack": pack, "unpack": unpack}
    if sys.argv[1:] not in (["pack"], ["unpack"]):
        sys.exit(__doc__)
    commands[sys.argv[1]]()
