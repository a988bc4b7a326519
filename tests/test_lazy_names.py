"""Imports of a client, and names of the configuration that are imported when they are first used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from mqcore import config


def test_every_name_of_the_configuration_exists() -> None:
    assert set(config.__all__) <= set(dir(config))
    for name in config.__all__:
        assert getattr(config, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        config.no_such_name  # type: ignore[attr-defined]  # noqa: B018 (the access is the test)


def test_a_client_imports_no_configuration_of_brokers() -> None:
    program = "import json, sys; from mqcore import connect; print(json.dumps(sorted(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    loaded = set(json.loads(printed))
    assert "mqcore.client.client" in loaded
    unneeded = {f"mqcore.{name}" for name in ("config.authority", "config.broker", "config.nodes", "broker", "jobs")}
    assert not loaded & unneeded
