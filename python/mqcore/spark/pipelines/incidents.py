"""Anomalies over consecutive hours, and their alerts: each anomaly is announced once. Does not need Spark."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from mqcore import errors
from mqcore.spark.pipelines.paced import Outbox

__all__ = ["ALERT_SCHEMA", "Alerts", "Incident", "merged"]

ALERT_SCHEMA: Final = "mqcore.alert.anomaly/1"
"""Schema name in the body of an alert."""

_HOUR: Final = 3600
_FORMAT: Final = "mqcore.anomalies/1"


@dataclass(frozen=True)
class Incident:
    """Consecutive hours in which a measure of a queue was too high, or too low."""

    queue: str
    measure: str
    direction: str
    """``high`` or ``low``."""
    start: int
    """First hour, in Unix seconds."""
    end: int
    """End of the last hour, in Unix seconds."""
    value: float
    """Value of the hour that deviates most."""
    expected: float
    """Median of the same hour in earlier weeks."""
    score: float
    """Deviation of that hour, in units of the usual deviation."""
    weeks: int
    """Number of earlier weeks that it was compared with."""

    @property
    def id(self) -> str:
        """Message id of the alert."""
        place = "\n".join((self.queue, self.measure, self.direction, str(self.start)))
        return f"anomaly-{hashlib.sha256(place.encode()).hexdigest()[:20]}"

    def continues(self, other: Incident) -> bool:
        """Whether both are parts of one anomaly: they overlap, or one follows the other without a pause."""
        same = (self.queue, self.measure, self.direction) == (other.queue, other.measure, other.direction)
        return same and self.start <= other.end and other.start <= self.end

    def plain(self) -> dict[str, Any]:
        """Return the incident for JSON, with times in ISO 8601."""
        times = {name: _iso(seconds) for name, seconds in (("start", self.start), ("end", self.end))}
        return asdict(self) | times

    @property
    def text(self) -> str:
        """Description in one sentence."""
        return (
            f"{self.measure} of {self.queue} is {self.value:,.6g}, expected {self.expected:,.6g}, "
            f"since {_iso(self.start)}"
        )


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def merged(hours: Iterable[Incident]) -> list[Incident]:
    """Join consecutive hours of one queue, measure and direction; the largest deviation first."""
    found: list[Incident] = []
    for each in sorted(hours, key=lambda hour: (hour.queue, hour.measure, hour.direction, hour.start)):
        if found and each.continues(found[-1]):
            worst = max(found[-1], each, key=lambda hour: abs(hour.score))
            found[-1] = replace(worst, start=found[-1].start, end=max(found[-1].end, each.end))
        else:
            found.append(each)
    return sorted(found, key=lambda each: (-abs(each.score), each.queue, each.measure, each.start))


class Alerts:
    """Alerts of a directory. A file records which anomalies were announced; each has one alert, also after kills."""

    def __init__(self, directory: Path, queue: str, *, url: str, admin: str, token: str) -> None:
        self._path = directory / "alerts.json"
        self._staging = str(directory / "staging")
        self._queue = queue
        self._url, self._admin, self._token = url, admin, token
        self._record = self._load()

    def _load(self) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            if record["format"] != _FORMAT:
                raise ValueError(record["format"])
            [Incident(**each) for each in record["announced"]]
            return record | {"batch": int(record["batch"]), "name": str(record["name"])}
        except FileNotFoundError:
            # The name distinguishes directories that publish to the same broker.
            return {"format": _FORMAT, "name": f"anomalies-{uuid.uuid4().hex}", "batch": 0, "announced": []}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise errors.DataDirDamaged(f"cannot read the record of alerts {self._path}: {error}") from error

    def announce(self, incidents: Sequence[Incident]) -> int:
        """Publish an alert for each incident that was not announced yet; return how many this call published.

        Raises errors of publishing. The next call publishes the remaining alerts.
        """
        # The name must be known to a later run before anything is published under it.
        self._save()
        published = self._finish(fresh=False)
        known = [Incident(**each) for each in self._record["announced"]]
        new = [each for each in incidents if not any(each.continues(other) for other in known)]
        if new:
            outbox = self._outbox()
            fresh = outbox.commit(outbox.stage_here(self._rows(new)))
            published += self._finish(fresh=fresh)
        self._extend(incidents)
        return published

    def _finish(self, *, fresh: bool) -> int:
        """Publish what is left of the committed batch, if there is one, and record its incidents."""
        outbox = self._outbox()
        if outbox.committed() is None:
            return 0
        bodies = [json.loads(text) for text in outbox.texts("value")]
        published = outbox.publish(fresh=fresh)
        self._record["announced"] += [body["incident"] for body in bodies]
        number = self._record["batch"]
        self._record["batch"] = number + 1
        self._save()
        outbox.sweep()
        return published

    def _extend(self, incidents: Sequence[Incident]) -> None:
        """Record how long announced anomalies last, so that a later part of one is not a new one."""
        announced = []
        for each in (Incident(**values) for values in self._record["announced"]):
            ends = [other.end for other in incidents if other.continues(each)]
            announced.append(asdict(replace(each, end=max([each.end, *ends]))))
        self._record["announced"] = announced
        self._save()

    def _outbox(self) -> Outbox:
        name, number = self._record["name"], self._record["batch"]
        return Outbox(self._staging, name, url=self._url, admin=self._admin, token=self._token, number=number)

    def _rows(self, incidents: Sequence[Incident]) -> pa.RecordBatch:
        bodies = [
            json.dumps({"schema": ALERT_SCHEMA, "text": each.text, **each.plain(), "incident": asdict(each)})
            for each in incidents
        ]
        columns = {"value": bodies, "key": [each.id for each in incidents], "queue": [self._queue] * len(incidents)}
        return pa.RecordBatch.from_pydict(columns, schema=pa.schema([(name, pa.string()) for name in columns]))

    def _save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_name(f".{self._path.name}-{uuid.uuid4().hex}")
        unfinished.write_text(json.dumps(self._record), encoding="utf-8")
        unfinished.replace(self._path)
