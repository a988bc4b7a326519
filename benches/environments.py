"""Environments of other brokers' programs, made once beside the project: python benches/environments.py eventmq."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import venv
from pathlib import Path

PACKAGES = {
    # Without its pins, which are of 2019.
    "eventmq": (
        ("--no-deps", "eventmq==0.3.13"),
        ("pyzmq==27.*", "six", "croniter", "future", "psutil", "monotonic", "redis"),
    ),
    "celery": (("celery[redis]==5.*",),),
}
"""Installed packages, in steps."""

PLACE = Path(__file__).resolve().parent.parent


def environment(name: str) -> Path:
    """The folder of an environment's programs, made if need be. Raises `CalledProcessError` if it cannot be."""
    place = PLACE / f".venv-{name}"
    done = place / "installed"
    if not done.exists():
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=True)
        for packages in PACKAGES[name]:
            command = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            # It says in red that the versions are not those of 2019; what else it says stands in the error.
            subprocess.run([*command, *packages], check=True, capture_output=True)
        done.touch()
    return place / "bin"


def main() -> None:
    """Print where the programs are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=PACKAGES)
    print(environment(parser.parse_args().name))


if __name__ == "__main__":
    main()
