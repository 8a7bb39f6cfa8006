"""A state-space search: every interleaving of small programs over one storage, with crashes at every step.

A program is a generator. Each value that it yields is one atomic step: a function that takes the world and returns
the next world and an answer, or None as long as it has to wait. A program knows nothing but the answers it was
given, so the answers are its state: two states of the search are the same if the world is, and every program has
had the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

World = Any
Step = Callable[[World], "tuple[World, Any] | None"]
Program = Callable[[], Generator[Step, Any, str]]


class Missing(Exception):
    """A file that a step needs is not there. As an answer it is raised inside of the program."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Missing)

    def __hash__(self) -> int:
        return 1


class Fault(Missing):
    """A step that fails without any effect: the disk is full."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fault)

    def __hash__(self) -> int:
        return 2


@dataclass(frozen=True)
class Ended:
    """A program has ended, and reported this outcome to its caller."""

    outcome: str


@dataclass
class Found:
    """The result of a search."""

    states: int = 0
    ends: int = 0
    #: Each violation, with one trace that leads to it.
    violations: dict[str, list[str]] = field(default_factory=dict)


class _Numbers:
    """Interns values as numbers, so that a state is a few numbers and not a whole world."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.things: list[Any] = []

    def of(self, thing: Hashable) -> int:
        number = self._numbers.setdefault(thing, len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return number


# The number of a world, the number of each program's answers, and how many programs may still die.
_State = tuple[int, tuple[int, ...], int]
_CameFrom = dict[_State, "tuple[_State, str] | None"]


class Search:
    """All interleavings of some programs.

    Args:
        programs: By name.
        died: The world after a program died: a kernel frees its locks.
        ending: A program that runs at the end, on its own: what the next user does.
        check: Gets the outcome of every program, and the ending's; returns what is violated, or None.
        crashes: How many programs may die.
    """

    def __init__(
        self,
        programs: Mapping[str, Program],
        *,
        died: Callable[[World, str], World],
        ending: Program,
        check: Callable[[World, dict[str, str], str], str | None],
        crashes: int = 0,
    ) -> None:
        self._names, self._programs = [*programs, "the next user"], [*programs.values(), ending]
        self._died, self._check, self._crashes = died, check, crashes
        self._worlds, self._answers = _Numbers(), _Numbers()
        #: The next step of each program, by its number and the number of its answers.
        self._pending: dict[tuple[int, int], Step | Ended] = {}
        self._made: dict[tuple[int, int, int], tuple[int, int] | None] = {}

    def run(self, world: World) -> Found:
        """Search from a world in which nothing has happened yet."""
        found = Found()
        none = self._answers.of((-1, None))
        start = (self._worlds.of(world), (none,) * (len(self._names) - 1), self._crashes)
        came_from: _CameFrom = {start: None}
        waiting = [start]
        while waiting:
            state = waiting.pop()
            found.states += 1
            moved = False
            for label, following in self._moves(state):
                moved = True
                if following not in came_from:
                    came_from[following] = (state, label)
                    waiting.append(following)
            if not moved:
                found.ends += 1
                if (violated := self._violated(state)) and violated not in found.violations:
                    found.violations[violated] = _trace(state, came_from)
        return found

    def _moves(self, state: _State) -> Iterator[tuple[str, _State]]:
        world, programs, crashes = state
        for at, answers in enumerate(programs):
            step = self._next(at, answers)
            if isinstance(step, Ended):
                continue
            if (made := self._step(at, answers, world)) is not None:
                yield f"{self._names[at]}: {_title(step)}", (made[0], _replaced(programs, at, made[1]), crashes)
            if crashes:
                after = self._worlds.of(self._died(self._worlds.things[world], self._names[at]))
                dead = self._ended(at, Ended("dead"))
                yield f"{self._names[at]} dies", (after, _replaced(programs, at, dead), crashes - 1)

    def _step(self, at: int, answers: int, world: int) -> tuple[int, int] | None:
        """The world and the answers after a program's next step, or None if it has to wait."""
        key = (at, answers, world)
        if key not in self._made:
            step = self._next(at, answers)
            assert not isinstance(step, Ended)
            made = step(self._worlds.things[world])
            self._made[key] = made and self._after(at, answers, made)
        return self._made[key]

    def _after(self, at: int, answers: int, made: tuple[World, Any]) -> tuple[int, int]:
        world, answer = made
        given = self._answers.of((answers, answer))
        then = self._next(at, given)
        # Once a program has ended, its earlier answers no longer matter.
        return self._worlds.of(world), self._ended(at, then) if isinstance(then, Ended) else given

    def _ended(self, at: int, end: Ended) -> int:
        number = self._answers.of((-1, end))
        self._pending[at, number] = end
        return number

    def _next(self, at: int, answers: int) -> Step | Ended:
        """The next step of a program after these answers, or its end."""
        if (at, answers) not in self._pending:
            given = []
            number = answers
            while (node := self._answers.things[number])[0] != -1:
                number, answer = node
                given.append(answer)
            running = self._programs[at]()
            step: Step | Ended
            try:
                step = next(running)
                for answer in reversed(given):
                    step = running.throw(answer) if isinstance(answer, Missing) else running.send(answer)
            except StopIteration as end:
                step = Ended(end.value)
            self._pending[at, answers] = step
        return self._pending[at, answers]

    def _violated(self, state: _State) -> str | None:
        """What is violated in a state in which no program can make a step."""
        world, programs, _ = state
        ends = [self._next(at, answers) for at, answers in enumerate(programs)]
        if not all(isinstance(end, Ended) for end in ends):
            return "programs wait for each other"
        last, answers = len(programs), self._answers.of((-1, None))
        while not isinstance(step := self._next(last, answers), Ended):
            if (made := self._step(last, answers, world)) is None:
                return "the next user waits for ever"
            world, answers = made
        outcomes = {
            name: end.outcome for name, end in zip(self._names, ends, strict=False) if isinstance(end, Ended)
        }
        return self._check(self._worlds.things[world], outcomes, step.outcome)


def _replaced(programs: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*programs[:at], value, *programs[at + 1 :])


def _trace(state: _State, came_from: _CameFrom) -> list[str]:
    steps = []
    while (before := came_from[state]) is not None:
        state, label = before
        steps.append(label)
    return steps[::-1]


def _title(step: Step) -> str:
    return str(getattr(step, "title", "step"))
