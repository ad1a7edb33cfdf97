"""`python -m benchmarks` runs all; `python -m benchmarks gap ece` runs those."""

from __future__ import annotations

import sys
from importlib import import_module

from benchmarks import report

NAMES = (
    *("startup", "fit", "gap", "ece", "maps", "answer", "persons", "sources", "growth", "score"),
    *("study", "sketch", "refine", "offsets", "liars", "ranges", "shares"),
    *("secure", "secure_site", "letters", "federation", "corruptions"),
)


def main(wanted: list[str]) -> None:
    for name in wanted:
        if name not in NAMES:
            raise SystemExit(f"there is no benchmark {name!r}; there are {', '.join(NAMES)}")
    report.console.print(report.machine(), end="\n\n")
    for name in wanted or NAMES:
        import_module(f"benchmarks.{name}").run()
        report.console.print()


if __name__ == "__main__":
    main(sys.argv[1:])
