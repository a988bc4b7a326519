"""Writes cron.jsonl: what cronsim, which does as Debian's cron does, says about expressions around changes of clocks.

    pip install cronsim==2.8 && python tests/vectors/make_cron.py > tests/vectors/cron.jsonl

A line is an expression, a zone, a moment and the moments that follow, all in seconds since the epoch. Left out is what
cronsim itself does not mean: a moment twice in a row (two times of one gap), a time that no clock shows, and hours
counted across a change that is not of a whole hour on the hour.
"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from cronsim import CronSim

EXPRESSIONS = """
* * * * *|*/15 * * * *|0 * * * *|30 * * * *|5,35 * * * *|0 */2 * * *|30 */3 * * *|0 0 * * *|15 0 * * *
30 0 * * *|0 1 * * *|30 1 * * *|59 1 * * *|0 2 * * *|15 2 * * *|30 2 * * *|0,30 2 * * *|30 2,14 * * *
0 3 * * *|30 3 * * *|0 1-4 * * *|*/20 2 * * *|10-40/10 1-3 * * *|0 12 * * *|45 23 * * *|0 0 1 * *|30 2 1 * *
0 9 * * 1-5|30 1 * * SUN|30 2 * * 0|30 2 * * 7|0 0 * * MON|0 0 29 2 *|30 2 * 3 SUN|0 3 L * *|0 3 LW * *
30 2 * * SUN#2|30 2 * * 5L|15 1 * * SUN#5|0 0 13 * FRI|0 0 */2 * 1|0 0 1,15 * 3|0 6 1-7 * MON|0 0 1 JAN *
0 0 31 * *|5 4 * * 1-7/2|* 2 * * *|0 0-23 * * *|0 0 * * * *|30 */10 * * * *|0 30 2 * * *|15 30 1 * * *
*/20 59 1 * * *|0 0 3 * * SUN|10,50 15 */2 * * *|0 0 12 L * *
"""
ZONES = """
UTC Europe/Berlin Europe/London Europe/Dublin America/New_York America/Los_Angeles America/Santiago
America/Sao_Paulo America/Havana Asia/Kolkata Asia/Kathmandu Asia/Beirut Africa/Cairo Australia/Sydney
Australia/Adelaide Australia/Lord_Howe Pacific/Apia Pacific/Auckland America/St_Johns
"""
YEARS = (2011, 2017, 2018, 2024, 2025, 2026, 2027)
#: Zones whose clocks change by half an hour, or not on the hour.
ODD_CHANGES = ("America/St_Johns", "Australia/Lord_Howe")
#: Expressions for each change of each zone, and moments for each of them.
SAMPLE, MOMENTS = 14, 8


def changes(zone: ZoneInfo, year: int) -> list[datetime]:
    """Hours of a year in which the zone's offset changes, or where nothing changes the beginning of the year."""
    start = datetime(year, 1, 1, tzinfo=UTC)
    hours = [start + timedelta(hours=hour) for hour in range(366 * 24)]
    found = [later for earlier, later in pairwise(hours) if _offset(earlier, zone) != _offset(later, zone)]
    return found or [start]


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta | None:
    return moment.astimezone(zone).utcoffset()


def following(expression: str, zone: ZoneInfo, start: datetime) -> list[int] | None:
    """The next moments, or nothing where cronsim's answer is not what it means."""
    moments: list[int] = []
    for found in CronSim(expression, start.astimezone(zone)):
        if found != found.astimezone(UTC).astimezone(zone):
            return None
        moment = int(found.timestamp())
        if moment <= int(start.timestamp()):
            # It keeps no note of which of two equal times it began with.
            return None
        if not moments or moments[-1] != moment:
            moments.append(moment)
        if len(moments) == MOMENTS:
            return moments
    return moments


def main() -> None:
    """Write all lines."""
    chance = random.Random(7)
    expressions = [line for row in EXPRESSIONS.strip().splitlines() for line in row.split("|")]
    for name in ZONES.split():
        zone = ZoneInfo(name)
        for change in (change for year in YEARS for change in changes(zone, year)):
            for expression in chance.sample(expressions, SAMPLE):
                fixed = len(expression.split()) == 5 and not any(part[0] == "*" for part in expression.split()[:2])
                if name in ODD_CHANGES and not fixed:
                    continue
                start = change - timedelta(seconds=chance.choice((1, 600, 3600, 7000, 30_000, 100_000)))
                moments = following(expression, zone, start)
                if moments is not None:
                    line = {"cron": expression, "zone": name, "from": int(start.timestamp()), "next": moments}
                    print(json.dumps(line, separators=(",", ":")))


if __name__ == "__main__":
    main()
