"""Time to import something in a new interpreter: `python -m peers.clients.startup MODULE:ATTRIBUTE - count=N`."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time


def milliseconds(*arguments: str) -> float:
    """Time that a run of this interpreter takes."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-I", *arguments], check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    """Measure the module and an empty program in turn."""
    module, _, *pairs = sys.argv[1:]
    count = int(dict(pair.split("=") for pair in pairs).get("count", "10"))
    # `-m MODULE ARGUMENT` is a program, anything else MODULE:ATTRIBUTE to import.
    name, _, attribute = module.partition(":")
    program = module.split() if module.startswith("-m") else ["-c", f"from {name} import {attribute}"]
    milliseconds(*program)
    empty, with_module = [], []
    for _ in range(count):
        empty.append(milliseconds("-c", "pass"))
        with_module.append(milliseconds(*program))
    whole, baseline = statistics.median(with_module), statistics.median(empty)
    imported = whole if module.startswith("-m") else whole - baseline
    print(json.dumps({"milliseconds": imported, "empty": baseline}))


if __name__ == "__main__":
    main()
