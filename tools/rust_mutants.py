"""Mutants of crates: all of a sample in one build, each behind a switch.

cargo-mutants lists the mutants of a crate. Run by cargo-mutants, each of them would need a build of all programs that
contain the crate, and all their tests. Here, a function gets another body for each of its mutants, and an environment
variable selects the mutant that runs:

    fn has_room(&self) -> bool {
        if ::mqcore_switch::selected(17) { self.used <= self.max } else { self.used < self.max }
    }

The same switch records which tests run the function. A mutant meets only these tests: first the programs of cargo test,
then the Python tests, the quickest first. A test that fails must fail again to count, so that a test that fails now and
then catches nothing. A mutant that does not compile behind a switch is built on its own and meets all tests.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mutant_runs import ROOT

# Parts of Rust code in which a brace has no meaning, and single characters.
TOKEN: Final = re.compile(r"""//[^\n]*|/\*.*?\*/|r(#*)".*?"\1|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])'|.""", re.DOTALL)


@dataclass(frozen=True)
class RustMutant:
    """One defect of a crate, as cargo-mutants describes it. Places are offsets in characters of the file."""

    number: int
    crate: str
    name: str
    file: Path
    function: tuple[int, int] | None
    """The function that contains it, with its signature."""
    place: tuple[int, int]
    """The text that `replacement` replaces."""
    replacement: str

    def applied(self, text: str, begin: int, end: int) -> str:
        """That part of the file with the defect."""
        return text[begin : self.place[0]] + self.replacement + text[self.place[1] : end]


@dataclass(frozen=True)
class Region:
    """A part of a file with switches, in bytes, for which these mutants are responsible."""

    begin: int
    end: int
    mutants: tuple[RustMutant, ...]
    is_own: bool = False
    """Whether an error here has no other cause than the only mutant."""


def listed(crate: str) -> list[dict[str, Any]]:
    """All mutants of a crate, by name."""
    command = ["cargo", "mutants", "--list", "--json", "--package", crate]
    found = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    return sorted(found, key=lambda each: str(each["name"]))


def without_place(name: str) -> str:
    """The name of a mutant without line and column, which change with the code before it."""
    return re.sub(r"(\.rs):\d+:\d+: ", r"\1: ", name)


def survivors_of(log: Path) -> set[str]:
    """The names of mutants that survived according to the output of another run."""
    return set(re.findall(r"^  SURVIVED  (.*)$", log.read_text(encoding="utf-8"), re.MULTILINE))


def sampled(crates: Iterable[str], count: int, seed: int, again: set[str] | None = None) -> list[RustMutant]:
    """`count` mutants of each crate, or those with the names of `again`."""
    sample: list[RustMutant] = []
    for crate in crates:
        everything = listed(crate)
        if again is None:
            chosen = random.Random(f"{seed} {crate}").sample(everything, min(count, len(everything)))
        else:
            exact = [each for each in everything if each["name"] in again]
            moved = {without_place(name) for name in again - {each["name"] for each in exact}}
            chosen = exact + [each for each in everything if without_place(each["name"]) in moved]
        print(f"{crate}: {len(chosen)} of {len(everything)} mutants", flush=True)
        for each in chosen:
            text = (ROOT / each["file"]).read_text(encoding="utf-8")
            function = each["function"] and offsets(text, each["function"]["span"])
            place = offsets(text, each["span"])
            sample.append(
                RustMutant(len(sample), crate, each["name"], Path(each["file"]), function, place, each["replacement"])
            )
    return sample


def offsets(text: str, span: dict[str, dict[str, int]]) -> tuple[int, int]:
    """Begin and end of a span; its lines and columns count from 1."""
    begins = [0, *(match.end() for match in re.finditer("\n", text))]
    begin, end = (begins[span[side]["line"] - 1] + span[side]["column"] - 1 for side in ("start", "end"))
    return begin, end


def body_of(text: str, function: tuple[int, int]) -> int:
    """Where the body of a function begins: at the first brace outside of parentheses and brackets."""
    depth = 0
    for token in TOKEN.finditer(text, *function):
        match token[0]:
            case "(" | "[":
                depth += 1
            case ")" | "]":
                depth -= 1
            case "{" if depth == 0:
                return token.start()
    raise ValueError(f"a function without a body: {text[function[0] : function[0] + 80]!r}")


def switched(text: str, mutants: list[RustMutant]) -> tuple[str, list[Region]]:
    """A file in which a switch precedes each body that has mutants, and who is responsible for which part."""
    functions: dict[tuple[int, int], list[RustMutant]] = {}
    for mutant in mutants:
        if mutant.function is not None:
            functions.setdefault(mutant.function, []).append(mutant)
    parts: list[str] = []
    regions: list[Region] = []
    size = 0

    def put(part: str, responsible: tuple[RustMutant, ...] = (), *, is_own: bool = False) -> None:
        nonlocal size
        parts.append(part)
        begin, size = size, size + len(part.encode())
        if responsible:
            regions.append(Region(begin, size, responsible, is_own))

    done = 0
    for function, own in sorted(functions.items()):
        begin, end = body_of(text, function), function[1]
        put(text[done : function[0]])
        # The switch reads the environment, which a `const fn` cannot do.
        signature = re.sub(r"\bconst (?=(?:unsafe |extern \S+ )*fn\b)", "", text[function[0] : begin], count=1)
        put(signature, tuple(own))
        put("{ ", tuple(own))
        for mutant in own:
            put(f"if ::mqcore_switch::selected({mutant.number}) {{", tuple(own))
            put(mutant.applied(text, begin, end), (mutant,), is_own="impl " not in signature)
            put("} else ", tuple(own))
        put(text[begin:end] + " }", tuple(own))
        done = end
    put(text[done:])
    return "".join(parts), regions


def is_switchable(mutant: RustMutant, text: str, others: Iterable[RustMutant]) -> bool:
    """Whether a function contains the mutant that none of the functions of `others` is a part of."""
    if mutant.function is None or mutant.place[0] < body_of(text, mutant.function):
        return False
    begin, end = mutant.function
    return not any(
        other.function != mutant.function and begin < other.function[1] and other.function[0] < end
        for other in others
        if other.file == mutant.file and other.function is not None
    )
