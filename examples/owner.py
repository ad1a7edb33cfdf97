"""A data owner: a ledger for a table, one question answered, and what it cost.

Run it with `python examples/owner.py`; the table is made up here, yours is a file.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

import privcal
from privcal.queries import Gap


def main(folder: Path) -> None:
    rng = np.random.default_rng(0)
    risk = rng.beta(1, 4, 300)
    ill = (rng.random(300) < risk**1.5).astype(int)  # the model says too much
    patient = rng.integers(0, 120, 300)  # some have several rows
    table = pl.DataFrame({"patient": patient, "probability": risk, "label": ill})
    table.write_parquet(folder / "hospital.parquet")

    # Once: whom the ledger protects, and what may be asked, by whom, for how much.
    policy = privcal.Policy(epsilon=2.0, epsilon_per_request=0.5, queries=("gap",), askers=("ann",))
    [ledger] = privcal.create_ledgers(
        folder / "hospital.parquet", policy, person="patient", name="hospital"
    )

    # Summed over rows, how much more is correct than confident? What comes back has noise.
    [source] = privcal.open_sources([folder / "hospital.parquet"])
    for asker in ("ann", "bob"):
        try:
            answer = source.answer(privcal.Question.of(Gap(), 0.5, "winter"), asker)
            print(f"{asker} was answered {answer.values[0]:.1f} for epsilon {answer.epsilon:g}")
        except privcal.Refused as refused:
            print(f"{asker} was refused: {refused}")
    for entry in ledger.entries():
        print(f"{entry.time}  {entry.kind:8} epsilon {entry.epsilon:g}  {entry.what}")
    print(f"spent {source.spent:g} of {source.policy.epsilon:g}")


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        os.environ["PRIVCAL_MARKS"] = f"{made}/marks.db"  # real ledgers have theirs elsewhere
        main(Path(made))
