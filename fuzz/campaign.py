"""Feed all fuzz targets until they have run a number of inputs: `python fuzz/campaign.py --executions 1000000000`.

The targets take turns of a minute. The total of each is printed after every round, and the program ends with 1 as soon
as a target fails; its input is in `fuzz/artifacts/`. Corpora grow in `fuzz/corpus/TARGET/`, so a later run continues.
Crates that the targets test have no unsafe code, so builds have no sanitizer, which makes them several times faster;
arithmetic overflows and failed assertions still end a target. Needs a nightly toolchain and cargo-fuzz.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import corpus

ROOT = Path(__file__).resolve().parent.parent
CARGO_FUZZ = ("cargo", "+nightly", "fuzz")


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executions", type=float, default=1e9, help="inputs in total, over all targets")
    parser.add_argument("--seconds", type=int, default=60, help="duration of a turn")
    arguments = parser.parse_args()
    corpus.unpack()
    listed = subprocess.run([*CARGO_FUZZ, "list"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    totals = dict.fromkeys(listed.stdout.split(), 0)
    while sum(totals.values()) < arguments.executions:
        for target in totals:
            executed = turn(target, arguments.seconds)
            if executed is None:
                return 1
            totals[target] += executed
        print("\t".join(f"{target} {total:,}" for target, total in totals.items()))
        print(f"{sum(totals.values()):,} of {arguments.executions:,.0f} inputs, no finding", flush=True)
    return 0


def turn(target: str, seconds: int) -> int | None:
    """Feed a target, and return the number of its inputs; `None` if one of them is a finding."""
    limits = (f"-max_total_time={seconds}", "-print_final_stats=1", "-timeout=10")
    command = [*CARGO_FUZZ, "run", "--sanitizer", "none", target, "--", *limits]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    executed = re.search(r"stat::number_of_executed_units:\s+(\d+)", done.stderr)
    if done.returncode != 0 or executed is None:
        print(f"{target} failed:\n{done.stderr[-4000:]}")
        return None
    return int(executed[1])


if __name__ == "__main__":
    sys.exit(main())
