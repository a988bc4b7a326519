"""`mqcore doctor`: checks a broker, its configuration and its machine, and says how to repair what it finds."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mqcore.cli import options, output
from mqcore.cli.checks import Check
from mqcore.cli.exit_code import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["doctor"]

_STYLES: Final = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "cyan"}
_STATES: Final = {"critical": "fail", "warning": "warn", "info": "warn"}

_SKEW_MAX: Final = 2.0
"""Difference between the clocks of this machine and the broker that is a warning, in seconds."""

_DESCRIPTORS_MIN: Final = 4096
"""Open files below which a broker accepts too few connections."""

_GROUP_OR_OTHERS: Final = 0o077


@click.command(short_help="Check a broker, its configuration and its machine.")
@options.admin_side(timeout="15s")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also check this configuration file, and all nodes of the cluster in its table [cluster].",
)
@click.option("--data-dir", type=click.Path(path_type=Path), metavar="DIR", help="Also check this data directory.")
@options.as_json
def doctor(
    url: str, config: Path | None, data_dir: Path | None, timeout: float, token: str | None, as_json: bool
) -> int:
    """Check everything that commonly goes wrong, change nothing, and print a remedy for each problem.

    Exit code 0 if all is well, 1 if something needs attention, 5 if the broker does not answer.
    """
    checks = [*_configuration(config), *_cluster(config), *_directory(data_dir)]
    reached = True
    for check in _broker(url, timeout, token):
        checks.append(check)
        reached = reached and not (check.name == "broker" and check.state == "fail")
    if as_json:
        output.document("mqcore.doctor/1", {"checks": [output.plain(check) for check in checks]})
    else:
        for check in checks:
            _print(check)
    if not reached:
        return ExitCode.UNREACHABLE
    return ExitCode.REFUSED if any(check.state in {"warn", "fail"} for check in checks) else ExitCode.DONE


def _print(check: Check) -> None:
    click.echo(f"{click.style(check.state.ljust(4), fg=_STYLES[check.state])}  {check.name}: {check.text}")
    if check.remedy is not None:
        click.echo(f"      to do: {check.remedy}")


def _configuration(file: Path | None) -> Iterator[Check]:
    if file is None:
        yield Check(state="skip", name="configuration", text="not checked; name the file with --config")
        return
    from mqcore import errors
    from mqcore.cli.config_problems import problems_of
    from mqcore.config import BrokerConfig

    is_valid = True
    try:
        for problem in problems_of(file):
            text = f"{problem.place} {problem.message}"
            yield Check(state="fail", name="configuration", text=text, remedy=f"correct {file}")
            is_valid = False
        if is_valid:
            # With the variables, which may be wrong too.
            BrokerConfig.load(file)
            yield Check(state="ok", name="configuration", text=f"{file} is valid")
    except (errors.ConfigError, OSError) as error:
        yield Check(state="fail", name="configuration", text=str(error), remedy=f"correct {file}")


def _cluster(file: Path | None) -> Iterator[Check]:
    if file is None:
        return
    from mqcore import errors
    from mqcore.cli.cluster_checks import cluster_checks
    from mqcore.cli.cluster_nodes import ask_nodes
    from mqcore.config import BrokerConfig

    try:
        config = BrokerConfig.load(file).cluster
    except (errors.ConfigError, OSError):
        # The check of the configuration has reported it.
        return
    if config is None:
        return
    try:
        yield from cluster_checks(ask_nodes(config))
    except errors.ConfigError as error:
        yield Check(state="fail", name="cluster", text=str(error), remedy=f"correct the table [cluster] in {file}")


def _directory(directory: Path | None) -> Iterator[Check]:
    if directory is None:
        yield Check(state="skip", name="data directory", text="not checked; name it with --data-dir")
        return
    try:
        mode = directory.stat().st_mode
    except OSError as error:
        yield Check(
            state="fail",
            name="data directory",
            text=f"{directory}: {error.strerror}",
            remedy="name an existing directory that this user may read",
        )
        return
    if mode & _GROUP_OR_OTHERS:
        yield Check(
            state="warn",
            name="data directory",
            text=f"{directory} can be read or changed by other users of this machine (mode {mode & 0o777:o})",
            remedy=f"chmod 700 {directory}",
        )
    else:
        yield Check(state="ok", name="data directory", text=f"only its owner has access to {directory}")


def _broker(url: str, timeout: float, token: str | None) -> Iterator[Check]:
    from mqcore import errors
    from mqcore._http import AdminClient

    client = AdminClient(url, token=token, timeout=timeout)
    before = time.time()
    try:
        attention = client.ask("GET", "/attention?limit=10000")
        after = time.time()
        overview = client.ask("GET", "/overview?limit=0")
    except errors.MqcoreError as error:
        yield Check(
            state="fail",
            name="broker",
            text=str(error),
            remedy="start it with --admin, or name its admin side with --url; with users it needs --token",
        )
        return
    yield Check(state="ok", name="broker", text=f"version {overview['version']} answers at {client.url}")
    yield _version(overview["version"])
    yield _clock(overview, (before + after) / 2)
    yield from _descriptors(overview["pid"], client.url)
    yield _encryption(overview)
    if not attention["findings"]:
        yield Check(state="ok", name="findings", text="nothing needs attention")
    for finding in attention["findings"]:
        yield Check(
            state=_STATES.get(finding["severity"], "warn"),
            name=finding["kind"],
            text=f"{finding['subject']}: {finding['cause']}",
            remedy=finding["remedy"],
        )


def _version(of_broker: str) -> Check:
    import mqcore

    here = f"{mqcore.__version__} on Python {platform.python_version()}"
    if of_broker == mqcore.__version__:
        return Check(state="ok", name="version", text=f"this program is {here}, as the broker")
    return Check(
        state="warn",
        name="version",
        text=f"the broker is {of_broker}, this program {here}",
        remedy="install the same version on both machines: pip install --upgrade mqcore",
    )


def _clock(overview: dict[str, Any], here: float) -> Check:
    skew = overview["now_ms"] / 1000 - here
    if abs(skew) <= _SKEW_MAX:
        return Check(state="ok", name="clock", text=f"differs from this machine's by {abs(skew):.1f} s")
    direction = "ahead of" if skew > 0 else "behind"
    return Check(
        state="warn",
        name="clock",
        text=f"the broker's clock is {abs(skew):.0f} s {direction} this machine's",
        remedy="run a time service on both machines (chrony, systemd-timesyncd)",
    )


def _descriptors(process: int, url: str) -> Iterator[Check]:
    limits = Path(f"/proc/{process}/limits")
    is_here = any(host in url for host in ("//127.", "//localhost", "//[::1]"))
    try:
        lines = limits.read_text().splitlines() if is_here else []
        soft = next(int(line.split()[3]) for line in lines if line.startswith("Max open files"))
    except (OSError, ValueError, StopIteration):
        yield Check(state="skip", name="open files", text="the broker is on another machine, or not readable from here")
        return
    if soft < _DESCRIPTORS_MIN:
        yield Check(
            state="warn",
            name="open files",
            text=f"the broker may open {soft:,} files, so it accepts fewer connections",
            remedy="raise the limit: ulimit -n 65536, or LimitNOFILE= in its systemd unit",
        )
    else:
        yield Check(state="ok", name="open files", text=f"the broker may open {soft:,}")


def _encryption(overview: dict[str, Any]) -> Check:
    remote = [listener["url"] for listener in overview["listeners"] if not _is_local(listener["url"])]
    plain = [each for each in remote if each.split("://")[0] in _PLAIN_SCHEMES]
    if plain:
        return Check(
            state="warn",
            name="encryption",
            text=f"{', '.join(plain)} accepts other machines without TLS",
            remedy="use a TLS listener, such as tmqps://; see docs/tls.md",
        )
    return Check(state="ok", name="encryption", text="no listener accepts other machines without TLS")


_PLAIN_SCHEMES: Final = frozenset({"tmqp", "emqp", "mqks", "mm2", "throttr"})


def _is_local(url: str) -> bool:
    rest = url.partition("://")[2]
    return "+unix" in url or rest.startswith(("127.", "localhost", "[::1]", "/"))
