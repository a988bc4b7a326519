"""Output of `mqcore journal`, `backup` and `restore` for people, about intact and damaged data directories."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import mqcore
from damaged_files import ONE_SHARD, mq_journal, overwrite, segment_of_killed_broker
from mqcore import QueueOptions, QueueStatus, sync
from served import serving
from test_cli import complaint, one
from test_cli import mqcore as run
from test_cli_answers import said

SAVING = QueueOptions(status=QueueStatus.PULL, delivery_handler="at-least-once")
INTACT = "intact: no saved message is lost"
LOST = r"shard-0: segment \d+: checksum mismatch; 1 records are lost"
TOTALS = r"\d+ segments of 1 shards, \d+ records, {live} live, \d+ bytes, \d+ definitions"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a stopped broker with two messages."""
    directory = tmp_path_factory.mktemp("intact") / "data"
    with mqcore.Broker(data_dir=str(directory), shards=1) as broker, sync.connect(broker) as client:
        client.create_queue("orders/1", SAVING)
        client.publish_many("orders/1", ["one", "☃"])
    return directory


@pytest.fixture
async def damaged(tmp_path: Path) -> Path:
    """The directory of a killed broker with 20 messages, of which a changed byte has damaged one."""
    segment = await segment_of_killed_broker(tmp_path / "damaged")
    overwrite(segment, segment.read_bytes().index(b"body 7"), b"BODY")
    return tmp_path / "damaged"


# --- verify, accept-loss and compact --------------------------------------------------------------------------


def test_verify_prints_one_line_about_an_intact_directory(data_dir: Path) -> None:
    code, text, talk = said("journal", "verify", str(data_dir))
    assert (code, talk) == (0, "")
    assert re.fullmatch(rf"{TOTALS.format(live=2)}; {INTACT}\n", text), text


def test_losses_are_explained_until_they_are_accepted(damaged: Path) -> None:
    code, text, talk = said("journal", "verify", str(damaged))
    assert (code, talk) == (6, "")
    assert re.search(rf"^{LOST}.*\n    Confirmed messages may be lost here; ", text, flags=re.MULTILINE), text
    *_, verdict, advice = text.splitlines()
    assert verdict.endswith("; DAMAGED: confirmed messages may be lost")
    assert advice == (
        "1 losses: their shards take no durable messages until you run: "
        f"mqcore journal accept-loss --data-dir {damaged}"
    )
    code, text, talk = said("journal", "accept-loss", "--data-dir", str(damaged))
    assert (code, text) == (0, "")
    heading, loss = talk.splitlines()
    assert heading == "accepted:"
    assert re.match(LOST, loss)
    again = ("journal", "accept-loss", "--data-dir", str(damaged))
    assert said(*again) == (0, "", "there is no loss to accept\n")
    assert one(run(*again, "--json")) == {"schema": "mqcore.journal.accept-loss/1", "accepted": []}


def test_compaction_reports_damage_and_what_it_dropped(damaged: Path) -> None:
    size = sum(path.stat().st_size for path in damaged.glob("shard-*/*.segment"))
    code, text, talk = said("journal", "compact", str(damaged))
    assert (code, text) == (6, "")
    summary, damage, *_, quarantined = talk.splitlines()
    assert re.fullmatch(rf"{size} bytes before, \d+ after", summary)
    assert damage.startswith("shard 0: read ")
    assert "are unreadable and lost" not in talk
    (file,) = damaged.rglob("*.quarantined")
    assert quarantined == (f"quarantined damaged segments: shard-0/{file.name}; delete them with --drop-quarantined")
    dropped = file.stat().st_size
    code, text, talk = said("journal", "compact", str(damaged), "--drop-quarantined")
    assert (code, text) == (0, "")
    assert re.fullmatch(rf"\d+ bytes before, \d+ after, {dropped} dropped\n", talk), talk
    assert not file.exists()


# --- backup and restore ---------------------------------------------------------------------------------------


def test_backup_and_restore_report_what_they_copied(data_dir: Path, tmp_path: Path) -> None:
    copy, new = tmp_path / "copy", tmp_path / "new"
    # MQCORE_URL may be an admin side; the option counts.
    code, text, talk = said("backup", "--data-dir", str(data_dir), "--to", str(copy), url="http://127.0.0.1:1")
    assert (code, text) == (0, "")
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert re.fullmatch(rf"{re.escape(str(copy))}: \d+ bytes in \d+ files, as of {time}\n", talk), talk
    code, text, talk = said("restore", str(copy), "--data-dir", str(new))
    assert (code, text) == (0, "")
    restored = r"2 messages and \d+ definitions in 1 shards, 0 limits, 0 schedules, as of"
    assert re.fullmatch(rf"{re.escape(str(new))}: {restored} {time}\n", talk), talk


def test_backup_of_a_running_broker_counts_its_messages(data_dir: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(data_dir, tmp_path / "data")
    with mqcore.Broker(data_dir=str(directory), admin="http://127.0.0.1:0") as broker:
        for number, (arguments, url) in enumerate(
            ((("--url", str(broker.admin_url)), "http://127.0.0.1:1"), ((), str(broker.admin_url)))
        ):
            copy = tmp_path / f"copy-{number}"
            code, text, talk = said("backup", *arguments, "--to", str(copy), url=url)
            assert (code, text) == (0, ""), talk
            assert talk.startswith(f"{copy}: 2 messages, ")


def test_restore_of_damaged_files_reports_the_damage(damaged: Path, tmp_path: Path) -> None:
    copy, new = str(tmp_path / "copy"), str(tmp_path / "new")
    assert said("backup", "--data-dir", str(damaged), "--to", copy)[0] == 0
    code, text, talk = said("restore", copy, "--data-dir", new)
    assert (code, text) == (6, "")
    summary, *damage = talk.splitlines()
    assert re.match(rf"{re.escape(new)}: \d+ messages and \d+ definitions in 1 shards, ", summary)
    assert any(re.match(LOST, line) for line in damage), talk
    shutil.rmtree(new)
    result = run("restore", copy, "--data-dir", new, "--json")
    assert (result.returncode, b'"damaged": true' in result.stdout) == (6, True)


# --- export and replay ----------------------------------------------------------------------------------------


def test_exported_lines_are_utf8(data_dir: Path) -> None:
    exported = mq_journal("export", data_dir, "--queue", "orders/1")
    first, second = exported.stdout.splitlines()
    assert (exported.returncode, '"body": "one"' in first, '"body": "☃"' in second) == (0, True, True)


def test_dry_run_lists_the_selected_queues(data_dir: Path) -> None:
    dry_run = ("journal", "replay", str(data_dir), "--to", "again/1", "--dry-run")
    heading = "queue\tmessages\tbytes\n"
    everything = (0, f"{heading}orders/1\t2\t6\n", "2 messages would be published to again/1\n")
    nothing = (0, heading, "0 messages would be published to again/1\n")
    assert said(*dry_run) == everything
    for since in ("2020-01-31T12:00", "1h", "3600s"):
        assert said(*dry_run, "--since", since) == everything
        assert said(*dry_run, "--until", since) == nothing
    assert said(*dry_run, "--since", "2100-01-31") == nothing


@pytest.mark.parametrize("rate", ["500", "500/s", "30/m", "1/h"])
def test_rates_below_and_above_one_message_per_second_are_accepted(data_dir: Path, rate: str) -> None:
    assert said("journal", "replay", str(data_dir), "--to", "again/1", "--dry-run", "--rate", rate)[0] == 0


@pytest.mark.parametrize(
    ("option", "why"),
    [
        (
            ("--since", "yesterday"),
            "invalid time 'yesterday'; use 2026-01-31T12:00 (UTC) or a time before now such as 2h",
        ),
        (
            ("--rate", "inf/s"),
            "invalid rate 'inf/s'; use messages per second (500/s), minute (/m) or hour (/h)",
        ),
    ],
)
def test_wrong_times_and_rates_are_explained(data_dir: Path, option: tuple[str, str], why: str) -> None:
    wrong = run("journal", "replay", str(data_dir), "--to", "again/1", "--dry-run", *option)
    assert wrong.returncode == 2
    assert why in complaint(wrong)


# --- messages for upstream brokers ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forwarding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a killed broker that kept messages for an unreachable upstream broker."""
    directory = tmp_path_factory.mktemp("forwarding") / "data"
    node = ("--upstream", "tmqp://127.0.0.1:1", "--keep-messages", "--auto-create", "--data-dir", str(directory))
    with serving(*node, environment=ONE_SHARD) as broker:
        assert said("publish", "orders/1", "x", "--count", "3", url=broker.url)[0] == 0
        broker.process.kill()
        broker.process.wait()
    return directory


def test_kept_messages_for_upstream_brokers_are_counted(forwarding: Path) -> None:
    code, text, talk = said("journal", "ls", str(forwarding))
    heading, *rows = text.splitlines()
    assert (code, heading) == (0, "journal\tnumber\trecords\tlive\tbytes\tstate")
    assert any(row.startswith("nodes\t1\t") for row in rows)
    totals = TOTALS.format(live=r"\d+")
    assert re.fullmatch(rf"{totals}, 3 messages for upstream brokers\n", talk), talk
    assert one(run("journal", "ls", str(forwarding), "--json"))["forwards"] == 3
