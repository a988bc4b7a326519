"""Prose check: refuses private jargon, inverted sentences and overlong lines in docs, comments, messages, test names.

`python tests/test_prose.py` prints all findings (the test); `... FILES` those of these files and folders;
`... --counts` numbers of findings per folder. It needs nothing but the standard library.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

# Markdown wraps here; tables, code and the targets of links may be longer.
LINE_COLUMNS_MAX = 100

# Text that quotes other people's words, or lists the words that this check refuses.
NOT_PROSE = ("tests/test_prose.py", "tests/vectors/", "fuzz/corpus/", "target/")

# What a phrase should be instead. A space stands for any white space, so a phrase is found across a line break.
PHRASES: dict[str, str] = {
    r"nobody|somebody|anybody|everybody": "name the actor: no client, a consumer, every peer",
    r"whoever|whomever": "name the actor: the client that ..., any consumer that ...",
    r"(?:is|are|was|were|be|being|been) told": "name the actor: the broker notifies ..., the client receives ...",
    r"tells? of|told of": "describe, report",
    r"lets? in|letting in|lets? (?:\w+ )?in(?= (?:with|without|by|only)\b)": "accept, authenticate, allow",
    r"hand(?:ed|s|ing)? (?:(?:it|them|one|messages?) )?out(?: again)?": "deliver, redeliver",
    r"(?:give|gives|given|gave|giving) out": "deliver, assign",
    r"(?:come|comes|came|coming) (?:back )?again": "is redelivered",
    r"put back|puts (?:it |them )?back": "requeue",
    r"under way": "in flight, in progress",
    r"life signs?": "heartbeat",
    r"octets?(?!-stream|/)": "byte (octet only in protocol documents)",
    r"by hand": "manually, explicitly",
    r"(?:what|which) (?:is|are|was|were) (?:its|theirs|his|ours|yours|mine)": "name the thing",
    r"(?:broke|breaks?|kept|keeps?) (?:its|their|his) word": "state what failed or holds",
    r"turn(?:s|ed|ing)? (?:it |them |\w+ )?away": "reject, drop",
    r"goes on|go on|went on|going on(?! in\b)": "continue",
    r"unkept|hushed|hushes|sighting|farewell|recollection|nudges?|nudged": "use the glossary's term",
    r"patience|patient": "timeout, prefetch, credit",
    r"nonsense": "invalid value",
    r"said so|says so|say so": "report, print, log",
    r"once (?:and )?for all": "once",
    r"no-?word": "rejected",
    r"(?:knows|know|knew) nothing (?:of|about)": "does not depend on, does not know",
    r"stands? in for": "replaces, represents",
    r"has its say|have (?:their|its) say|had its say": "decides, runs",
    r"(?:is|are) owed": "is outstanding, is due",
    r"behaviours?|colours?|honours?|favours?|neighbours?|labours?|honoured|favoured|coloured": "American spelling: -or",
    r"(?:initial|serial|organ|recogn|normal|optim|minim|maxim|summar|real|util|author|final|general|emphas"
    r"|synchron|token|random|custom|categor|canonical|priorit)is(?:e|es|ed|ing|ation)": "American spelling: -ize",
    r"centre|metre|licence|grey|catalogue|dialogue": "American spelling: center, license, gray, catalog, dialog",
    r"a (?!one|once\b|eu)[aeio]\w+": "an",
}
# "bad.toml is no TOML"; fine are "there is no ...", "is no longer", "is no more than".
PHRASES[
    r"(?<!there\s)(?:is|are|was|were) no (?!longer|more|less|fewer|other|later|earlier|larger|smaller|better)\w+"
] = 'is not a ...; or "there is no ..."'
# Sentences that begin with a relative clause or consist of one.
INVERSION = re.compile(
    r"(?:What|Whatever|Who|Whom|Whose|Whoever|That which|Those (?:that|who|which))\s[^.?!]*", re.DOTALL
)
FRAGMENT = re.compile(r"Where\s[^.?!,:;]*\Z", re.DOTALL)
SENTENCE_START = re.compile(r"(?:\A|[.!?:]\s+|\n\s*\n\s*|\n\s*(?:[-*+]|\d+\.)\s+|\|\s*)(?=[A-Z])")

RULES: list[tuple[re.Pattern[str], str]] = [
    (re.compile(rf"(?<![\w-])(?:{phrase.replace(' ', chr(92) + 's+')})(?![\w-])", re.IGNORECASE), advice)
    for phrase, advice in PHRASES.items()
]
# Most passages hold no phrase: one search finds out.
ANY_PHRASE = re.compile("|".join(pattern.pattern for pattern, _ in RULES), re.IGNORECASE)


class Finding(NamedTuple):
    """One thing to rewrite."""

    line: int
    text: str
    advice: str


class Passage(NamedTuple):
    """Consecutive lines of prose, and the number of the first one."""

    line: int
    text: str
    sentences: bool = True


def without_code(text: str) -> str:
    """Prose with fenced code, inline code, links' targets and URLs blanked; line breaks stay where they are."""

    def blank(match: re.Match[str]) -> str:
        return "`x`" + "\n" * match.group().count("\n")

    text = re.sub(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[ \t]*$|\Z)", blank, text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"(?<!`)(`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)\1(?!`)", blank, text, flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)|https?://\S+", "]", text)


def long_lines(text: str) -> Iterator[Finding]:
    """Lines of Markdown over 100 columns, apart from tables, code and what only a link's target makes long."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*(```|~~~)", line):
            fenced = not fenced
        shown = re.sub(r"\]\([^)]*\)|^\[[^\]]+\]:.*", "]", line)
        if not fenced and not line.lstrip().startswith("|") and len(shown) > LINE_COLUMNS_MAX:
            yield Finding(number, f"{len(line)} columns", f"wrap at {LINE_COLUMNS_MAX}")


def commented(lines: Iterator[tuple[int, str]]) -> Iterator[Passage]:
    """Comments on consecutive lines as one passage each."""
    start, last, collected = 0, -1, list[str]()
    for number, text in lines:
        if number != last + 1 and collected:
            yield Passage(start, "\n".join(collected))
            collected = []
        if not collected:
            start = number
        collected.append(text)
        last = number
    if collected:
        yield Passage(start, "\n".join(collected))


def string_value(node: ast.expr) -> str | None:
    """The text of a string or f-string, its replaced parts as `{}`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def python_passages(text: str, *, strings: bool) -> Iterator[Passage]:
    """Docstrings, comments and names of tests; with `strings` every string of more than one word as well."""
    nodes = list(ast.walk(ast.parse(text)))
    docstrings: set[int] = set()
    inside: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and string_value(first.value) is not None:
                docstrings.add(id(first.value))
        elif isinstance(node, ast.Expr):  # a string below a field documents it
            docstrings.add(id(node.value))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield Passage(node.lineno, node.name.removeprefix("test_").replace("_", " "), sentences=False)
        if isinstance(node, ast.JoinedStr):
            inside.update(id(part) for part in ast.walk(node) if part is not node)
    for node in nodes:
        if not isinstance(node, ast.Constant | ast.JoinedStr) or id(node) in inside:
            continue
        value = string_value(node)
        if value is not None and (id(node) in docstrings or (strings and " " in value.strip())):
            yield Passage(node.lineno, without_code(value))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = ((t.start[0], t.string.lstrip("#: ")) for t in tokens if t.type == tokenize.COMMENT)
    for passage in commented(comments):
        yield passage._replace(text=without_code(passage.text))


RUST_TOKEN = re.compile(
    r'(?P<comment>//[^\n]*)|(?P<block>/\*.*?\*/)|b?r(?P<hashes>#*)"(?P<raw>.*?)"(?P=hashes)'
    r"|b?\"(?P<string>(?:\\.|[^\"\\])*)\"|'(?:\\.[^']*|[^\\'\n])'|\bfn (?P<name>\w+)",
    re.DOTALL,
)


def rust_passages(text: str, *, strings: bool) -> Iterator[Passage]:
    """Comments, names of tests and, with `strings`, strings of more than one word outside test modules."""
    tests_start = re.search(r"^#\[cfg\(test\)\]", text, re.MULTILINE)
    comments: list[tuple[int, str]] = []
    line, counted = 1, 0
    for match in RUST_TOKEN.finditer(text):
        line += text.count("\n", counted, match.start())
        counted = match.start()
        if match["comment"]:
            comments.append((line, re.sub(r"^//[/!]?\s?", "", match["comment"])))
        elif match["block"]:
            comments.extend((line + n, part) for n, part in enumerate(match["block"].splitlines()))
        elif match["name"]:
            if re.search(
                r"#\[(?:\w+::)?test\b[^\n]*\]\s*(?:#\[[^\n]*\]\s*)*(?:async )?$",
                text[max(0, match.start() - 300) : match.start()],
            ):
                yield Passage(line, match["name"].replace("_", " "), sentences=False)
        elif strings and not (tests_start and match.start() > tests_start.start()):
            value = match["raw"] or match["string"] or ""
            value = re.sub(r"\\\n\s*", "", value).replace("\\n", "\n").replace('\\"', '"')
            if " " in value.strip():
                yield Passage(line, without_code(value))
    for passage in commented(iter(comments)):
        yield passage._replace(text=without_code(passage.text))


def passages(name: str, text: str) -> Iterator[Passage]:
    """The prose of a file. Strings in tests are data and not prose."""
    strings = not name.startswith(("tests/", "benches/", "fuzz/")) and "/tests/" not in name
    if name.endswith(".md"):
        yield Passage(1, without_code(text))
    elif name.endswith((".py", ".pyi")):
        yield from python_passages(text, strings=strings)
    elif name.endswith(".rs"):
        yield from rust_passages(text, strings=strings)
    else:
        comments = ((n, line.lstrip(" #")) for n, line in enumerate(text.splitlines(), 1) if line.lstrip()[:1] == "#")
        yield from (passage._replace(text=without_code(passage.text)) for passage in commented(comments))


def inversions(text: str) -> Iterator[tuple[int, str]]:
    """Offset and beginning of each sentence that starts with a relative clause. Questions are fine."""
    for start in SENTENCE_START.finditer(text):
        sentence = re.split(
            r"(?<=[.!?])(?=\s|\Z)|\n\s*\n|\n\s*(?:[-*+]|\d+\.|\|)\s|\|", text[start.end() :], maxsplit=1
        )[0]
        if sentence.rstrip().endswith("?"):
            continue
        body = sentence.rstrip().removesuffix(".")
        if INVERSION.match(sentence) or FRAGMENT.match(body):
            yield start.end(), " ".join(sentence.split())[:70]


def findings(name: str, text: str) -> list[Finding]:
    """Everything to rewrite in one file, by line."""
    found: list[Finding] = []
    if name.endswith(".md"):
        found.extend(long_lines(text))
    for passage in passages(name, text):

        def at(offset: int, passage: Passage = passage) -> int:
            return passage.line + passage.text.count("\n", 0, offset)

        for pattern, advice in RULES if ANY_PHRASE.search(passage.text) else ():
            if "octet" in pattern.pattern and name.startswith("docs/protocols/"):
                continue
            found.extend(
                Finding(at(match.start()), " ".join(match.group().split()), advice)
                for match in pattern.finditer(passage.text)
            )
        if passage.sentences:
            advice = "start with the subject: a noun phrase, or actor and verb"
            found.extend(Finding(at(offset), shown, advice) for offset, shown in inversions(passage.text))
    return sorted(set(found))


def tracked() -> list[str]:
    """Files with prose that are in the repository."""
    if not (ROOT / ".git").exists():  # an unpacked source distribution
        return []
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    wanted = (".md", ".py", ".pyi", ".rs", ".toml", ".yml", "Makefile")
    return [
        name for name in listed if name.endswith(wanted) and not name.startswith(NOT_PROSE) and (ROOT / name).exists()
    ]


def findings_of_file(name: str) -> list[Finding]:
    """The findings of one file of the project."""
    return findings(name, (ROOT / name).read_text())


def check(names: list[str]) -> Iterator[tuple[str, Finding]]:
    """The findings of each file; every core reads a part of them."""
    with ProcessPoolExecutor() as pool:
        for name, found in zip(names, pool.map(findings_of_file, names, chunksize=32), strict=True):
            for finding in found:
                yield name, finding


def test_prose_is_plain() -> None:
    found = [f"{name}:{f.line}: {f.text!r}: {f.advice}" for name, f in check(tracked())]
    assert not found, "\n".join(found)


PLANTED: list[tuple[str, str, list[tuple[int, str]]]] = [
    ("a.md", "The client is\ntold.", [(1, "is told")]),
    ("a.md", "Run `nobody`.\n\n```\nwhoever\n```\n\nNobody.", [(7, "Nobody")]),
    ("a.md", "Who deletes a queue tells it. Who asks?", [(1, "Who deletes a queue tells it.")]),
    ("a.md", "| Where it is | a octet |", [(1, "Where it is"), (1, "a octet"), (1, "octet")]),
    ("a.md", "[" + "x" * 60 + "](https://example.org/" + "y" * 60 + ")", []),
    ("a.md", "x" * 101, [(1, "101 columns")]),
    ("docs/protocols/a.md", "An octet.", []),
    ("a.py", '"""Fine."""\n\nx = "data"\ny = f"{x} is no TOML"\n# By\n# hand.\n', [(4, "is no TOML"), (5, "By hand")]),
    ("tests/a.py", 'def test_nobody_waits():\n    x = "is told"\n', [(1, "nobody")]),
    ("a.rs", '/// Fine.\nlet c = \'"\'; // nobody\nlet s = "is no \\\n    x";\n', [(2, "nobody"), (3, "is no x")]),
    ("a.rs", "#[test]\nfn messages_are_handed_out() {}\n", [(2, "handed out")]),
]


def test_findings_of_planted_text() -> None:
    for name, text, expected in PLANTED:
        assert [(finding.line, finding.text) for finding in findings(name, text)] == expected


if __name__ == "__main__":
    arguments = sys.argv[1:]
    chosen = [str(Path(a).resolve().relative_to(ROOT)) for a in arguments if a != "--counts"]
    chosen = [n for n in tracked() if not chosen or any(n == c or n.startswith(c + "/") or c == "." for c in chosen)]
    if "--counts" in arguments:
        counts = Counter("/".join(name.split("/")[:3]) for name, _ in check(chosen))
        for folder, count in counts.most_common():
            sys.stdout.write(f"{count:6} {folder}\n")
    else:
        total = 0
        for name, finding in check(chosen):
            total += 1
            sys.stdout.write(f"{name}:{finding.line}: {finding.text!r}: {finding.advice}\n")
        sys.exit(1 if total else 0)
