"""Spark finds data sources in packages of this name pattern, so `format("parketto")` needs no registration."""

from parketto.datasource.source import DefaultSource

__all__ = ["DefaultSource"]
