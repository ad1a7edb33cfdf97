"""The public names are imported when they are asked for, and are what a reader of the code sees."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import privcal

TREE = ast.parse(Path(privcal.__file__).read_text("utf-8"))


def python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def for_types() -> dict[str, str]:
    """Each name of the block that only a type checker reads, with its module; "" for a module."""
    [block] = [node for node in TREE.body if isinstance(node, ast.If)]
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        module = (node.module or "").removeprefix("privcal").removeprefix(".")
        found |= {alias.name: module for alias in node.names}
    return found


def test_a_type_checker_sees_each_name_where_it_is_found() -> None:
    names = dict.fromkeys(privcal._MODULES, "") | privcal._WHERE
    assert for_types() == names
    assert sorted(privcal.__all__) == sorted(names)


@pytest.mark.parametrize("name", privcal.__all__)
def test_each_name_is_found(name: str) -> None:
    module = privcal._WHERE.get(name)
    expected = (
        import_module(f"privcal.{name}")
        if module is None
        else getattr(import_module(f"privcal.{module}"), name)
    )
    assert getattr(privcal, name) is expected
    assert name in dir(privcal)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'calibrat'"):
        _ = privcal.calibrat


def test_a_function_is_not_hidden_by_any_module_of_its_name() -> None:
    told = "print(privcal.calibrate.__class__.__name__, privcal.advise.__class__.__name__)"
    after = "import privcal.calibration.loop, privcal.planning.advise.plan"
    assert python(f"import privcal; {after}; {told}") == "function function"


def test_importing_privcal_imports_nothing_else_of_it_and_no_numpy() -> None:
    ours = "sorted(m for m in sys.modules if m.startswith('privcal') or m == 'numpy')"
    assert python(f"import sys, privcal; print({ours})") == "['privcal', 'privcal.version']"


def test_a_map_is_loaded_with_numpy_alone() -> None:
    heavy = "{'polars', 'opendp', 'matplotlib', 'typer', 'rich'} & set(sys.modules)"
    assert python(f"import sys, privcal; privcal.load_map; print({heavy})") == "set()"


def test_a_star_imports_every_public_name() -> None:
    assert python("from privcal import *; print(calibrate.__name__, sketch.__name__)") == (
        "calibrate privcal.sketch"
    )
