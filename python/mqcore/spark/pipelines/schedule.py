"""Times of nightly runs, and files with which systemd makes them. Does not need Spark."""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Sequence
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Final

from mqcore import errors

__all__ = ["UNIT", "next_run", "time_of_day", "units", "write_units"]

UNIT: Final = "mqcore-pipelines"
"""Name of the systemd units."""
_TIME: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")


def time_of_day(text: str) -> time:
    """Parse a local time such as ``02:30`` or ``02:30:15``. Raises `ConfigError`."""
    match = _TIME.fullmatch(text.strip())
    if match is not None:
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        if hours < 24 and minutes < 60 and seconds < 60:
            return time(hours, minutes, seconds)
    raise errors.ConfigError(f"invalid time of day {text!r}; use HH:MM, such as 02:30")


def next_run(now: datetime, at: time, jitter: float = 0.0, *, chance: random.Random | None = None) -> datetime:
    """Return the next moment at the local time `at`, delayed by a random part of `jitter` seconds.

    `now` has a time zone. A time that does not exist on the day when clocks are set forward is moved by the length of
    the gap; of a time that occurs twice, the first occurrence counts.

    ::

        next_run(datetime.now().astimezone(), time_of_day("02:30"), 600)
    """
    delay = timedelta(seconds=(chance or random.SystemRandom()).uniform(0, jitter)) if jitter else timedelta()
    zone = now.tzinfo
    for days in range(3):
        local = datetime.combine(now.date() + timedelta(days=days), at)
        # From a naive local time, so that the offset is that of the day of the run.
        moment = local.replace(tzinfo=zone) if hasattr(zone, "key") else local.astimezone()
        if moment.timestamp() > now.timestamp():
            return moment + delay
    raise AssertionError("one of three days has a later moment")


def units(command: Sequence[str], at: time, jitter: float, user: str | None = None) -> dict[str, str]:
    """Return the files of a systemd timer and its service that run `command` every day, by file name.

    ::

        for name, text in units(["/opt/mqcore/bin/mqcore", "pipeline", "run", ...], time_of_day("02:30"), 600).items():
            (Path("/etc/systemd/system") / name).write_text(text)
    """
    # systemd understands the shell's quotes, but replaces % and $ also within them.
    words = " ".join(shlex.quote(word).replace("%", "%%").replace("$", "$$") for word in command)
    identity = f"User={user}\n" if user else ""
    service = f"""# Runs pipelines once; {UNIT}.timer starts it. Written by mqcore pipeline schedule.

[Unit]
Description=mqcore pipelines
Documentation=https://pypi.org/project/mqcore/

[Service]
Type=oneshot
ExecStart={words}
{identity}Nice=10
IOSchedulingClass=idle
# A finding, such as an unaccounted message, is a failure of the unit, so that monitoring sees it.
"""
    timer = f"""# Starts {UNIT}.service every day. Written by mqcore pipeline schedule.

[Unit]
Description=mqcore pipelines every day at {at:%H:%M:%S}

[Timer]
OnCalendar=*-*-* {at:%H:%M:%S}
RandomizedDelaySec={jitter:.0f}
# After a missed run, for example because the machine was off.
Persistent=true

[Install]
WantedBy=timers.target
"""
    return {f"{UNIT}.service": service, f"{UNIT}.timer": timer}


def write_units(directory: Path, files: dict[str, str]) -> list[Path]:
    """Write unit files, and return their paths. Raises `ConfigError` if the directory does not exist."""
    if not directory.is_dir():
        raise errors.ConfigError(f"{directory} is not a directory; units of the system belong into /etc/systemd/system")
    paths = []
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
        paths.append(directory / name)
    return paths
