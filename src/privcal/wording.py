"""Small parts of sentences."""

from __future__ import annotations


def plural(count: int, noun: str, ending: str = "s") -> str:
    """`count` of a noun: "1 answer", "1,200 answers", "2 processes" (ending "es")."""
    return f"{count:,} {noun}{ending if count != 1 else ''}"
