"""`privcal demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from privcal.calibration.maps import Map, TemperatureMap
from privcal.cli.console import plural, progress_bar, show, table
from privcal.cli.options import Json
from privcal.report.rehearsal import Row, run_demo


def demo(
    shift: Annotated[
        str, typer.Option(help="A corruption of CIFAR-10-C, or clean.")
    ] = "motion_blur",
    sources: Annotated[int, typer.Option(help="How many private sources.")] = 50,
    samples: Annotated[int, typer.Option(help="Rows of each source.")] = 30,
    epsilon: Annotated[float, typer.Option(help="Budget of one method at each source.")] = 1.0,
    seed: Annotated[int, typer.Option(help="For the split; noise is never seeded.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the picture, maps and ledgers.")] = Path(
        "privcal-demo"
    ),
    as_json: Json = False,
) -> None:
    """Run every method on bundled real data, through real sources with real ledgers.

    Splits the logits of a CIFAR-10 network under a corruption into small private sources and an
    unseen rest, recalibrates with each method, and measures on the rest.

    Example: `privcal demo --shift fog --sources 100 --epsilon 0.5`
    """
    with progress_bar() as bar:
        task = bar.add_task("preparing", total=None)

        def progress(method: str, step: Any) -> None:
            if step is None:
                bar.update(task, description=method)
            else:
                bar.advance(task)

        rows, test_rows = run_demo(shift, sources, samples, epsilon, seed, out, progress)
    files = {
        "reliability diagrams": out / "reliability.png",
        "maps": out / "maps",
        "ledgers": out / "ledgers",
    }
    document = {
        "shift": shift,
        "sources": sources,
        "samples": samples,
        "epsilon": epsilon,
        "seed": seed,
        "test_rows": test_rows,
        "methods": [_facts(row) for row in rows],
        "files": {what: str(path) for what, path in files.items()},
    }
    title = f"CIFAR-10-C {shift}: {plural(sources, 'source')} of {plural(samples, 'row')} each"
    notes = [f"{row.method}: {row.map.note}" for row in rows if row.map.note]
    lines = [*notes, *(f"{what}: {path}" for what, path in files.items())]
    show(
        as_json,
        document,
        _table(title, rows, test_rows),
        *lines[:-1],
        f"{lines[-1]} (of this demo alone)",
    )


def _table(title: str, rows: list[Row], test_rows: int) -> Table:
    results = table(
        ("method", "T", "ECE", "Brier", "AURC", "ε", "exact fit"),
        ("method",),
        narrow=True,
        title=f"{title}\nmeasured on {test_rows:,} unseen rows, before → after",
        caption="T: temperature. ECE: mean gap between confidence and accuracy. Brier: mean "
        "squared error of the confidence. AURC: mean error rate of the most confident rows, over "
        "all numbers of them (after). Lower is better; read all. ε: charged to each source. "
        "Methods have the options that `privcal calibrate` has by default (a study has the "
        "paper's). Exact fit: ECE and Brier when the same rows are used without noise, and any "
        "temperature from 0.05 to 20, which only public data like these allow.",
    )
    for row in rows:
        temperature = _temperature(row.map)
        results.add_row(
            row.method,
            row.map.kind if temperature is None else f"{temperature:.3f}",
            f"{row.before.ece:.3f} → {row.after.ece:.3f}",
            f"{row.before.brier:.3f} → {row.after.brier:.3f}",
            f"{row.after.aurc:.3f}",
            f"{row.spent:g}",
            f"{row.exact.ece:.3f}, {row.exact.brier:.3f}" if row.exact else "",
        )
    return results


def _facts(row: Row) -> dict[str, Any]:
    return {
        "method": row.method,
        "temperature": _temperature(row.map),
        "note": row.map.note,
        "epsilon_spent": row.spent,
        "before": row.before.to_dict(),
        "after": row.after.to_dict(),
        "exact": row.exact.to_dict() if row.exact else None,
    }


def _temperature(map: Map) -> float | None:
    """The temperature of a map that is nothing else."""
    return map.temperature if isinstance(map, TemperatureMap) else None
