"""Renders the report: one page with styles, charts and the charting library inside."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from importlib.resources import files
from typing import Any

from parketto.errors import EngineUnavailable
from parketto.health.examine import Examination
from parketto.health.text import size_text
from parketto.report.charts import NEEDED
from parketto.report.figures import Table, figures

try:
    import jinja2
    import vl_convert
    from altair import SCHEMA_VERSION
    from markupsafe import Markup
except ImportError as error:
    raise EngineUnavailable(NEEDED) from error

_VERDICTS = {"healthy": "Healthy", "attention": "Needs attention", "damaged": "Damaged"}


def render(found: Examination) -> str:
    """The page. All names and values are escaped, and its policy lets the browser run no other script."""
    from parketto import __version__

    health, shown = found.health, figures(found)
    library, script = _library(), _asset("page.js")
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src {_hash(library)} {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    charts = {figure.id: figure.chart for figure in shown if figure.chart is not None}
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {"count": lambda number: f"{number:,}", "size": size_text, "alignment": _alignment}
    return environment.from_string(_asset("page.html.jinja")).render(
        health=health,
        verdict=_VERDICTS[health["verdict"]],
        figures=shown,
        charts=_embedded(charts),
        policy=policy,
        style=Markup(_asset("page.css")),  # noqa: S704 - our own files
        library=Markup(library),  # noqa: S704 - the same
        script=Markup(script),  # noqa: S704 - the same
        version=__version__,
    )


def _embedded(value: Any) -> Markup:
    """JSON inside of a script element: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    escaped = text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
    return Markup(escaped)  # noqa: S704 - escaped


@functools.cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script, in the version of the charts."""
    version = ".".join(SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    found: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version)
    assert "</script" not in found.lower(), "it would end its element"
    return found


def _asset(name: str) -> str:
    return (files("parketto.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """A script as a content security policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _alignment(table: Table, position: int) -> str:
    """The class of a table's column: numbers are right-aligned."""
    first = table.rows[0][position] if table.rows else ""
    return "number" if isinstance(first, int) else "text"
