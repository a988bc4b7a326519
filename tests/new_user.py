"""Tries mqcore as a new user does: a clean environment, the package, and nothing but the pages of the site.

`PYTHONPATH=tests python -m new_user [WHEEL]` installs the wheel, follows the start page and the tutorial, and prints
how long each page takes. Without a wheel, it packs the files of this working copy into one. Reading takes longer than
running, so the limits of the pages, 2 and 30 minutes, are for both together.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

import mqcore
from documented import Reader
from ports import free_ports
from served import ROOT, clean_environment

FIRST_MESSAGE_SECONDS_MAX = 120.0
TUTORIAL_SECONDS_MAX = 1800.0
CHAPTERS = ("index", "embed", "decide", "consume", "retry", "test", "operate")


def pack(directory: Path) -> Path:
    """Pack the package of this working copy, with its extension module, into a wheel that pip installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name = f"mqcore-{mqcore.__version__}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    tag = f"cp311-abi3-{platform}"
    required = "".join(f"Requires-Dist: {requirement}\n" for requirement in project["dependencies"])
    groups = {"console_scripts": project["scripts"], **project.get("entry-points", {})}
    points = (
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in groups[group].items()) for group in groups
    )
    metadata = {
        "METADATA": f"Metadata-Version: 2.1\nName: mqcore\nVersion: {mqcore.__version__}\n{required}",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: new_user\nRoot-Is-Purelib: false\nTag: {tag}\n",
        "entry_points.txt": "\n".join(points),
    }
    wheel = directory / f"{name}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted((ROOT / "python" / "mqcore").rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(ROOT / "python"))
        for file, text in metadata.items():
            archive.writestr(f"{name}.dist-info/{file}", text)
        archive.writestr(f"{name}.dist-info/RECORD", "")
    return wheel


def base_python() -> str:
    """The Python below this environment, as a user has one."""
    return str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")


def follow(wheel: Path, directory: Path) -> dict[str, float]:
    """Follow the pages in new environments, and return the seconds of each page."""
    tmqp, admin = free_ports(2)
    ports = {"127.0.0.1:2622": f"127.0.0.1:{tmqp}", "127.0.0.1:2627": f"127.0.0.1:{admin}"}
    replaced = {
        **ports,
        "pip install mqcore": f"pip install --quiet {wheel}",
        "python3 -m venv": f"{base_python()} -m venv",
    }
    environment = {name: value for name, value in clean_environment().items() if name != "VIRTUAL_ENV"}
    environment |= {
        "PATH": os.defpath,
        # The other default ports may be in use on this machine.
        "MQCORE_LISTEN": f"tmqp://127.0.0.1:{tmqp}",
        "MQCORE_URL": f"tmqp://127.0.0.1:{tmqp}",
        "MQCORE_ADMIN": f"http://127.0.0.1:{admin}",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
    }
    seconds = {}
    for title, pages in (("first", ["index.md"]), ("tutorial", [f"tutorial/{chapter}.md" for chapter in CHAPTERS])):
        place = directory / title
        place.mkdir()
        reader = Reader(place, dict(environment), replaced, installs=True)
        try:
            for page in pages:
                reader.follow(page)
        finally:
            reader.close()
        seconds |= reader.seconds
    return seconds


def main() -> int:
    """Follow the pages and print how long they took."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        started = time.monotonic()
        wheel = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else pack(directory)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, packed in {time.monotonic() - started:.1f} s")
        seconds = follow(wheel, directory)
    for page, took in seconds.items():
        print(f"{took:7.1f} s  {page}")
    tutorial = sum(took for page, took in seconds.items() if page != "index.md")
    print(f"first message: {seconds['index.md']:.1f} s; tutorial: {tutorial:.1f} s")
    return int(seconds["index.md"] > FIRST_MESSAGE_SECONDS_MAX or tutorial > TUTORIAL_SECONDS_MAX)


def reachable() -> bool:
    """Whether pip finds packages."""
    with tempfile.TemporaryDirectory() as directory:
        command = [base_python(), "-m", "pip", "download", "--quiet", "--no-deps", "--dest", directory, "click"]
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
