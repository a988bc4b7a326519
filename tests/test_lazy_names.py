"""Names that packages import when they are first used, and what a client does not import."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["mqcore", "mqcore.config"])
def test_every_public_name_exists(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018 (the access is the test)


def test_a_client_imports_no_configuration_of_brokers() -> None:
    program = "import json, sys; from mqcore import connect; print(json.dumps(sorted(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    loaded = set(json.loads(printed))
    assert "mqcore.client.client" in loaded
    unneeded = {f"mqcore.{name}" for name in ("config.authority", "config.broker", "config.nodes", "broker", "jobs")}
    assert not loaded & unneeded
