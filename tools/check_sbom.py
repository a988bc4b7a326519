"""Checks that wheels list the crates of the extension module: `python tools/check_sbom.py dist/*.whl`.

maturin writes the list (CycloneDX) into `*.dist-info/sboms/`. Each crate of crates.io that cargo compiles into the
module for this platform must be listed, and every listed one must have the version of Cargo.lock. The program prints
what differs and exits with 1.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
CRATE: Final = "mqcore-python"
SBOM: Final = re.compile(rf"[^/]+\.dist-info/sboms/{CRATE}\.cyclonedx\.json")


def compiled_crates() -> set[tuple[str, str]]:
    """Name and version of each crate of the extension module on this platform, without build and test dependencies."""
    command = ["cargo", "tree", "--locked", "--package", CRATE, "--edges", "normal", "--prefix", "none"]
    lines = subprocess.run([*command, "--format", "{p}"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {(name, version) for name, version in re.findall(r"^(\S+) v(\S+)", lines, flags=re.MULTILINE)}


def locked_crates() -> set[tuple[str, str]]:
    """Name and version of each crate in Cargo.lock."""
    packages = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    return {(package["name"], package["version"]) for package in packages}


def listed_crates(wheel: Path) -> set[tuple[str, str]]:
    """Name and version of each component in the list of `wheel`; raises ValueError if there is no list."""
    with zipfile.ZipFile(wheel) as files:
        names = [name for name in files.namelist() if SBOM.fullmatch(name)]
        if len(names) != 1:
            raise ValueError(f"{len(names)} files match {SBOM.pattern}; is `rust` on in [tool.maturin.sbom]?")
        document = json.loads(files.read(names[0]))
    if document.get("bomFormat") != "CycloneDX":
        raise ValueError(f"{names[0]} is not CycloneDX")
    components = [document["metadata"]["component"], *document["components"]]
    return {(component["name"], component["version"]) for component in components}


def differences(wheel: Path) -> list[str]:
    """Errors in the list of `wheel`, one a line."""
    try:
        listed = listed_crates(wheel)
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        return [str(error)]
    missing = [f"{name} {version} is compiled in and not listed" for name, version in compiled_crates() - listed]
    unknown = [f"{name} {version} is listed and not in Cargo.lock" for name, version in listed - locked_crates()]
    return sorted(missing + unknown)


def main() -> int:
    """Check each wheel of the command line."""
    wheels = [Path(argument) for argument in sys.argv[1:]]
    if not wheels:
        print("no wheel; give the paths of wheels to check", file=sys.stderr)
        return 2
    wrong = [f"{wheel.name}: {line}" for wheel in wheels for line in differences(wheel)]
    print("\n".join(wrong) or f"{len(wheels)} wheels list every compiled crate")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
