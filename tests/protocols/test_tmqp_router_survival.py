"""Routers that clients made are there after a restart and after `kill -9`; those of the program are not saved."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from protocols.conversation import BINDING_LIST, REMOVE_BINDING, REMOVE_ROUTER, ROUTER_LIST, Client
from served import ServedBroker, serving

CONFIGURED = """
[[router]]
name = "configured"
method = "only-first"

[[router.binding]]
target = "a/1"
priority = -2
interaction = "acknowledge"
"""


def connected(broker: ServedBroker) -> Client:
    host, _, port = broker.url.removeprefix("tmqp://").rpartition(":")
    client = Client(host, int(port))
    client.hello(Client_Id="prod")
    return client


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_routers_created_by_clients_survive_a_restart(tmp_path: Path, end: signal.Signals) -> None:
    config = tmp_path / "mqcore.toml"
    config.write_text(CONFIGURED)
    arguments = ("--config", str(config), "--data-dir", str(tmp_path / "data"))
    with serving(*arguments) as broker, connected(broker) as client:
        assert [router["Name"] for router in client.json(ROUTER_LIST)] == ["configured"]
        for name in ("kept", "gone"):
            client.create_router(name, 2)
            client.bind(name, "a", Name="queue", BindingType=1, ContentType=1, Priority=7, Interaction=1)
            client.bind(name, "@topic:news")
        client.do(REMOVE_BINDING, "kept", headers={"Binding-Name": "@topic:news"})
        client.do(REMOVE_ROUTER, "gone")
        before = client.json(BINDING_LIST, "kept")
        broker.process.send_signal(end)
        broker.process.wait()
    config.write_text("")
    with serving(*arguments) as broker, connected(broker) as client:
        assert client.json(ROUTER_LIST) == [{"Name": "kept", "IsEnabled": True, "Method": 2}]
        assert client.json(BINDING_LIST, "kept") == before
        client.create_queue("a", 1, Status="pull")
        message = client.route("kept", b"x", pending_acknowledge=True)
        assert client.answer(message, (0x13,)).target == b"a", "the queue acknowledges"
        assert client.stored("a") == (0, 1)
