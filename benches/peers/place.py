"""The scratch directory: brokers, client libraries and mqcore, installed from the registries of this machine.

Nothing is installed outside of it. Debian packages are unpacked, not installed, so that no root is needed and no
service starts. An installation that fails raises `Missing`, with the reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ROOT", "Missing", "Place", "Program", "clean_environment"]

ROOT = Path(__file__).resolve().parent.parent.parent
"""Root directory of the project."""

NATS_SERVER = "github.com/nats-io/nats-server/v2@v2.15.2"
INSTALL_SECONDS_MAX = 900


def clean_environment() -> dict[str, str]:
    """Return the environment without settings of mqcore, so that a developer's shell changes no figure."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MQCORE_")}


class Missing(Exception):
    """Something cannot be installed here."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and the environment that it needs."""

    path: Path
    environment: dict[str, str] = field(default_factory=dict)
    root: Path = Path("/")
    """Directory in which the package's files are."""


def _run(command: list[str | Path], **options: str | Path | dict[str, str]) -> str:
    """Run a step of an installation and return its output. Raises `Missing` with the last line that it printed."""
    try:
        done = subprocess.run(  # type: ignore[call-overload]
            command, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False, **options
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise Missing(str(error)) from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise Missing(f"{Path(command[0]).name} failed: {lines[-1]}")
    return str(done.stdout)


@dataclass(frozen=True, slots=True)
class Place:
    """The scratch directory."""

    directory: Path
    load: Path
    """The load generator."""
    wheel: Path | None = None
    """A release build of mqcore."""
    mqcore: Path | None = None
    """An interpreter that has mqcore, instead of the wheel."""

    def python(self, environment: str) -> Path:
        """Return the interpreter of an environment, `mqcore` or `peers`, created if need be."""
        if environment == "mqcore" and self.mqcore is not None:
            return self.mqcore
        home = self.directory / f"venv-{environment}"
        program = home / "bin" / "python"
        lock = ROOT / "requirements" / "peers.lock"
        # A new wheel or lock makes a new environment.
        source = self.wheel if environment == "mqcore" else lock
        assert source is not None
        mark, wanted = home / "installed", f"{source} {source.stat().st_mtime_ns} {sys.version}"
        if mark.exists() and mark.read_text() == wanted:
            return program
        shutil.rmtree(home, ignore_errors=True)
        try:
            venv.create(home, with_pip=True)
        except subprocess.CalledProcessError as error:
            raise Missing(f"cannot create {home}: install Python's venv package (Debian: python3-venv)") from error
        pip: list[str | Path] = [program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if environment == "mqcore":
            _run([*pip, "--constraint", self._constraints(), source])
        else:
            _run([*pip, "--require-hashes", "-r", lock])
        mark.write_text(wanted)
        return program

    def _constraints(self) -> Path:
        """Versions of mqcore's dependencies: those with which it is tested."""
        pins = re.findall(r"^[a-z0-9-]+==[^ \\]+", (ROOT / "requirements" / "test.lock").read_text(), re.MULTILINE)
        path = self.directory / "constraints.txt"
        path.write_text("\n".join(pins) + "\n")
        return path

    def nats_server(self) -> Program:
        """A NATS server: the one on the path, built by Go, or Debian's."""
        if found := shutil.which("nats-server"):
            return Program(Path(found))
        built = self.directory / "go" / "nats-server"
        if not built.exists():
            try:
                _run(["go", "install", NATS_SERVER], env={**os.environ, "GOBIN": str(built.parent)})
            except Missing as no_go:
                try:
                    return self.debian("nats-server", "usr/sbin/nats-server")
                except Missing as no_package:
                    raise Missing(f"{no_go}; {no_package}") from None
        return Program(built)

    def debian(self, package: str, program: str, search: bool = True) -> Program:
        """Return the file `program` of a Debian package, unpacked if it is not on the path."""
        if search and (found := shutil.which(Path(program).name)):
            return Program(Path(found))
        root = self.directory / "debian" / package
        if not (root / "unpacked").exists():
            self._unpack(package, root)
        paths = [*root.glob("usr/lib/*-linux-gnu"), *root.glob("lib/*-linux-gnu")]
        libraries = ":".join(map(str, paths))
        environment = {"LD_LIBRARY_PATH": libraries} if libraries else {}
        found_here = next(iter(sorted(root.glob(program))), None)
        if found_here is None:
            raise Missing(f"the package {package} has no {program}")
        return Program(found_here, environment, root)

    def _unpack(self, package: str, root: Path) -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        options = ["-o", "APT::Sandbox::User=root", "--no-install-recommends"]
        planned = _run(["apt-get", "install", "--simulate", "--reinstall", *options, package])
        # With the dependencies that this machine does not have.
        names = re.findall(r"^Inst (\S+)", planned, re.MULTILINE)
        _run(["apt-get", "download", "-o", "APT::Sandbox::User=root", *names], cwd=root)
        for archive in root.glob("*.deb"):
            _run(["dpkg-deb", "--extract", archive, root])
            archive.unlink()
        (root / "unpacked").touch()
