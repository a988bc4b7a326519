"""A node of a cluster until it leads: its listeners pass connections on to the leader."""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Final, NoReturn

from mqcore import errors

if TYPE_CHECKING:
    import asyncio

    from mqcore import _core
    from mqcore.broker import Broker
    from mqcore.cli.service import Notifier
    from mqcore.cluster import NodeStatus

__all__ = ["follow", "restart"]

# Seconds after which a signal is noticed.
_PATIENCE: Final = 0.2
# Seconds before a broker that could not start tries again.
_PAUSE: Final = 1.0


async def follow(broker: Broker, stop: asyncio.Future[int], manager: Notifier) -> _core.ClusterMember | None:
    """Follow the leader of the cluster until this node leads. Returns `None` if a signal comes first.

    Prints a JSON line to stdout for each role and leader. The node is ready for the service manager as soon as its
    listeners are bound: most nodes never lead, and none may lead before others have started.
    """
    import asyncio

    from mqcore import _core
    from mqcore.cluster import NodeStatus

    config = broker.config
    assert config.cluster is not None
    member = _core.ClusterMember(config, config.cluster.read_secret(), _command(), manager.environment())
    seen = member.status()
    _print(NodeStatus.from_json(seen))
    manager.ready(f"node {config.cluster.node} of the cluster")
    while not stop.done():
        seen, before = await asyncio.to_thread(member.wait, seen, _PATIENCE), NodeStatus.from_json(seen)
        now = NodeStatus.from_json(seen)
        if now.failure is not None:
            raise errors.ConfigError(f"this node of the cluster has failed: {now.failure}")
        if now.role == "leading" and broker._lead(member):
            return member
        if (now.role, now.leader) != (before.role, before.leader):
            _print(now)
    return None


async def restart(why: str, manager: Notifier) -> NoReturn:
    """Continue with a new process in place of this one, after a pause: another node leads meanwhile."""
    import asyncio

    logging.getLogger("mqcore.serve").error("cannot start the broker, trying again: %s", why)
    await asyncio.sleep(_PAUSE)
    command = _command()
    os.execve(command[0], command, {**os.environ, **manager.environment()})  # noqa: S606 - the same program again


def _command() -> list[str]:
    return [sys.executable, *sys.orig_argv[1:]]


def _print(status: NodeStatus) -> None:
    told = {"event": status.role, "leader": status.leader, "pid": os.getpid()}
    print(json.dumps(told, separators=(",", ":")), flush=True)
    logging.getLogger("mqcore.serve").info("%s; the leader is node %s", status.role, status.leader or "unknown")
