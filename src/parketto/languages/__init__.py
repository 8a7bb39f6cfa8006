"""The languages in which conditions and new values may be said, besides those that `plan` knows."""

from parketto.languages.dispatch import assignments, predicate

__all__ = ["assignments", "predicate"]
