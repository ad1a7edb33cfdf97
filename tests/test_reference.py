"""Every public name says what it takes, shows an example, and stands in docs/reference.md.

`python -m tests.test_reference` rewrites the rows of that page from the docstrings.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import privcal

ROOT = Path(__file__).parent.parent
PACKAGE = Path(privcal.__file__).parent
PAGE = ROOT / "docs" / "reference.md"
ROW = re.compile(r"^\| \[`([\w.]+)`\].*$", re.MULTILINE)


def public_names() -> dict[str, Any]:
    """The names of `privcal.__all__`, the public methods of its classes, and its modules."""
    names = {}
    for name in privcal.__all__:
        value = names[name] = getattr(privcal, name)
        if inspect.isclass(value):
            members = (m for m in vars(value) if not m.startswith("_"))
            names |= {f"{name}.{m}": vars(value)[m] for m in members if is_code(vars(value)[m])}
    return names


def is_code(value: Any) -> bool:
    kinds = (property, classmethod, staticmethod)
    return inspect.isfunction(value) or isinstance(value, kinds) or hasattr(value, "attrname")


def problems(name: str, value: Any) -> Iterator[str]:
    """What is missing in the docstring of one public name.

    A method's parameter may be explained in the docstring of its class.
    """
    text = documentation(name, value)
    if not text:
        yield "no docstring"
    if isinstance(value, ModuleType):
        return
    known = text + documentation(name.split(".")[0], getattr(privcal, name.split(".")[0]))
    if unnamed := [p for p in parameters(value) if not re.search(rf"\b{p}\b", known)]:
        yield f"no word about {', '.join(unnamed)}"
    if "." not in name and ">>>" not in text + inspect.getsource(value):
        yield "no example"


def documentation(name: str, value: Any) -> str:
    """The docstring, an inherited one included; of a class also what stands below its fields."""
    if "." in name:
        owner, method = getattr(privcal, name.split(".")[0]), name.split(".")[1]
        return inspect.getdoc(getattr(owner, method)) or ""
    text = inspect.getdoc(value) or ""
    if not inspect.isclass(value):
        return text
    if text.startswith(f"{name}("):  # what dataclass writes where there is none
        text = ""
    ancestors = [cls for cls in value.__mro__ if cls.__module__.startswith("privcal")]
    return "\n".join([text, *(inspect.getdoc(cls) or "" for cls in ancestors[1:]), *fields(value)])


def fields(cls: type) -> Iterator[str]:
    """The names of the fields that have a docstring of their own below them."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            assert isinstance(field.target, ast.Name)
            yield field.target.id


def parameters(value: Any) -> list[str]:
    if isinstance(value, property) or hasattr(value, "attrname"):
        return []
    function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
    try:
        names = list(inspect.signature(function).parameters)
    except ValueError:  # an exception without a constructor of its own
        return []
    return [n for n in names if n not in ("self", "cls", "args", "kwargs") and n[0] != "_"]


def test_every_public_name_says_what_it_takes_and_shows_an_example() -> None:
    missing = {n: [*problems(n, v)] for n, v in public_names().items()}
    assert not {name: problems for name, problems in missing.items() if problems}


# --- the page ----------------------------------------------------------------------------

EXTRAS = {"sklearn": "sklearn", "torch": "torch", "onnx": "onnxruntime", "scoring": "onnxruntime"}
"""Public modules that `import privcal` leaves alone, and what they need."""


def listed() -> dict[str, Any]:
    """What the page must list: `privcal.__all__`, and `__all__` of the packages among it.

    So also of the modules for an extra, where that is installed.
    """
    names = {name: getattr(privcal, name) for name in privcal.__all__}
    for name, value in list(names.items()):
        inner = getattr(value, "__all__", ()) if isinstance(value, ModuleType) else ()
        more = {f"{name}.{n}": getattr(value, n) for n in inner}
        names |= {n: v for n, v in more.items() if not any(v is known for known in names.values())}
    for name in installed():
        module = import_module(f"privcal.{name}")
        names |= {f"{name}.{n}": getattr(module, n) for n in module.__all__}
    return names


def installed() -> list[str]:
    return [name for name, needed in EXTRAS.items() if find_spec(needed) is not None]


def row(name: str, value: Any) -> str:
    summary = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split()).replace("|", "\\|")
    try:
        file = inspect.getsourcefile(value) or ""
    except TypeError:  # a type alias has neither a file nor a docstring of its own
        file, summary = inspect.getsourcefile(getattr(privcal, name.split(".")[0])) or "", "A type."
    where = Path(file).relative_to(PACKAGE.parent).as_posix()
    return f"| [`{name}`](../src/{where}) | {summary} |"


def updated(page: str) -> str:
    """The page with every row as the docstrings have it."""
    names = listed()
    return ROW.sub(lambda m: row(m[1], names[m[1]]) if m[1] in names else m[0], page)


def test_the_reference_lists_every_public_name_once() -> None:
    absent = {*EXTRAS} - {*installed()}
    rows = [
        name for name in ROW.findall(PAGE.read_text("utf-8")) if name.split(".")[0] not in absent
    ]
    assert sorted(rows) == sorted(listed())


def test_the_reference_says_what_the_docstrings_say() -> None:
    page = PAGE.read_text("utf-8")
    assert page.splitlines() == updated(page).splitlines(), "run python -m tests.test_reference"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text("utf-8")), "utf-8")
