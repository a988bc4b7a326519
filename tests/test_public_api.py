"""Public names of mqcore, and the cost of importing it."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import mqcore
from mqcore import errors

# Imported on use only: they are for the command line, for optional extras, or slow.
LATE = {"click", "numpy", "pyarrow", "pydantic", "pyspark", "rich", "uvloop"}


def public_modules() -> list[str]:
    names = [module.name for module in pkgutil.iter_modules(mqcore.__path__)]
    return [name for name in names if not name.startswith("_")]


def test_everything_that_is_exported_is_there_and_nothing_else() -> None:
    assert sorted(mqcore.__all__) == list(mqcore.__all__), "names are listed in order"
    for name in mqcore.__all__:
        assert getattr(mqcore, name) is not None
    # The names of submodules appear once they are imported, the other two are the machinery of the front page.
    modules = {module.name for module in pkgutil.iter_modules(mqcore.__path__)}
    # pytest adds names with @ to the modules of a distribution that has a plugin.
    visible = {name for name in dir(mqcore) if name[0] not in "_@"} - modules - {"annotations", "TYPE_CHECKING"}
    assert visible == set(mqcore.__all__) - {"__version__"}
    with pytest.raises(AttributeError, match="no attribute 'brokr'"):
        mqcore.brokr()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["admin", "errors", "jobs", "journal", "ratelimit", "sync", "testing", "throttr"])
def test_submodule_needs_no_import_of_its_own(name: str) -> None:
    text = f"import mqcore; print(mqcore.{name}.__name__)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, f"mqcore.{name}"), done.stderr


def test_type_checkers_see_the_submodules_that_programs_get() -> None:
    tree = ast.parse(Path(mqcore.__file__).read_text(encoding="utf-8"))
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = [alias.name for node in checked.body if isinstance(node, ast.Import) for alias in node.names]
    assert seen == [f"mqcore.{name}" for name in mqcore._SUBMODULES]  # type: ignore[attr-defined]


def test_type_checkers_see_the_names_that_programs_get() -> None:
    tree = ast.parse(Path(mqcore.__file__).read_text(encoding="utf-8"))
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert set(seen) == set(mqcore.__all__)
    for name, module in seen.items():
        assert getattr(importlib.import_module(str(module)), name) is getattr(mqcore, name)


@pytest.mark.parametrize("name", [name for name in public_modules() if name not in {"cli"}])
def test_every_module_lists_what_it_exports(name: str) -> None:
    module = importlib.import_module(f"mqcore.{name}")
    for exported in module.__all__:
        assert getattr(module, exported).__doc__ or not callable(getattr(module, exported)), exported


def test_importing_it_imports_nothing_that_is_needed_only_later() -> None:
    text = "import sys, json; from mqcore import *; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert LATE.isdisjoint(name.split(".")[0] for name in json.loads(done.stdout))


def test_importing_it_starts_no_thread() -> None:
    text = "import os; from mqcore import *; print(len(os.listdir('/proc/self/task')))"
    if sys.platform != "linux":
        pytest.skip("counts threads by looking into /proc")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_the_version_is_that_of_the_installed_package() -> None:
    assert mqcore.__version__ == importlib.metadata.version("mqcore")


def test_every_error_has_the_one_root_and_is_listed() -> None:
    classes = {
        name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)
    }
    assert set(classes) == set(errors.__all__)
    assert all(issubclass(error, errors.MqcoreError) for error in classes.values())
    assert mqcore.MqcoreError is errors.MqcoreError


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.ConnectFailed, ConnectionError),
        (errors.ConnectionLost, ConnectionError),
        (errors.AuthFailed, PermissionError),
        (errors.NotFound, LookupError),
        (errors.NotSupported, NotImplementedError),
        (errors.ConfirmTimeout, TimeoutError),
        (errors.RequestTimeout, TimeoutError),
        (errors.BodyError, ValueError),
    ],
)
def test_errors_are_what_the_standard_library_would_raise_too(error: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(error, builtin)


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(mqcore.__file__).parent / "py.typed").exists()
