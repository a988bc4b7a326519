"""Definitions are exported, compared and imported; an import of what exists changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqcore
from mqcore import Binding, ChannelOptions, QueueOptions, definitions, errors, sync
from test_cli import mqcore as cli
from test_cli import one

SECRETS = ("token", "password", "secret")


@pytest.fixture
def brokers() -> Iterator[tuple[sync.Client, sync.Client]]:
    """Clients of two brokers: one with definitions of every kind, and an empty one."""
    with (
        mqcore.Broker(listen="tmqp://127.0.0.1:0") as full,
        mqcore.Broker(listen="tmqp://127.0.0.1:0") as empty,
        sync.connect(full.listeners[0]) as old,
        sync.connect(empty.listeners[0]) as new,
    ):
        define(old)
        yield old, new


def define(client: sync.Client) -> None:
    """Create channels, queues and routers with many options."""
    client.create_channel(
        "orders",
        ChannelOptions(
            queue=QueueOptions(status="roundrobin", request_acknowledge=True, acknowledge_timeout=7),
            client_limit=5,
            allowed_queues=(1, 2, 65535),
        ),
    )
    # Created before the queue that it names, but listed before it as well.
    client.create_channel("zebra")
    client.create_queue("zebra/9", QueueOptions(status="pull"))
    client.create_queue(
        "orders/1",
        QueueOptions(
            tag="created",
            dead_letter="zebra/9",
            message_limit=10,
            publish_limit="100/s",
            retry_delay="2s",
            put_back_limit=3,
        ),
    )
    client.create_queue("orders/2", QueueOptions(dead_letter="drop", deduplication_window=60, message_timeout=1.5))
    client.create_channel("logs/eu")
    client.create_queue("logs/eu/0", QueueOptions(status="cache"))
    client.create_router("by-name", "only-first")
    client.bind("by-name", Binding("orders/1", priority=5))
    client.bind("by-name", Binding("@name:kiosk", "kiosk", content_type=7, method="round-robin"))
    client.create_router("off")
    client.disable_router("off")


def test_an_import_makes_a_broker_like_the_exported_one_and_a_second_one_changes_nothing(
    brokers: tuple[sync.Client, sync.Client],
) -> None:
    old, new = brokers
    exported = json.loads(json.dumps(definitions.export(old)))
    planned = definitions.plan(new, exported)
    assert new.channels() == [], "a plan changes nothing"
    done = definitions.apply(new, exported)
    assert {change.subject for change in done} == {change.subject for change in planned}
    assert definitions.export(new) == exported
    assert definitions.apply(new, exported) == []


def test_differences_are_shown_and_repaired(brokers: tuple[sync.Client, sync.Client]) -> None:
    old, new = brokers
    exported = definitions.export(old)
    definitions.apply(new, exported)
    new.update_queue("orders/1", QueueOptions(message_limit=99, status="paused", tag="other"))
    new.update_channel("orders", ChannelOptions(client_limit=0))
    new.enable_router("off")
    new.unbind("by-name", "orders/1")
    new.bind("by-name", Binding("orders/1", priority=1))
    found = {change.subject: dict(change.options) for change in definitions.plan(new, exported)}
    assert found == {
        "queue orders/1": {"message_limit": (99, 10), "status": ("paused", "roundrobin"), "tag": ("other", "created")},
        "channel orders": {"client_limit": (0, 5)},
        "router off": {"enabled": (True, False)},
        "binding orders/1 of router by-name": {"target": ("orders/1", "orders/1")},
    }
    definitions.apply(new, exported)
    assert definitions.export(new) == exported


def test_an_option_that_the_definitions_do_not_set_is_removed(brokers: tuple[sync.Client, sync.Client]) -> None:
    old, new = brokers
    exported = definitions.export(old)
    definitions.apply(new, exported)
    new.update_queue("zebra/9", QueueOptions(dead_letter="orders/2", publish_limit="5/s", tag="animal"))
    definitions.apply(new, exported)
    assert definitions.export(new) == exported


def test_an_option_that_cannot_be_removed_is_an_error_and_spoils_no_other_change(
    brokers: tuple[sync.Client, sync.Client],
) -> None:
    old, new = brokers
    exported = definitions.export(old)
    definitions.apply(new, exported)
    new.update_queue("zebra/9", QueueOptions(retry_delay=3))
    new.update_queue("logs/eu/0", QueueOptions(status="pull"))
    with pytest.raises(errors.BadRequest, match="retry_delay cannot be removed"):
        definitions.apply(new, exported)
    assert new.queue_information("logs/eu/0").status == "cache"


def test_nothing_is_removed_and_messages_stay(brokers: tuple[sync.Client, sync.Client]) -> None:
    old, new = brokers
    new.create_channel("own")
    new.create_queue("own/1", QueueOptions(status="pull"))
    new.publish("own/1", b"kept")
    definitions.apply(new, definitions.export(old))
    assert new.queue_information("own/1").messages == 1


def test_a_document_has_no_secrets(brokers: tuple[sync.Client, sync.Client]) -> None:
    text = json.dumps(definitions.export(brokers[0])).lower()
    assert not [word for word in SECRETS if word in text]


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({}, "its member schema is not mqcore.definitions/1"),
        ({"schema": "mqcore.definitions/2"}, "its member schema is not mqcore.definitions/1"),
        ({"schema": "mqcore.definitions/1"}, "lack a member"),
        ({"schema": "mqcore.definitions/1", "channels": [{}], "queues": [], "routers": []}, "lack a member"),
    ],
)
def test_other_documents_are_refused(
    document: dict[str, Any], why: str, brokers: tuple[sync.Client, sync.Client]
) -> None:
    with pytest.raises(errors.ConfigError, match=why):
        definitions.apply(brokers[1], document)


def test_the_first_error_is_raised_after_everything_else_is_made(brokers: tuple[sync.Client, sync.Client]) -> None:
    old, new = brokers
    exported = definitions.export(old)
    exported["queues"][0]["options"]["dead_letter"] = "nowhere/1"
    with pytest.raises(errors.OperationError, match="nowhere/1"):
        definitions.apply(new, exported)
    left = [change.subject for change in definitions.plan(new, exported)]
    assert left == [f"queue {exported['queues'][0]['queue']}"]


def test_the_commands_export_compare_and_import(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    with (
        mqcore.Broker(listen="tmqp://127.0.0.1:0") as full,
        mqcore.Broker(listen="tmqp://127.0.0.1:0") as empty,
    ):
        source, target = full.listeners[0], empty.listeners[0]
        with sync.connect(source) as client:
            define(client)
        printed = cli("definitions", "export", url=source)
        assert printed.returncode == 0, printed.stderr
        written = cli("definitions", "export", "--to", str(file), url=source)
        assert written.returncode == 0
        assert file.read_bytes() == printed.stdout
        different = cli("definitions", "diff", str(file), url=target)
        assert (different.returncode, b"create queue orders/1" in different.stdout) == (1, True)
        imported = one(cli("definitions", "import", str(file), "--json", url=target))["changes"]
        assert ("create", "router off") in [(change["action"], change["subject"]) for change in imported]
        same = cli("definitions", "diff", "-", url=target, stdin=printed.stdout)
        assert (same.returncode, same.stderr.decode().strip()) == (0, "no difference")
        broken = cli("definitions", "import", "-", url=target, stdin="{")
        assert (broken.returncode, b"stdin is not JSON" in broken.stderr) == (2, True)
