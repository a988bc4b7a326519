"""The checks of `mqcore doctor` on a cluster: it asks all nodes and compares their answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Final

from mqcore.cli.checks import Check

if TYPE_CHECKING:
    from mqcore.cli.cluster_nodes import AskedNode
    from mqcore.cluster import NodeStatus

__all__ = ["cluster_checks"]

_NAME: Final = "cluster"

_CLOCK_OFFSET_MAX: Final = 1.0
"""Difference between the clocks of two nodes that is a warning, in seconds."""

_SYNC_MEAN_MAX_US: Final = 100_000
"""Mean time of a sync of the log that is a warning."""

_SYNC_LONGEST_MAX_US: Final = 1_000_000
"""Time of a single sync that is a warning."""


def cluster_checks(asked: Sequence[AskedNode]) -> Iterator[Check]:
    """Compare the answers of all nodes. Without a problem, there is one check about the leader."""
    answers = {each.node: each.status for each in asked if each.status is not None}
    examine: list[Callable[[], Iterator[Check]]] = [
        lambda: _unreachable(asked),
        lambda: _failed(answers),
        lambda: _connections(asked, answers),
        lambda: _leaders(answers, len(asked)),
        lambda: _versions(answers),
        lambda: _clocks(asked),
        lambda: _votes(answers),
        lambda: _syncs(answers),
    ]
    found = [check for part in examine for check in part()]
    yield from found
    if not found:
        leader = max((status for status in answers.values() if status.role == "leading"), key=lambda each: each.term)
        text = f"all {len(asked)} nodes answer and vote; node {leader.node} leads in term {leader.term}"
        yield Check(state="ok", name=_NAME, text=text)


def _fail(text: str, remedy: str) -> Check:
    return Check(state="fail", name=_NAME, text=text, remedy=remedy)


def _warn(text: str, remedy: str) -> Check:
    return Check(state="warn", name=_NAME, text=text, remedy=remedy)


def _unreachable(asked: Sequence[AskedNode]) -> Iterator[Check]:
    for each in asked:
        if each.status is None:
            yield _fail(
                f"node {each.node}: {each.error}",
                "start the node; if it runs, check its address, the network, and that all nodes have the same secret",
            )
        elif each.status.node != each.node:
            yield _fail(
                f"node {each.status.node} answers at {each.address}, the address of node {each.node}",
                "correct `node` and `peers` in the configurations",
            )


def _failed(answers: dict[int, NodeStatus]) -> Iterator[Check]:
    for node, status in answers.items():
        if status.failure is not None:
            yield _fail(f"node {node} has failed: {status.failure}", "correct the cause, and start the node again")
        if status.problem is not None:
            yield _fail(f"node {node} cannot take part: {status.problem}", "correct the cause; the node tries again")


def _connections(asked: Sequence[AskedNode], answers: dict[int, NodeStatus]) -> Iterator[Check]:
    addresses = {each.node: each.address for each in asked}
    for one, other in combinations(answers, 2):
        receives = (other in answers[one].hears, one in answers[other].hears)
        if receives == (False, False):
            yield _fail(
                f"nodes {one} and {other} are not connected",
                f"check the network between {addresses[one]} and {addresses[other]}, and `peers` of both",
            )
        elif receives != (True, True):
            # A node sends on the connection that it opens itself.
            sender, receiver = (one, other) if receives[0] else (other, one)
            yield _fail(
                f"node {receiver} sends to node {sender}, but node {sender} cannot send to node {receiver}",
                f"let node {sender} connect to {addresses[receiver]}: check firewalls, and `peers` of node {sender}",
            )


def _leaders(answers: dict[int, NodeStatus], nodes: int) -> Iterator[Check]:
    by_term: dict[int, list[int]] = defaultdict(list)
    for node, status in answers.items():
        if status.role == "leading":
            by_term[status.term].append(node)
    for term, leaders in by_term.items():
        if len(leaders) > 1:
            yield _fail(
                f"nodes {_list(leaders)} all lead in term {term}, which must never happen",
                "stop them, and check that none runs with a copy of the data directory of another one",
            )
    if by_term:
        return
    majority = nodes // 2 + 1
    if len(answers) < majority:
        remedy = f"start at least {majority} of the {nodes} nodes"
    else:
        remedy = "wait some seconds for an election; if there is still no leader, look into the logs of the nodes"
    yield _fail(f"no node leads; {len(answers)} of {nodes} answer", remedy)


def _versions(answers: dict[int, NodeStatus]) -> Iterator[Check]:
    by_version: dict[str, list[int]] = defaultdict(list)
    for node, status in answers.items():
        by_version[status.version].append(node)
    if len(by_version) > 1:
        parts = [f"{version} on {_list(nodes)}" for version, nodes in sorted(by_version.items())]
        yield _warn(
            f"nodes run different versions: {'; '.join(parts)}",
            "install the same version on all nodes, and restart them one after the other",
        )


def _clocks(asked: Sequence[AskedNode]) -> Iterator[Check]:
    # An earlier version sends no time.
    offsets = {
        each.node: each.status.clock_ms / 1000 - each.asked_at
        for each in asked
        if each.status is not None and each.status.clock_ms
    }
    if not offsets:
        return
    first, last = min(offsets, key=offsets.__getitem__), max(offsets, key=offsets.__getitem__)
    skew = offsets[last] - offsets[first]
    if skew > _CLOCK_OFFSET_MAX:
        yield _warn(
            f"the clock of node {last} is {skew:.1f} s ahead of the clock of node {first}",
            "run a time service on all nodes (chrony, systemd-timesyncd)",
        )


def _votes(answers: dict[int, NodeStatus]) -> Iterator[Check]:
    leaders = [status for status in answers.values() if status.role == "leading"]
    for leader in sorted(leaders, key=lambda status: -status.term)[:1]:
        for node in answers:
            if any(replica.votes for replica in leader.replicas if replica.node == node):
                continue
            is_copying = answers[node].role == "copying"
            does = "is still copying the files of the leader" if is_copying else "does not count for a majority"
            yield _warn(
                f"node {node} {does}",
                "wait until it has all data; if this takes longer than the disk and the network explain, read its log",
            )


def _syncs(answers: dict[int, NodeStatus]) -> Iterator[Check]:
    for node, status in answers.items():
        syncs = status.log_syncs
        if syncs.mean_us >= _SYNC_MEAN_MAX_US or syncs.longest_us >= _SYNC_LONGEST_MAX_US:
            yield _warn(
                f"syncs of the log of node {node} take {syncs.mean_us / 1000:,.0f} ms on average and "
                f"{syncs.longest_us / 1000:,.0f} ms at most",
                "find what else uses its disk, or use a faster one: confirmations wait for the disks of a majority",
            )


def _list(nodes: list[int]) -> str:
    return ", ".join(str(node) for node in sorted(nodes))
