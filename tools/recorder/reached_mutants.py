"""A pytest plugin that records which mutants of crates each test reaches, also in programs that the test starts.

`tools/rust_mutants.py` gives it a directory. Each process of pytest has a file there with a byte for each mutant, which
all programs of its tests share.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

_COUNT: Final = int(os.environ["MUTANTS_COUNT"])
_REACHED: Final = Path(os.environ["MUTANTS_DIRECTORY"], str(os.getpid()))
_REACHED.write_bytes(bytes(_COUNT))
os.environ["MUTANTS_REACHED"] = str(_REACHED)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Clear the file, run the test, and record what it has reached."""
    # In place, because others have mapped it.
    with _REACHED.open("r+b") as file:
        file.write(bytes(_COUNT))
    result = yield
    if numbers := [str(number) for number, byte in enumerate(_REACHED.read_bytes()) if byte]:
        with _REACHED.with_suffix(".reached").open("a", encoding="utf-8") as record:
            record.write(f"{item.nodeid}\t{','.join(numbers)}\n")
    return result
