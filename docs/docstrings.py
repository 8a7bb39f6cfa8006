"""Prepares docstrings for the reference: examples become code blocks, and the keys of results a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^( *)>>> .*(?:\n\1.*\S.*)*", re.M)  # up to an empty line or the end of the section
_FLAGS = re.compile(r" *# doctest:.*")


class Examples(griffe.Extension):
    """Shows doctests as code: Markdown takes `>>>` for nested quotations."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = with_code_blocks(obj.docstring.value)


class Annotations(griffe.Extension):
    """Shows what `Annotated` annotates, without the validators."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Replace the annotation of an attribute."""
        found = attr.annotation
        if isinstance(found, griffe.ExprSubscript) and str(found.left) == "Annotated":
            attr.annotation = next(iter(found.slice.elements))


class Keys(griffe.Extension):
    """Lists the keys of a `TypedDict` in its docstring, those of its bases first."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Add the list to every `TypedDict` of the package."""
        modules = [pkg]
        while modules:
            module = modules.pop()
            modules += [each for each in module.modules.values() if not each.is_alias]
            for each in module.classes.values():
                if not each.is_alias and each.docstring is not None and _is_mapping(each):
                    each.docstring.parsed.append(griffe.DocstringSectionAttributes(_keys(each), "Keys:"))


def _is_mapping(found: griffe.Class) -> bool:
    bases = [str(base).rpartition(".")[2] for each in (found, *found.mro()) for base in each.bases]
    return "TypedDict" in bases


def _keys(found: griffe.Class) -> list[griffe.DocstringAttribute]:
    return [
        griffe.DocstringAttribute(
            name, description=key.docstring.value if key.docstring else "", annotation=key.annotation
        )
        for each in (*reversed(found.mro()), found)
        for name, key in each.attributes.items()
        if not key.is_alias and "instance-attribute" in key.labels
    ]


def with_code_blocks(docstring: str) -> str:
    """A docstring whose doctests are fenced."""
    # griffe makes a box of `Example:`, and a section of `Examples:`.
    text = re.sub(r"^( *)Example:$", r"\1Examples:", docstring, flags=re.M)
    return _DOCTEST.sub(r"\1```pycon\n\g<0>\n\1```", _FLAGS.sub("", text))
