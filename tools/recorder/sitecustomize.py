"""Records which lines of the modules under test each test runs, also in programs that the test starts.

`tools/mutants.py` puts this directory on PYTHONPATH for one run. Each line of the record has a test, a file and a line.
Threads of the extension module are not recorded.
"""

from __future__ import annotations

import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any, Final

_FILES: Final = frozenset(filter(None, os.environ.get("MUTANTS_FILES", "").split(os.pathsep)))
_RECORD: Final = os.environ.get("MUTANTS_RECORD", "")
_recorded: set[tuple[str, str, int]] = set()
_traced: dict[CodeType, bool] = {}


def _on_line(frame: FrameType, event: str, argument: Any) -> Any:
    test = os.environ.get("PYTEST_CURRENT_TEST")
    if test is not None and event == "line":
        entry = (test, frame.f_code.co_filename, frame.f_lineno)
        if entry not in _recorded:
            _recorded.add(entry)
            # Opened each time: a forked program closes the descriptors that it inherits, and may be killed.
            with open(_RECORD, "a", encoding="utf-8") as record:
                record.write(f"{test.rpartition(' ')[0]}\t{entry[1]}\t{entry[2]}\n")
    return _on_line


def _on_call(frame: FrameType, event: str, argument: Any) -> Any:
    code = frame.f_code
    traced = _traced.get(code)
    if traced is None:
        traced = _traced[code] = code.co_filename in _FILES
    return _on_line if traced else None


if _RECORD:
    threading.settrace(_on_call)
    sys.settrace(_on_call)
