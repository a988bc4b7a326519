"""Records which lines of functions each test runs, also in programs that the test starts.

`tools/mutants.py` puts this directory on PYTHONPATH for one run, with the plugin `current_test.py`. Each test has a
file with the numbers of a module and a line. Threads of the extension module are not recorded.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any, Final

_FILES: Final = {
    path: number for number, path in enumerate(filter(None, os.environ.get("MUTANTS_FILES", "").split(os.pathsep)))
}
IMPORT: Final = "import"
"""Stands for a test that runs lines while modules are imported."""
_RECORD: Final = os.environ.get("MUTANTS_RECORD", "")
_recorded: set[tuple[str, str, int]] = set()
_traced: dict[CodeType, bool] = {}
_test = ""


def _current_test() -> str:
    """The name that the plugin gave to the test that runs."""
    process = os.environ.get("MUTANTS_PROCESS", "")
    if process == str(os.getpid()):
        return os.environ["MUTANTS_TEST"]
    try:
        with open(f"{_RECORD}/current.{process}", encoding="utf-8") as current:
            return current.read()
    except OSError:
        return ""


def _on_line(frame: FrameType, event: str, argument: Any) -> Any:
    if event == "line" and _test:
        entry = (_test, frame.f_code.co_filename, frame.f_lineno)
        if entry not in _recorded:
            _recorded.add(entry)
            # Opened each time: a forked program closes the descriptors that it inherits, and may be killed.
            with open(f"{_RECORD}/lines.{_test}", "a", encoding="utf-8") as record:
                record.write(f"{_FILES[entry[1]]} {entry[2]}\n")
    return _on_line


def _on_call(frame: FrameType, event: str, argument: Any) -> Any:
    global _test
    code = frame.f_code
    traced = _traced.get(code)
    if traced is None:
        # The lines of modules and classes run once, for whichever test imports them first.
        traced = _traced[code] = code.co_filename in _FILES and bool(code.co_flags & inspect.CO_OPTIMIZED)
    if not traced:
        return None
    _test = IMPORT if _is_imported(frame) else _current_test()
    return _on_line


def _is_imported(frame: FrameType | None) -> bool:
    """Whether a module calls this function while it is imported: then it runs for all tests, like the module."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__", "").startswith("mqcore."):
            return True
        frame = frame.f_back
    return False


if _RECORD:
    threading.settrace(_on_call)
    sys.settrace(_on_call)
