"""Which shard has which queue: names spread over all shards, and a data directory never changes its rule."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from damaged_files import SAVING, verify
from mqcore import journal
from mqcore.backup import backup, restore
from mqcore.sync import connect
from served import ServedBroker, serving

SHARDS = 4
ENVIRONMENT = {"MQCORE_SHARDS": str(SHARDS)}


def old_shard(name: str) -> int:
    """The shard of a name in data directories of older versions: FNV-1a."""
    value = 0xCBF2_9CE4_8422_2325
    for byte in name.lower().encode():
        value = (value ^ byte) * 0x0100_0000_01B3 % (1 << 64)
    return (value >> 32) % SHARDS


def adversarial(count: int) -> list[str]:
    """Names that an older version puts into shard 3."""
    numbers = iter(range(1_000_000))
    names = (f"chosen-{number}" for number in numbers)
    return [name for name, _ in zip(filter(lambda name: old_shard(name) == 3, names), range(count), strict=False)]


def save(broker: ServedBroker, names: list[str]) -> None:
    """Save a message in a queue of each channel, and kill the broker."""
    with connect(broker.url) as client:
        for name in names:
            client.declare(name, 1, SAVING)
            client.publish(f"{name}/1", f"body of {name};")
    broker.process.send_signal(signal.SIGKILL)
    broker.process.wait()


def places(directory: Path, names: list[str]) -> dict[str, int]:
    """The shard whose journal has the message of each name."""
    found: dict[str, int] = {}
    for path in directory.glob("shard-*/*.segment"):
        content = path.read_bytes()
        shard = int(path.parent.name.removeprefix("shard-"))
        found.update({name: shard for name in names if f"body of {name};".encode() in content})
    assert found.keys() == set(names)
    return found


def assert_all_there(broker: ServedBroker, names: list[str]) -> None:
    """Each queue has its message once."""
    with connect(broker.url) as client:
        for name in names:
            found = client.queue(f"{name}/1").information()
            assert found.messages == 1, name
            (message,) = client.queue(f"{name}/1").pull(1)
            assert message.body == f"body of {name};".encode()


def test_names_chosen_for_one_shard_spread_over_all_and_stay_there(tmp_path: Path) -> None:
    directory, names = tmp_path / "data", adversarial(200)
    with serving("--data-dir", str(directory), environment=ENVIRONMENT) as broker:
        save(broker, names)
    before = places(directory, names)
    counts = Counter(before.values())
    # 50 each on average, with a standard deviation of 6.
    assert counts.keys() == set(range(SHARDS))
    assert max(counts.values()) < 110, counts
    # Names from before the restart are found in their shards, and later messages go there too.
    with serving("--data-dir", str(directory), environment=ENVIRONMENT) as broker, connect(broker.url) as client:
        for name in names[:20]:
            assert client.queue(f"{name}/1").information().messages == 1
            client.publish(f"{name.upper()}/1", f"more of {name};")
        broker.process.kill()
        broker.process.wait()
    for name in names[:20]:
        shard = directory / f"shard-{before[name]}"
        assert any(f"more of {name};".encode() in path.read_bytes() for path in shard.glob("*.segment")), name
    assert verify(directory)[0] == 0


def test_directories_have_different_keys(tmp_path: Path) -> None:
    names = [f"q{number}" for number in range(40)]
    found = []
    for directory in (tmp_path / "one", tmp_path / "other"):
        with serving("--data-dir", str(directory), environment=ENVIRONMENT) as broker:
            save(broker, names)
        assert (directory / "format").read_text().startswith("mqcore data 3\n")
        found.append(places(directory, names))
    assert found[0] != found[1]


@pytest.mark.parametrize("version", [1, 2])
def test_old_directory_keeps_its_placement_and_all_messages(tmp_path: Path, version: int) -> None:
    directory = tmp_path / "data"
    names = [*adversarial(20), *(f"q{number}" for number in range(20)), "Mixed-CASE"]
    directory.mkdir()
    (directory / "format").write_text(f"mqcore data 1, shards {SHARDS}\n")
    with serving("--data-dir", str(directory), environment=ENVIRONMENT) as broker:
        save(broker, names)
    assert places(directory, names) == {name: old_shard(name) for name in names}
    if version == 1:
        # As the old version leaves it; the broker above has upgraded the file.
        (directory / "format.copy").unlink()
        (directory / "format").write_text(f"mqcore data 1, shards {SHARDS}\n")
    with serving("--data-dir", str(directory)) as broker:
        assert_all_there(broker, names)
        assert broker.terminate() == 0
    text = (directory / "format").read_text()
    assert text.startswith("mqcore data 2\n")
    assert "placement" not in text
    assert verify(directory)[0] == 0


def test_restored_backup_keeps_the_key(tmp_path: Path) -> None:
    directory, copied, restored = tmp_path / "data", tmp_path / "copy", tmp_path / "restored"
    names = [f"q{number}" for number in range(40)]
    with serving("--data-dir", str(directory), "--admin", "http://127.0.0.1:0", environment=ENVIRONMENT) as broker:
        with connect(broker.url) as client:
            for name in names:
                client.declare(name, 1, SAVING)
                client.publish(f"{name}/1", f"body of {name};")
        backup(copied, url=broker.admin_url)
        assert broker.terminate() == 0
    assert not restore(copied, restored).is_damaged
    journal.compact(restored)
    assert places(restored, names) == places(directory, names)
    with serving("--data-dir", str(restored)) as broker:
        assert_all_there(broker, names)
