"""Numbers as people read them."""

from __future__ import annotations

_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB")


def size_text(size: float) -> str:
    """A number of bytes, in units of 1024 as everywhere in Parketto.

    >>> size_text(0), size_text(1), size_text(1536), size_text(128 * 1024**2), size_text(2.26 * 1024**4)
    ('0 bytes', '1 byte', '1.5 KB', '128 MB', '2.3 TB')
    """
    unit = 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size /= 1024
        unit += 1
    if not unit:
        return counted(round(size), "byte")
    return f"{size:.1f}".removesuffix(".0") + f" {_UNITS[unit]}" if size < 100 else f"{size:.0f} {_UNITS[unit]}"


def counted(count: int, noun: str) -> str:
    """A number and a noun.

    >>> counted(1, "file"), counted(1200, "file")
    ('1 file', '1,200 files')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def percent(share: float) -> str:
    """A share of a whole; only nothing is 0 %, and only everything is 100 %.

    >>> percent(0.5), percent(0.0004), percent(0.9999), percent(1.0)
    ('50 %', 'under 1 %', 'over 99 %', '100 %')
    """
    if 0 < share < 0.005:
        return "under 1 %"
    if 0.995 <= share < 1:
        return "over 99 %"
    return f"{share:.0%}".replace("%", " %")
