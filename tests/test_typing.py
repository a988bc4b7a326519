"""mypy and pyright accept programs that use apps, and find the mistakes that `tests/typing` marks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from served import ROOT

CHECKED = [
    ROOT / "tests" / "typing" / "apps.py",
    *(ROOT / "examples" / f"{name}.py" for name in ("app", "fastapi_service", "flask_service")),
]


@pytest.mark.timeout(300)
def test_mypy_accepts_apps_and_finds_mistakes() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", *map(str, CHECKED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(300)
@pytest.mark.full("pyright needs half a minute, and mypy checks the same files")
def test_pyright_accepts_apps_and_finds_mistakes(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    settings = {
        "include": [str(path) for path in CHECKED],
        "extraPaths": [str(ROOT / "python")],
        "reportUnnecessaryTypeIgnoreComment": "error",
        "pythonVersion": "3.11",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--project", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
