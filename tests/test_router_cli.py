"""`mqcore router` and the clients' words for it, against a broker that runs alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import mqcore
import programs
from mqcore import errors
from served import ServedBroker, clean_environment


def run(broker: ServedBroker, *arguments: str) -> subprocess.CompletedProcess[str]:
    return programs.run(
        [sys.executable, "-m", "mqcore", "--url", broker.url, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=clean_environment(),
    )


def test_routers_are_made_tried_and_removed_from_the_command_line(served: ServedBroker) -> None:
    assert run(served, "queue", "create", "routed/1", "--status", "pull").returncode == 0
    assert run(served, "router", "create", "events", "--method", "only-first").returncode == 0
    assert run(served, "router", "bind", "events", "@name:nobody", "--priority", "5").returncode == 0
    assert run(served, "router", "bind", "events", "routed/1", "--name", "store").returncode == 0
    assert run(served, "router", "bind", "events", "@topic:late", "--priority", "-1").returncode == 0
    listed = json.loads(run(served, "router", "ls", "eve*", "--json").stdout)
    assert listed == {
        "schema": "mqcore.router.ls/1",
        "routers": [{"name": "events", "method": "only-first", "enabled": True}],
    }
    shown = json.loads(run(served, "router", "show", "events", "--json").stdout)
    assert [binding["name"] for binding in shown["bindings"]] == ["@name:nobody", "store", "@topic:late"]
    tried = run(served, "router", "test", "events", "--message", "x", "--header", "A:1")
    assert (tried.returncode, tried.stdout.splitlines()) == (
        0,
        [
            "rejects\t@name:nobody: no such client is connected",
            "accepts\trouted/1 by binding store: the queue takes it",
            "skipped\t@topic:late: another binding accepts the message first",
        ],
    )
    output = json.loads(run(served, "router", "test", "events", "--json").stdout)
    assert (output["schema"], output["taken"], output["skipped"]) == ("mqcore.router.test/1", True, ["@topic:late"])
    assert run(served, "router", "unbind", "events", "store").returncode == 0
    nobody = run(served, "router", "test", "events")
    assert (nobody.returncode, nobody.stderr.strip()) == (
        1,
        "no target accepts the message: no binding of router events took the message",
    )
    assert run(served, "router", "rm", "events").returncode == 0
    again = run(served, "router", "rm", "events")
    assert (again.returncode, "cannot remove router events: it does not exist" in again.stderr) == (3, True)
    assert run(served, "router", "show", "events").returncode == 3


def test_a_router_is_disabled_and_enabled_from_the_command_line(served: ServedBroker) -> None:
    assert run(served, "queue", "create", "switched/1", "--status", "pull").returncode == 0
    assert run(served, "router", "create", "switched").returncode == 0
    assert run(served, "router", "bind", "switched", "switched/1").returncode == 0

    def taken() -> bool:
        return run(served, "send", "@router:switched", "x", "--confirm").returncode == 0

    for command, enabled in (("disable", False), ("enable", True)):
        assert run(served, "router", command, "switched").returncode == 0
        (shown,) = json.loads(run(served, "router", "ls", "switched", "--json").stdout)["routers"]
        assert (shown["enabled"], taken()) == (enabled, enabled)
    assert json.loads(run(served, "queue", "show", "switched/1", "--json").stdout)["messages"] == 1
    for command in ("disable", "enable"):
        missing = run(served, "router", command, "nosuch")
        assert (missing.returncode, "nosuch" in missing.stderr) == (3, True)


async def test_a_client_makes_routers_and_sends_to_them(served: ServedBroker) -> None:
    async with mqcore.connect(served.url, name="worker"), mqcore.connect(served.url) as mq:
        await mq.create_router("r", mqcore.RouteMethod.ONLY_FIRST)
        with pytest.raises(errors.AlreadyExists):
            await mq.create_router("r", "distribute")
        with pytest.raises(errors.Nacked, match="no-consumers"):
            await mq.send("@router:r", b"x", confirm=True)
        wanted = mqcore.Binding("@name:worker", priority=3, interaction=mqcore.Interaction.RESPONSE)
        await mq.bind("r", wanted)
        (binding,) = await mq.bindings("r")
        assert (binding.target, binding.priority, binding.interaction) == ("@name:worker", 3, "response")
        output = await mq.test_router("r", b"x")
        assert (output.taken, [step.why for step in output.steps]) == (True, ["one client receives it"])
        assert [router.name for router in await mq.routers("r")] == ["r"]
        await mq.unbind("r", "@name:worker")
        await mq.bind("r", "@topic:none")
        assert (await mq.test_router("r")).taken is False
        await mq.remove_router("r")
        with pytest.raises(errors.NotFound):
            await mq.bindings("r")
