"""Backups on object storage, with a real S3 API: made, kept, chosen by time, restored; and what can go wrong."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import mqcore
from mqcore import _core, errors
from mqcore.backup import backup, restore
from object_stores import BUCKET, ObjectStore, moto_server
from served import clean_environment

QUEUE = "orders/1001"


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with moto_server() as running:
        yield running


@pytest.fixture
def bucket(store: ObjectStore, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a place in a bucket for one test, whose credentials are in the environment."""
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{re.sub('[^a-z_]', '', request.node.name)}"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[mqcore.Broker]:
    options = mqcore.ChannelOptions(queue=mqcore.QueueOptions(delivery_handler="at-least-once"))
    with mqcore.Broker(
        listen="tmqp://127.0.0.1:0",
        admin="http://127.0.0.1:0",
        data_dir=str(tmp_path / "data"),
        auto_create_channels=True,
        auto_create_queues=True,
        channel=options,
    ) as running:
        yield running


def publish(broker: mqcore.Broker, numbers: range) -> None:
    with mqcore.sync.connect(broker.listeners[0]) as client:
        for number in numbers:
            client.publish(QUEUE, str(number).encode())


def test_a_backup_goes_to_a_bucket_and_comes_back(bucket: str, broker: mqcore.Broker, tmp_path: Path) -> None:
    publish(broker, range(50))
    shown: list[tuple[int, int | None]] = []
    made = backup(
        f"{bucket}/first.tar.zst", url=broker.admin_url, progress=lambda done, total: shown.append((done, total))
    )
    assert made.path == f"{bucket}/first.tar.zst"
    assert made.messages == 50
    assert shown
    restored = restore(made.path, tmp_path / "restored")
    assert restored.messages == 50
    with pytest.raises(errors.ConfigError, match="exists"):
        backup(made.path, url=broker.admin_url)


def test_the_newest_backups_stay_and_one_is_chosen_by_time(bucket: str, broker: mqcore.Broker, tmp_path: Path) -> None:
    made = []
    for count in range(1, 4):
        publish(broker, range(1))
        made.append(backup(f"{bucket}/nightly/", url=broker.admin_url, keep=2))
        assert made[-1].messages == count
    names = _core.ObjectFiles(f"{bucket}/nightly").names()
    assert [f"{bucket}/nightly/{name}" for name in names] == [made[1].path, made[2].path]
    assert restore(f"{bucket}/nightly/", tmp_path / "newest").messages == 3
    # Its name is the time at which the command began.
    last = datetime.strptime(names[1], "mqcore-%Y%m%dT%H%M%S.%fZ.tar.zst").replace(tzinfo=UTC)
    assert restore(f"{bucket}/nightly/", tmp_path / "same", as_of=last).messages == 3
    assert restore(f"{bucket}/nightly/", tmp_path / "earlier", as_of=last - timedelta(milliseconds=1)).messages == 2
    with pytest.raises(errors.DataDirMissing, match="no backup of"):
        restore(f"{bucket}/nightly/", tmp_path / "none", as_of=datetime.now(UTC) - timedelta(days=1))


def test_the_command_line_does_both(bucket: str, broker: mqcore.Broker, tmp_path: Path) -> None:
    publish(broker, range(5))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mqcore", *arguments]
        variables = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        return subprocess.run(
            command, capture_output=True, text=True, env={**clean_environment(), **variables}, check=False
        )

    made = run("backup", "--url", str(broker.admin_url), "--to", f"{bucket}/nightly/", "--keep", "3")
    assert made.returncode == 0, made.stderr
    restored = run("restore", f"{bucket}/nightly/", "--data-dir", str(tmp_path / "restored"))
    assert restored.returncode == 0, restored.stderr
    assert "5 messages" in restored.stderr


def test_a_large_backup_is_sent_in_parts(bucket: str, broker: mqcore.Broker, tmp_path: Path) -> None:
    body = random.Random(1).randbytes(900_000)
    with mqcore.sync.connect(broker.listeners[0]) as client:
        for _ in range(40):
            client.publish(QUEUE, body)
    assert backup(f"{bucket}/large.tar", url=broker.admin_url).bytes > 32 << 20
    assert restore(f"{bucket}/large.tar", tmp_path / "restored").messages == 40


@pytest.mark.parametrize(
    ("place", "raises", "why"),
    [
        ("s3://lake/first", errors.ConfigError, "end the URL with .tar.zst"),
        ("ftp://lake/a.tar.zst", errors.ConfigError, "ftp"),
        ("s3://no-such-bucket-here/a.tar.zst", errors.ArchiveUnreachable, "NoSuchBucket|404"),
    ],
)
def test_a_wrong_place_is_named(
    place: str, raises: type[Exception], why: str, bucket: str, broker: mqcore.Broker
) -> None:
    assert bucket
    publish(broker, range(1))
    with pytest.raises(raises, match=why):
        backup(place, url=broker.admin_url)


def test_a_backup_that_is_missing_or_has_options_of_another_place(bucket: str, tmp_path: Path) -> None:
    with pytest.raises(errors.DataDirMissing, match="there is no object"):
        restore(f"{bucket}/missing.tar.zst", tmp_path / "restored")
    # Also in a whole bucket.
    assert not [name for name in _core.ObjectFiles(f"s3://{BUCKET}").names() if "missing" in name]
    with pytest.raises(errors.DataDirMissing, match="no backup at"):
        restore(f"{bucket}/empty/", tmp_path / "restored")
    with pytest.raises(errors.InvalidArgument, match="keep"):
        backup(tmp_path / "a.tar", data_dir=tmp_path, keep=1)
    with pytest.raises(errors.InvalidArgument, match="as_of"):
        restore(tmp_path / "a.tar", tmp_path / "restored", as_of=datetime.now(UTC))
    assert not (tmp_path / "restored").exists()
