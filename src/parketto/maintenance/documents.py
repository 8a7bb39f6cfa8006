"""YAML documents as plain values that know their lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parketto.errors import EngineUnavailable, InvalidArgument
from parketto.planning.policy import NEEDED, Loc, key_path

try:
    import yaml
except ImportError as error:
    raise EngineUnavailable(NEEDED) from error

_MERGE = "tag:yaml.org,2002:merge"  # of the key `<<`


@dataclass(frozen=True)
class Document:
    """A value, and the line of every key and item in it, by location. Lines start at 1."""

    value: Any
    lines: Mapping[Loc, int] = field(default_factory=dict)

    def line(self, loc: Loc) -> int:
        """The line of a location, or of the nearest one that contains it."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc, 1)

    def at(self, *loc: int | str) -> Document:
        """A part of the document."""
        value = self.value
        for part in loc:
            value = value[part]
        inside = {at[len(loc) :]: line for at, line in self.lines.items() if at[: len(loc)] == loc}
        return Document(value, inside)

    def over(self, defaults: Document) -> Document:
        """This mapping, with what it lacks taken from another one. Mappings inside are combined, too.

        >>> own, other = Document({"a": {"x": 1}}, {("a", "x"): 7}), Document({"a": {"x": 0, "y": 2}, "b": 3})
        >>> own.over(other).value
        {'a': {'x': 1, 'y': 2}, 'b': 3}
        """
        if not (isinstance(self.value, dict) and isinstance(defaults.value, dict)):
            return self
        value, lines = dict(defaults.value), {**defaults.lines, (): self.line(())}
        for key in self.value:
            part = self.at(key)
            if key in value:
                part = part.over(defaults.at(key))
            value[key] = part.value
            lines = {at: line for at, line in lines.items() if at[:1] != (key,)}
            lines |= {(key, *at): line for at, line in part.lines.items()}
        return Document(value, lines)


def parse(text: str, name: str) -> Document:
    r"""The document of a YAML text. Only plain values are allowed, and every key once.

    >>> parse("budget:\n  mb: 5", "policy.yml").line(("budget", "mb"))
    2
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        lines: dict[Loc, int] = {}
        value = None if node is None else _Reader(loader, name, lines).value(node, (), ())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise InvalidArgument(f"{name}{line}: not valid YAML: {problem}") from error
    finally:
        loader.dispose()
    return Document(value, lines)


class _Reader:
    """Converts the nodes of a document, and notes their lines."""

    def __init__(self, loader: Any, name: str, lines: dict[Loc, int]) -> None:
        self._loader, self._name, self._lines = loader, name, lines

    def value(self, node: Any, loc: Loc, around: tuple[Any, ...]) -> Any:
        """The value of a node."""
        self._lines.setdefault(loc, node.start_mark.line + 1)
        if any(node is outer for outer in around):
            raise self._error(node, loc, "an alias that contains itself")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, loc, around)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*loc, at), (*around, node)) for at, item in enumerate(node.value)]
        return self._loader.construct_object(node, deep=True)

    def _mapping(self, node: Any, loc: Loc, around: tuple[Any, ...]) -> dict[str, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag != _MERGE:
                if key.value in seen:
                    raise self._error(key, loc, f"the key {key.value!r} occurs twice")
                seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        self._loader.flatten_mapping(node)  # replaces `<<` by what it stands for
        found: dict[str, Any] = {}
        for key, item in node.value:
            name = self._loader.construct_object(key, deep=True)
            if not isinstance(name, str):
                raise self._error(key, loc, f"the key {name!r} is not a text; quote it")
            self._lines[(*loc, name)] = key.start_mark.line + 1
            found[name] = self.value(item, (*loc, name), (*around, node))
        return found

    def _error(self, node: Any, loc: Loc, message: str) -> InvalidArgument:
        where = f", {key_path(loc)}" if loc else ""
        return InvalidArgument(f"{self._name}, line {node.start_mark.line + 1}{where}: {message}")
