"""Killed under mixed load, brokers and workers keep every promise, and the comparison finds those that do not."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from depth import SEED, rounds
from endurance import load, queues
from endurance.held import hold
from endurance.rounds import Run, run
from endurance.soak import Settings, soak

ROUNDS = rounds("ENDURE", quick=3, full=100)
"""Rounds with kills; `make endure` asks for more."""


@pytest.mark.timeout(180 + 15 * ROUNDS)
async def test_mixed_load_survives_kills(tmp_path: Path) -> None:
    running = await run(tmp_path, SEED, ROUNDS)
    print(running.summary())
    assert not running.findings
    assert all(lane.confirmed for lane in running.load.lanes), "each producer had work"
    assert sum(running.kills.values()) >= ROUNDS


@pytest.mark.full("starts brokers twice more; test_account.py shows that each rule is checked")
async def test_queue_that_does_not_save_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "SHARED", dataclasses.replace(load.SHARED, delivery_handler="memory"))
    running = Run(tmp_path, SEED, calm_seconds=3)
    try:
        await running.start()
        running.load.is_on.set()
        await running.work(0.5)
        # Only delayed messages are certain to wait in their queue.
        await running.strike("main")
        await running.compare()
    finally:
        await running.close()
    assert any(text.startswith("later/1: ") and "are lost" in text for text in running.findings), running.findings


@pytest.mark.full("starts brokers twice more; test_account.py shows that each rule is checked")
async def test_broker_that_forgets_its_last_seconds_is_found(tmp_path: Path) -> None:
    """An older copy of the data directory stands for a broker that loses what it had saved since."""
    running = Run(tmp_path, SEED, calm_seconds=3)
    data, copy = running.place.data_dirs[0], tmp_path / "copy"
    try:
        await running.start()
        running.load.is_on.set()
        await running.work(1.0)
        await running.place.main.kill()
        await asyncio.to_thread(shutil.copytree, data, copy)
        await running.place.main.start()
        await running.work(4.0)
        await running.compare()
        await running.place.main.kill()
        await asyncio.to_thread(shutil.rmtree, data)
        await asyncio.to_thread(shutil.move, copy, data)
        await running.place.main.start()
        running.load.is_on.set()
        await running.work(1.0)
        await running.compare(last=True)
    finally:
        await running.close()
    found = "\n".join(running.findings)
    assert "settled for good, and came again" in found
    assert "left after a restart" in found, "more quota than was left"
    assert "stock/1 has" in found or "stock/1: " in found, "the backlog lost messages"


@pytest.mark.timeout(300)
@pytest.mark.full("takes a minute; the quick depth plays rounds with the same load")
async def test_short_soak_measures_everything(tmp_path: Path) -> None:
    settings = Settings(seconds=60, restart_seconds=20, measure_seconds=5)
    soaking = await soak(tmp_path, SEED, settings)
    checks, result = soaking.result()
    assert not soaking.measured.findings
    assert len(soaking.restarts) == 2
    assert 0 < soaking.rate < soaking.capacity
    assert {len(lives) for lives in soaking.measured.lives.values()} <= {1, 2, 3}
    json.dumps(result)
    # This test does not judge latency and memory: the machine may be busy.
    (missing,) = (check for check in checks if "never came" in check.name)
    assert missing.is_held
    (latency,) = (check for check in checks if "confirmation" in check.name)
    assert 0 < latency.value < float("inf")


@pytest.mark.timeout(600)
@pytest.mark.full("takes two minutes; each fault has a test of its own")
async def test_held_load_survives_each_fault(tmp_path: Path) -> None:
    holding = await hold(tmp_path, SEED, Settings(seconds=40, restart_seconds=5, measure_seconds=5, share=0.7), 500)
    assert not holding.measured.findings
    assert holding.measured.probe_missing == 0
    faults = {name for name, _, _ in holding.phases}
    wanted = {"quiet", "killed", "full disk", "fast producer", "slow handshakes"}
    assert faults == wanted - ({"full disk"} if holding.missing_fault else set())
    # This test does not judge latency: the machine may be busy.
    print("\n".join(map(str, holding.checks())))
