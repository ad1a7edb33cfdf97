"""A server needs numpy and this package, nothing else: maps are loaded and applied without the rest."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import privcal
from tests.support.builders import python
from tests.support.every_map import every_map

BLOCKED = """
import sys, importlib.metadata

class Block:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ("numpy", "privcal", "tests") and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

sys.meta_path.insert(0, Block())
"""
APPLY = """
import json, privcal
loaded = privcal.load_map(sys.argv[1])
logits = json.load(open(sys.argv[2]))
table = privcal.abstention(loaded, logits, thresholds=[0.5])
print(json.dumps([loaded.predict_proba(logits).tolist(), loaded.confidence(logits).tolist(),
                  loaded.predict(logits).tolist(), table[0].rows]))
"""


@pytest.mark.parametrize("name", ["bins", "curve", "offsets", "risk", "warm"])
def test_a_map_is_loaded_and_applied_with_numpy_alone(name: str, tmp_path: Path) -> None:
    map = every_map(3)[name]
    logits = np.random.default_rng(0).normal(0, 3, (20, 3))
    map.save(tmp_path / "map.json")
    (tmp_path / "logits.json").write_text(json.dumps(logits.tolist()))
    done = python(BLOCKED + APPLY, tmp_path / "map.json", tmp_path / "logits.json")
    assert done.returncode == 0, done.stderr
    p, confidence, predicted, rows = json.loads(done.stdout)
    np.testing.assert_array_equal(p, map.predict_proba(logits))
    np.testing.assert_array_equal(confidence, map.confidence(logits))
    assert predicted == map.predict(logits).tolist()
    assert rows == privcal.abstention(map, logits, thresholds=[0.5])[0].rows


def test_the_command_line_says_what_it_lacks_there() -> None:
    done = python(BLOCKED + "from privcal.__main__ import main; main()")
    assert done.returncode == 1
    assert done.stderr == (
        "error: commands need typer, which is not installed; pip install privcal\n"
    )
