"""Functions as programs for the original have them: no tasks, known by where they can be imported from."""

from __future__ import annotations

from sample_jobs import note


def write(path: str, text: str) -> None:
    note(path, text)


def _hidden(path: str) -> None:
    note(path, "hidden")


class Letter:
    """A method is called on an object that is made for each job."""

    def __init__(self, greeting: str) -> None:
        self.greeting = greeting

    def write(self, path: str, name: str) -> None:
        note(path, f"{self.greeting}, {name}")
