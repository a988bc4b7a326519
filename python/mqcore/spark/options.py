"""Options of the data source ``mqcore``: names, values and defaults.

Spark passes options as text, with names in any case. Unknown options are errors, because a typing mistake would
otherwise silently select the default.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal

from mqcore import errors
from mqcore.spark.place import archive_url, local_path

__all__ = ["EARLIEST", "LATEST", "ReadOptions", "WriteOptions", "byte_count"]

EARLIEST: Final = -2
"""Sequence in ``startingOffsets`` for the earliest row."""
LATEST: Final = -1
"""Sequence for the end of the history when the query starts."""

View = Literal["messages", "steps"]
Positions = Literal["earliest", "latest"] | dict[int, int]

_SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_READ: Final = (
    "path",
    "paths",
    "archive",
    "archiveOptions",
    "admin",
    "token",
    "ca",
    "cert",
    "key",
    "timeout",
    "retries",
    "view",
    "columns",
    "includeHeaders",
    "includeMeta",
    *_SELECTIONS,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    *_BATCH_ONLY,
    *_STREAM_ONLY,
    "minPartitions",
    "maxPartitionBytes",
    "failOnDataLoss",
    "failOnMissingQueue",
)
_WRITE: Final = (
    "url",
    "token",
    "channel",
    "queue",
    "stagingLocation",
    "checkpointLocation",
    "sinkId",
    "txnAppId",
    "txnVersion",
    "admin",
    "adminToken",
    "timeout",
    "retries",
    "window",
    "rejectedQueue",
    "maxMessageBytes",
    "autoCreateQueues",
)
_ENGINE: Final = frozenset({"queryname", "outputmode", "trigger"})
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}
_TIME_UNITS: Final = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def _checked(options: Mapping[str, str], known: Iterable[str], where: str) -> dict[str, str]:
    names = {name.lower(): name for name in known}
    found: dict[str, str] = {}
    for key, value in options.items():
        name = names.get(key.lower())
        if name is None:
            if key.lower() in _ENGINE:
                continue
            near = difflib.get_close_matches(key.lower(), names, 1)
            hint = f"did you mean {names[near[0]]}? " if near else ""
            raise errors.ConfigError(f"unknown option {key!r} for {where}; {hint}use {', '.join(names.values())}")
        found[name] = value
    return found


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).strip().lower()
    if text not in {"true", "false"}:
        raise errors.ConfigError(f"{name} must be true or false, not {options[name]!r}")
    return text == "true"


def _count(options: Mapping[str, str], name: str, least: int) -> int | None:
    if name not in options:
        return None
    try:
        count = int(options[name])
    except ValueError:
        count = least - 1
    if count < least:
        raise errors.ConfigError(f"{name} must be an integer of at least {least}, not {options[name]!r}")
    return count


def byte_count(name: str, text: str) -> int:
    """Parse a size in bytes in Spark's notation: ``64m``, ``1g`` or a plain number. Raises `ConfigError`."""
    match = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    if match is None or match.group(2) not in _UNITS or int(match.group(1)) == 0:
        raise errors.ConfigError(f"{name} must be a size such as 64m, not {text!r}")
    return int(match.group(1)) * _UNITS[match.group(2)]


def _positions(options: Mapping[str, str], name: str, default: Positions) -> Positions:
    text = options.get(name)
    if text is None:
        return default
    if text.strip().lower() in {"earliest", "latest"}:
        return "earliest" if text.strip().lower() == "earliest" else "latest"
    try:
        return {int(shard): _sequence(place) for shard, place in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, KeyError):
        raise errors.ConfigError(
            f'{name} must be earliest, latest, or JSON with a sequence per shard such as {{"0": 1048576, "1": -2}}; '
            f"not {text!r}"
        ) from None


def _sequence(place: object) -> int:
    """Parse a sequence, or a journal and a sequence as in checkpoints."""
    sequence = place["sequence"] if isinstance(place, dict) else place
    if not isinstance(sequence, int) or sequence < EARLIEST:
        raise ValueError(sequence)
    return sequence


def _moment(options: Mapping[str, str], name: str) -> int | None:
    """Unix microseconds."""
    text = options.get(name)
    if text is None:
        return None
    try:
        return _microseconds(text)
    except ValueError:
        raise errors.ConfigError(
            f"{name} must be Unix milliseconds or a time such as 2026-11-21T08:00:00Z, not {text!r}"
        ) from None


def _microseconds(text: str) -> int:
    if re.fullmatch(r"\d+", text):
        return int(text) * 1000
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000_000)


def _moments(options: Mapping[str, str], name: str, other: str) -> dict[int, int] | None:
    """Unix microseconds by shard."""
    text = options.get(name)
    if text is None:
        return None
    if other in options:
        raise errors.ConfigError(f"{other} and {name} exclude each other; use one of them")
    try:
        moments = {int(shard): _microseconds(str(moment)) for shard, moment in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise errors.ConfigError(
            f"{name} must be JSON with Unix milliseconds or a time per shard such as "
            f'{{"0": 1795000000000, "1": "2026-11-21T08:00:00Z"}}; not {text!r}'
        ) from None
    if not moments:
        raise errors.ConfigError(f"{name} must not be empty")
    return moments


def _assigned(options: Mapping[str, str]) -> dict[str, frozenset[int]] | None:
    """Shards by channel or queue."""
    text = options.get("assign")
    if text is None:
        return None
    try:
        found = {str(queue): frozenset(map(_shard, shards)) for queue, shards in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        found = {}
    if not found or not all(found.values()):
        raise errors.ConfigError(
            'assign must be JSON with the shards of each channel or queue such as {"orders": [0, 1], "logs/2": [0]}; '
            f"not {text!r}"
        )
    return found


def _shard(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(number)
    return number


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """A time above zero, as a plain number of seconds or in Spark's notation: ``90s``, ``15m``."""
    if name not in options:
        return default
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", options[name].lower())
    if match is None or match.group(2) not in _TIME_UNITS or float(match.group(1)) == 0:
        raise errors.ConfigError(f"{name} must be a time above 0 such as 30s or 15m, not {options[name]!r}")
    return float(match.group(1)) * _TIME_UNITS[match.group(2)]


@dataclass(frozen=True)
class ReadOptions:
    """Options of ``spark.read`` and ``spark.readStream``. Created by `ReadOptions.parse`."""

    paths: tuple[str, ...]
    admin: str | None
    token: str | None
    view: View
    columns: tuple[str, ...] | None
    include_headers: bool
    include_meta: bool
    queues: tuple[str, ...] | None
    pattern: str | None
    starting: Positions | None
    ending: Positions
    since_us: int | None
    until_us: int | None
    rows_per_trigger: int | None
    min_partitions: int | None
    """Minimum number of tasks; `None`: as many as there are cores, if each has enough to read."""
    partition_bytes: int
    fail_on_data_loss: bool
    assigned: dict[str, frozenset[int]] | None = None
    """Shards by channel or queue; `None`: all shards."""
    since_by_shard: dict[int, int] | None = None
    until_by_shard: dict[int, int] | None = None
    min_rows_per_trigger: int | None = None
    trigger_delay: float = 900.0
    """Seconds after which a batch may have fewer rows than that minimum."""
    fail_on_missing_queue: bool = True
    ca: str | None = None
    """Path, or PEM as text. The same for `cert` and `key`."""
    cert: str | None = None
    key: str | None = None
    timeout: float = 60.0
    retries: int = 10
    archive: str | None = None
    """URL of an archive on object storage."""
    archive_options: tuple[str, ...] = field(default=(), repr=False)
    """Settings ``name=value`` of the object store, which can be secrets."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
        """Parse Spark's options. Raises `ConfigError` for an unknown option or an invalid value.

        `streaming` is the kind of the query, and also refuses the options of the other kind; `None`: not known yet.
        """
        given = _checked(options, _READ, "reading mqcore")
        if streaming is not None:
            _check_kind(given, streaming)
        archive, paths = _places(given)
        if (view := given.get("view", "messages").strip().lower()) not in {"messages", "steps"}:
            raise errors.ConfigError(f"view must be messages or steps, not {given['view']!r}")
        selections = [name for name in _SELECTIONS if name in given]
        if len(selections) > 1:
            raise errors.ConfigError(f"{' and '.join(selections)} exclude each other; use one of them")
        _check_tls(given)
        assigned, retries = _assigned(given), _count(given, "retries", 0)
        return cls(
            paths=paths,
            admin=given.get("admin"),
            token=given.get("token"),
            view="steps" if view == "steps" else "messages",
            columns=_names(given, "columns"),
            include_headers=_flag(given, "includeHeaders", False),
            include_meta=_flag(given, "includeMeta", False),
            queues=_names(given, "subscribe") if assigned is None else tuple(assigned),
            pattern=given.get("subscribePattern"),
            starting=_positions(given, "startingOffsets", "earliest") if "startingOffsets" in given else None,
            ending=_positions(given, "endingOffsets", "latest"),
            since_us=_moment(given, "startingTimestamp"),
            until_us=_moment(given, "endingTimestamp"),
            rows_per_trigger=_count(given, "maxOffsetsPerTrigger", 1),
            min_partitions=_count(given, "minPartitions", 1),
            partition_bytes=byte_count("maxPartitionBytes", given.get("maxPartitionBytes", "64m")),
            fail_on_data_loss=_flag(given, "failOnDataLoss", True),
            assigned=assigned,
            since_by_shard=_moments(given, "startingOffsetsByTimestamp", "startingTimestamp"),
            until_by_shard=_moments(given, "endingOffsetsByTimestamp", "endingTimestamp"),
            min_rows_per_trigger=_least_rows(given),
            trigger_delay=_seconds(given, "maxTriggerDelay", 900.0),
            fail_on_missing_queue=_flag(given, "failOnMissingQueue", True),
            ca=given.get("ca"),
            cert=given.get("cert"),
            key=given.get("key"),
            timeout=_seconds(given, "timeout", 60.0),
            retries=10 if retries is None else retries,
            archive=archive,
            archive_options=_store_options(given),
        )

    @property
    def place(self) -> str:
        """Where the history is, for messages."""
        if self.admin is not None:
            return self.admin.partition("?")[0].rpartition("@")[2]
        return self.paths[0] if self.archive is None else self.archive


def _check_kind(given: Mapping[str, str], streaming: bool) -> None:
    for name in _BATCH_ONLY if streaming else _STREAM_ONLY:
        if name in given:
            raise errors.ConfigError(
                f"{name} is only for spark.read; a stream has no end, so remove it, or stop the query by a trigger "
                "such as availableNow"
                if streaming
                else f"{name} is only for spark.readStream; remove it, or limit the rows by endingOffsets"
            )


def _least_rows(given: Mapping[str, str]) -> int | None:
    least, most = _count(given, "minOffsetsPerTrigger", 1), _count(given, "maxOffsetsPerTrigger", 1)
    if least is not None and most is not None and least > most:
        raise errors.ConfigError(f"minOffsetsPerTrigger ({least}) must not exceed maxOffsetsPerTrigger ({most})")
    if least is None and "maxTriggerDelay" in given:
        raise errors.ConfigError("maxTriggerDelay needs minOffsetsPerTrigger, for which a batch may wait")
    return least


def _check_tls(given: Mapping[str, str]) -> None:
    named = [name for name in ("ca", "cert", "key") if name in given]
    if named and not given.get("admin", "").startswith("https://"):
        raise errors.ConfigError(f"{named[0]} is for TLS; set admin to https://HOST:PORT, or remove it")
    if "key" in given and "cert" not in given:
        raise errors.ConfigError("key is the private key of cert; set cert too")


def _places(given: Mapping[str, str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the URL of the archive, and the data directory."""
    if "paths" in given:
        try:
            paths = tuple(map(str, json.loads(given["paths"])))
        except ValueError:
            raise errors.ConfigError(f"paths must be a JSON list of paths, not {given['paths']!r}") from None
    else:
        paths = (given["path"],) if "path" in given else ()
    if len(paths) > 1:
        raise errors.ConfigError("a query reads one data directory or archive; combine several queries with union")
    if paths and "archive" in given:
        raise errors.ConfigError("path and archive exclude each other; name the archive once")
    archive = given.get("archive", archive_url(paths[0]) if paths else None)
    if archive is not None and "://" not in archive:
        raise errors.ConfigError(
            f"archive must be the URL of an archive on object storage, such as s3://BUCKET/PREFIX, not {archive!r}; "
            "name a data directory by path"
        )
    if "archiveOptions" in given and archive is None and "path" not in given:
        raise errors.ConfigError("archiveOptions are for an archive on object storage; name it by archive, or by path")
    if archive is not None or bool(paths) != ("admin" in given):
        return archive, () if archive is not None else tuple(local_path("path", path) for path in paths)
    raise errors.ConfigError(
        "path and admin exclude each other; say either where the data directory of the broker is, or where its admin "
        "side listens"
        if paths
        else "say where the history is: the data directory of the broker (load or path), the URL of its archive on "
        "object storage (load, path or archive), or its admin side (admin), such as http://HOST:2627. A table of "
        "CREATE TABLE ... USING mqcore has no options; use CREATE TEMPORARY VIEW ... USING mqcore OPTIONS (path '...')"
    )


def _store_options(given: Mapping[str, str]) -> tuple[str, ...]:
    if "archiveOptions" not in given:
        return ()
    try:
        settings = json.loads(given["archiveOptions"]).items()
        found = tuple(f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in settings)
    except (ValueError, AttributeError):
        # Without the value, which can contain secrets.
        raise errors.ConfigError(
            'archiveOptions must be JSON with settings of the object store such as {"aws_region": "eu-central-1"}'
        ) from None
    return found


def _names(given: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    if name not in given:
        return None
    names = tuple(part.strip() for part in given[name].split(",") if part.strip())
    if not names:
        raise errors.ConfigError(f"{name} must not be empty")
    return names


@dataclass(frozen=True)
class WriteOptions:
    """Options of ``df.write`` and ``writeStream``. Created by `WriteOptions.parse`."""

    url: str
    token: str | None
    queue: str | None
    staging: str
    sink: str | None
    version: int | None
    admin: str | None
    admin_token: str | None
    timeout: float
    retries: int
    window: int
    rejected: str | None
    """Queue of rejected rows."""
    message_bytes: int
    """Largest message that the listener accepts."""
    creates_queues: bool
    """Whether the broker creates missing queues."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
        """Parse Spark's options. Raises `ConfigError`."""
        given = _checked(options, _WRITE, "writing to mqcore")
        if "url" not in given:
            raise errors.ConfigError(
                "the option url is missing; set it to the broker's listener, such as tmqp://HOST:2622"
            )
        if "channel" in given and "queue" in given:
            raise errors.ConfigError("channel and queue exclude each other; set channel or queue, not both")
        queue = given.get("queue", f"{given['channel']}/0" if "channel" in given else None)
        staging = given.get("stagingLocation", given.get("checkpointLocation"))
        if staging is None:
            raise errors.ConfigError(
                "stagingLocation is a directory that the driver and every executor see under the same name; "
                "a stream may leave it out where it has a checkpointLocation of that kind"
            )
        if ("txnAppId" in given) != ("txnVersion" in given):
            raise errors.ConfigError(
                "txnAppId and txnVersion belong together; set both (writer and number of the write) or none"
            )
        if streaming and "txnAppId" in given:
            raise errors.ConfigError(
                "txnAppId and txnVersion are only for df.write; a stream numbers its batches itself"
            )
        retries = _count(given, "retries", 0)
        try:
            timeout = float(given.get("timeout", "60"))
        except ValueError:
            timeout = 0.0
        if not timeout > 0:
            raise errors.ConfigError(f"timeout must be more than 0 seconds, not {given['timeout']!r}")
        return cls(
            url=given["url"],
            token=given.get("token"),
            queue=queue,
            staging=local_path("stagingLocation", staging),
            sink=given.get("txnAppId", given.get("sinkId")),
            version=_count(given, "txnVersion", 0),
            admin=given.get("admin"),
            admin_token=given.get("adminToken", given.get("token")),
            timeout=timeout,
            retries=10 if retries is None else retries,
            window=_count(given, "window", 1) or 32_768,
            rejected=given.get("rejectedQueue"),
            message_bytes=byte_count("maxMessageBytes", given.get("maxMessageBytes", "64m")),
            creates_queues=_flag(given, "autoCreateQueues", False),
        )
