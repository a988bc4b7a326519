"""Compares the instructions of ten hot paths with `counts.json`: `make bench-guard`.

Valgrind counts them, so that it works in a virtual machine without performance counters, and whatever else the machine
does. A path runs with few and with many rounds; the difference, divided by the rounds, is the cost of one. Counts
depend on the compiler and its target: with another one than the file names, nothing is compared.

    make bench-guard                        # exit code 1: a path needs more, or less, than recorded
    make bench-guard GUARD_FLAGS=--update   # record what this build needs; say why in the commit
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RECORDED = Path(__file__).resolve().with_name("counts.json")
TOLERANCE = 0.03
"""Part by which a count may differ from the recorded one."""

ROUNDS = {
    "publish-deliver-ack": (20, 60),
    "journal-batch": (20, 60),
    "topic-match": (200, 600),
    "router-rule": (200, 600),
}
"""Few and many rounds; of paths with small steps more."""
ROUNDS_OF_OTHERS = (2_000, 12_000)

COUNTER = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")


def compiler() -> dict[str, str]:
    """Version and target of the compiler, on which counts depend."""
    said = subprocess.run(["rustc", "--version", "--verbose"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = dict(re.findall(r"^(release|host): (.+)$", said.stdout, re.MULTILINE))
    return {"rustc": found["release"], "target": found["host"]}


def built() -> Path:
    """Build the program of the paths and return where it is."""
    command = ["cargo", "build", "--release", "--locked", "-p", "mqcore-guard"]
    done = subprocess.run([*command, "--message-format=json"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("target", {}).get("name") == "mqcore-guard" and message.get("executable"):
            return Path(message["executable"])
    raise RuntimeError("cargo named no program")


def instructions(program: Path, path: str, rounds: int) -> int:
    """Instructions of a whole run."""
    command = [*COUNTER, str(program), path, str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if found is None:
        raise RuntimeError(f"no count in the output of valgrind: {done.stderr[-200:]}")
    return int(found[1].replace(",", ""))


def cost(program: Path, path: str) -> float:
    """Instructions of a round."""
    few, many = ROUNDS.get(path, ROUNDS_OF_OTHERS)
    return (instructions(program, path, many) - instructions(program, path, few)) / (many - few)


def main() -> int:
    """Count, and compare or record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="record the counts of this build")
    parser.add_argument("--require", action="store_true", help="fail if nothing can be compared")
    options = parser.parse_args()

    def skipped(why: str) -> int:
        print(f"skipped: {why}")
        return 1 if options.require else 0

    if shutil.which("valgrind") is None:
        return skipped("needs valgrind (Debian: apt-get install valgrind)")
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {"instructions": {}}
    here = compiler()
    there = {name: recorded.get(name) for name in here}
    if not options.update and here != there:
        return skipped(
            f"recorded with {there}, this is {here}; choose that compiler with RUSTUP_TOOLCHAIN={there['rustc']}, "
            "or record anew with GUARD_FLAGS=--update on a revision that is good"
        )
    program = built()
    names = subprocess.run([program, "list"], capture_output=True, text=True, check=True).stdout.split()
    found = {name: round(cost(program, name), 1) for name in names}
    print(f"{'path':22} {'recorded':>12} {'now':>12} {'change':>8}")
    failed = []
    for name, now in found.items():
        before = recorded["instructions"].get(name)
        change = None if before is None else now / before - 1
        shown = "new" if change is None else f"{change:+.1%}"
        print(f"{name:22} {'' if before is None else f'{before:,.1f}':>12} {now:>12,.1f} {shown:>8}")
        if change is None or abs(change) > TOLERANCE:
            failed.append(name)
    if options.update:
        RECORDED.write_text(json.dumps({**here, "instructions": found}, indent=2) + "\n")
        print(f"recorded in {RECORDED.relative_to(ROOT)}")
        return 0
    for name in failed:
        print(f"{name} differs by more than {TOLERANCE:.0%}: repair it, or record the gain with GUARD_FLAGS=--update")
    gone = recorded["instructions"].keys() - found.keys()
    for name in sorted(gone):
        print(f"{name} is recorded and not counted any more: record anew with GUARD_FLAGS=--update")
    return 1 if failed or gone else 0


if __name__ == "__main__":
    sys.exit(main())
