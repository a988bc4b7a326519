"""The list of crates in a wheel: `tools/check_sbom.py` finds what it lacks, and a real wheel lacks nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from served import ROOT

LISTING = "mqcore-0.1.0.dist-info/sboms/mqcore-python.cyclonedx.json"


def check_sbom(*wheels: Path) -> tuple[int, str]:
    """The exit code and the output of the check."""
    command = [sys.executable, str(ROOT / "tools" / "check_sbom.py"), *map(str, wheels)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert result.stderr == ""
    return result.returncode, result.stdout


def wheel_with(place: Path, files: dict[str, str]) -> Path:
    """A wheel with nothing but `files`."""
    wheel = place / "mqcore-0.1.0-cp311-abi3-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def test_a_wheel_without_a_list_of_crates_is_reported(tmp_path: Path) -> None:
    code, output = check_sbom(wheel_with(tmp_path, {"mqcore-0.1.0.dist-info/METADATA": ""}))
    assert code == 1
    assert "0 files match" in output


def test_missing_and_wrong_crates_of_a_list_are_reported(tmp_path: Path) -> None:
    components = [{"name": "ring", "version": "0.0.1"}]
    listing = {
        "bomFormat": "CycloneDX",
        "metadata": {"component": {"name": "mqcore-python", "version": "0.1.0"}},
        "components": components,
    }
    code, output = check_sbom(wheel_with(tmp_path, {LISTING: json.dumps(listing)}))
    assert code == 1
    assert "ring 0.0.1 is listed and not in Cargo.lock\n" in output
    assert "mqcore-python 0.1.0 is compiled" not in output
    for crate in ("tokio", "ring", "mqcore-server"):
        assert re.search(rf"whl: {crate} \S+ is compiled in and not listed\n", output)


@pytest.mark.full("builds a wheel")
@pytest.mark.timeout(1800)
def test_a_wheel_lists_every_compiled_crate(tmp_path: Path) -> None:
    # The profile and the features of `make develop`, so that the compiled crates are reused.
    command = [sys.executable, "-m", "maturin", "build", "--profile", "dev", "--locked", "--out", str(tmp_path)]
    command += ["--features", "shared-with-tests"]
    command += ["--compatibility", "linux"] if sys.platform == "linux" else []
    env = {"PYO3_PYTHON": sys.executable, "PYO3_BUILD_EXTENSION_MODULE": "1", **os.environ}
    subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, timeout=1700)
    (wheel,) = tmp_path.glob("*.whl")
    assert check_sbom(wheel) == (0, "1 wheels list every compiled crate\n")
