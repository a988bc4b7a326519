"""The program `mqcore`: one module a noun, and nothing imported that the command at hand does not need.

`mqcore --help` loads click and this package alone: neither rich, nor the network, nor the extension module. Modules
here import those inside the functions that use them.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the program with the arguments of this process, and leave with its exit code."""
    from mqcore.cli.program import run

    sys.exit(run(sys.argv[1:]))
