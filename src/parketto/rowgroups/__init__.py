"""Row groups as bytes: those of many Parquet files appended to one, without decoding a single value.

Works on binary file objects; knows neither Arrow nor stores.
"""

from parketto.rowgroups.appender import RowGroupAppender, append_files
from parketto.rowgroups.compatible import OWN_NOTES, reading_rules, why_not_together
from parketto.rowgroups.footer import Column, Footer, RowGroup, parse_footer, read_footer

__all__ = [
    "OWN_NOTES",
    "Column",
    "Footer",
    "RowGroup",
    "RowGroupAppender",
    "append_files",
    "parse_footer",
    "read_footer",
    "reading_rules",
    "why_not_together",
]
