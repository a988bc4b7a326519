"""Generated files are what `make generate` makes: blocking clients, what the table of options says, and contrib."""

from __future__ import annotations

import ast
import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from mqcore._option_table import CHANNEL_OPTIONS, QUEUE_OPTIONS
from served import ROOT

PACKAGE = ROOT / "python" / "mqcore"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return tool("generate_sync")


def test_committed_files_are_the_generated_ones(generator: ModuleType) -> None:
    assert len(generator.targets()) == 9
    assert generator.stale() == [], "run `make generate`"


@pytest.mark.parametrize("name", ["client/queue.py", "sync/queue.py"])
def test_a_change_of_either_side_is_detected(
    name: str, generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "python" / "mqcore", ignore=ignored)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    monkeypatch.setattr(generator, "PACKAGE", tmp_path / "python" / "mqcore")
    assert generator.stale() == []
    changed = tmp_path / "python" / "mqcore" / name
    changed.write_text(changed.read_text().replace("Publish to it", "Publish a message to it"))
    assert [path.name for path in generator.stale()] == ["queue.py"]


def test_what_has_no_blocking_twin_is_refused(generator: ModuleType, tmp_path: Path) -> None:
    source = ROOT / "tools" / "generate_sync.py"
    with pytest.raises(ValueError, match="no blocking twin"):
        generator.module(source, tmp_path / "x.py", ())


def test_both_clients_have_the_same_methods_but_for_those_of_asyncio() -> None:
    def methods(path: Path) -> dict[str, set[str]]:
        tree = ast.parse(path.read_text())
        return {
            node.name: {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
            for node in tree.body
            if isinstance(node, ast.ClassDef)
        }

    asyncio_only = set()
    for name in ("messages", "streams", "queue", "client"):
        both = methods(PACKAGE / "client" / f"{name}.py"), methods(PACKAGE / "sync" / f"{name}.py")
        for kind, found in both[0].items():
            public = {method for method in found if not method.startswith("_")} - {"wait_async"}
            assert both[1][kind] >= public - {"serve"}, kind
            asyncio_only |= {f"{kind}.{method}" for method in public - both[1][kind]}
    assert asyncio_only == {"Client.serve", "ExtensionFrames.serve"}


def test_options_are_declared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    options = tool("generate_options")
    assert options.stale() == [], "run `make generate`"
    everywhere = {ROOT / name for name in (*options.TARGETS, options.PAGE)}
    monkeypatch.setattr(options, "QUEUE_OPTIONS", QUEUE_OPTIONS[:-1])
    assert set(options.stale()) == everywhere
    monkeypatch.setattr(options, "QUEUE_OPTIONS", QUEUE_OPTIONS)
    monkeypatch.setattr(options, "CHANNEL_OPTIONS", CHANNEL_OPTIONS[:-1])
    # Information about channels, snapshots of queues and policies have no generated part for channels.
    informing = {"models.rs", "models.py", "information.rs", "snapshot.rs", "policies.rs"}
    assert {path.name for path in everywhere} - {path.name for path in options.stale()} <= informing


def test_files_of_contrib_are_made_of_the_templates_of_init() -> None:
    contrib = tool("generate_contrib")
    assert len(contrib.targets()) == 3
    assert contrib.stale() == [], "run `make generate`"


def test_changed_template_of_the_container_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contrib = tool("generate_contrib")
    shutil.copytree(contrib.TEMPLATES, tmp_path / "templates")
    monkeypatch.setattr(contrib, "TEMPLATES", tmp_path / "templates")
    changed = tmp_path / "templates" / "Containerfile"
    changed.write_text(changed.read_text().replace("COPY mqcore.toml", "COPY broker.toml"))
    with pytest.raises(ValueError, match=r"does not contain 'COPY mqcore\.toml"):
        contrib.targets()
