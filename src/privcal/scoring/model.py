"""An ONNX model, run on one row at a time.

A runtime that multiplies matrices over a batch chooses its kernels by the batch's shape, so the
last bits of a row's scores depend on how many rows come with it: removing one person would move
the scores of others, and no sensitivity would hold. Here a batch is one row.

Nor may a row's place in memory matter: a sum over a row that begins off a vector register's
boundary is added up in another order. So a row is copied to a place that is the same for all.

Proof that a row's scores are a function of that row and the model alone: the session is made of
fixed bytes with fixed settings (one thread, operators one after the other, one provider); its
operators are standard ones and none of them draws random numbers (`check_model`), so that a run is
a function of what it is given and where that lies; and it is given one row, always at the same
place, or at one that is aligned alike. ∎
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from privcal.errors import InputError

if TYPE_CHECKING:
    from privcal.onnx.outputs import Kind

TYPES: dict[str, npt.DTypeLike] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int16)": np.int16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
}
"""The types of inputs that a table or an array can fill."""


FEATURES = "privcal.features"
"""Where a model's metadata may name its features."""

ALIGNMENT = 64
ROUNDING = 1e-6
"""A forest's shares, added in single precision, may come to a little more than 1: it counts as 1."""


def model_name(path: str | Path) -> str:
    """The name of a model file: `sha256:` and the 64 hexadecimal digits of its SHA-256.

    Examples
    --------
    >>> from pathlib import Path
    >>> size = Path("model.onnx").write_bytes(b"abc")
    >>> model_name("model.onnx")[:20]
    'sha256:ba7816bf8f01c'
    """
    return _name(_bytes(Path(path)))


@dataclass(frozen=True)
class Input:
    """One input of a model: its name, its type, and the shape that one row has there."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]

    @property
    def width(self) -> int | None:
        """The numbers that one row takes; None where any number would do."""
        return None if None in self.shape else prod(size for size in self.shape if size is not None)


class Model:
    """A model file, checked, with the output that holds the scores of its classes.

    Random operators, operators of other packages and weights in other files are refused: the file's
    bytes alone decide what a row's scores are, and these bytes are what its name is made of.

    Parameters
    ----------
    path
        An ONNX file.
    output, kind
        Which output holds the scores, and whether these are logits or probabilities, where the
        file leaves it open.
    classes
        The names of the classes, in order; by default those in the file, else 0, 1, ….

    Examples
    --------
    >>> import onnx.parser
    >>> net = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ...     net (float[N, 3] x) => (float[N, 3] y) { y = Softmax(x) }''')
    >>> onnx.save(net, "model.onnx")
    >>> model = Model("model.onnx", classes=["low", "middle", "high"])
    >>> model.kind, model.classes, model.name == model_name("model.onnx")
    ('probabilities', ('low', 'middle', 'high'), True)
    >>> model.run({"x": np.zeros((1, 3), np.float32)}).round(3)
    array([0.333, 0.333, 0.333], dtype=float32)
    """

    def __init__(
        self,
        path: str | Path,
        *,
        output: str | None = None,
        kind: Kind | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        need_onnx()
        from privcal.onnx.outputs import find_scores, without_zipmaps

        self.path = Path(path)
        content = _bytes(self.path)
        self.name = _name(content)
        proto = _checked(self.path, content)
        try:
            found = find_scores(proto, output=output, kind=kind)
            self._session = _session(without_zipmaps(proto).SerializeToString())
            self.inputs = tuple(_input(value) for value in self._session.get_inputs())
        except InputError as error:
            raise InputError(f"model {self.path}: {error}") from None
        self.kind, self.column = found.kind, found.column
        self.features = _features(self.path, proto)
        """The columns that the model takes as one matrix, where its file says so."""
        self._output = [found.output]
        self._places: dict[str, npt.NDArray[Any]] = {}
        count = found.classes or self._width()
        self.classes = self._names(count, classes, found.names)
        self.raw_columns = 1 if self.column else count
        self.columns = self.raw_columns if self.kind == "probabilities" else count
        """The columns of its scores: one where that is the probability of class 1 of two."""
        self.dtype = np.dtype(_dtype(self._session, found.output))

    def run(self, row: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """What the model says of one row, given as an array with a first dimension of 1 for each input.

        As many numbers as `raw_columns`; `as_scores` makes scores of them.
        """
        for name, values in row.items():
            place = self._places.get(name)
            if place is None or place.shape != values.shape:
                place = self._places[name] = _aligned(values)
            place[...] = values
        [result] = self._session.run(self._output, self._places)
        return np.reshape(result, self.raw_columns)

    def as_scores(self, said: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What was said of some rows, as scores: each number by itself.

        Log-odds of class 1 of two become two logits. A probability that rounding has put just
        outside [0, 1] is 0 or 1.
        """
        if self.kind == "probabilities":
            near = ((said > 1) & (said <= 1 + ROUNDING)) | ((said < 0) & (said >= -ROUNDING))
            return np.where(near, np.clip(said, 0, 1), said)
        return np.concatenate([np.zeros_like(said), said], axis=1) if self.column else said

    def _width(self) -> int:
        """The number of classes where the file does not say: what a row of zeros gets."""
        row = {i.name: _zeros(i) for i in self.inputs}
        try:
            return int(np.asarray(self._session.run(self._output, row)[0]).shape[-1])
        except Exception:
            raise InputError(
                f"model {self.path} does not say how many classes it has: export it with the shape "
                "of its output"
            ) from None

    def _names(
        self, count: int, said: Sequence[str] | None, found: Sequence[str | int] | None
    ) -> tuple[str, ...]:
        names = tuple(map(str, said or found or range(count)))
        if len(names) != count or len(set(names)) != count or "" in names:
            raise InputError(
                f"model {self.path} has {count} classes: name each of them once, not {', '.join(names)}"
            )
        return names


def need_onnx() -> None:
    """An InputError that says what to install, where the extra is missing."""
    from importlib.util import find_spec

    if find_spec("onnxruntime") is None or find_spec("onnx") is None:
        raise InputError("models are run with ONNX Runtime: pip install 'privcal[onnx]'")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read model {path}: {error.strerror}") from None


def _name(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _checked(path: Path, content: bytes) -> Any:
    """The model in these bytes, nothing of which is executed to look at it."""
    from privcal.onnx.outputs import all_nodes, parse_model

    proto = parse_model(content, path)
    if any(node.op_type == "Loop" for node in all_nodes(proto)):
        raise InputError(
            f"model {path}: its operator Loop goes on for as long as a row says, and how long a "
            "row takes must not tell of it; export the model without"
        )
    return proto


def _session(content: bytes) -> Any:
    """A session on one thread, with everything fixed that a result could depend on."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.use_deterministic_compute = True
    options.enable_mem_pattern = False  # the second run would lay its tensors out unlike the first
    options.log_severity_level = 4  # a row that fails is told in our own words, or not at all
    try:
        return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        text = str(error).strip()
        first = text.splitlines()[0] if text else type(error).__name__
        raise InputError(f"ONNX Runtime cannot load it ({first[:300]})") from None


def _input(value: Any) -> Input:
    if value.type not in TYPES:
        raise InputError(f"its input {value.name} is a {value.type}, which no column can fill")
    first, *rest = value.shape or [None]
    if isinstance(first, int) and first != 1:
        raise InputError(
            f"its input {value.name} takes {first} rows at once; export it for any number of rows"
        )
    shape = tuple(size if isinstance(size, int) and size > 0 else None for size in rest)
    return Input(value.name, np.dtype(TYPES[value.type]), shape)


def _features(path: Path, proto: Any) -> tuple[str, ...] | None:
    """The names of the features in a model's metadata: a JSON list."""
    said = {entry.key: entry.value for entry in proto.metadata_props}.get(FEATURES)
    if said is None:
        return None
    try:
        names = json.loads(said)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"model {path}: its metadata {FEATURES} must be a JSON list of names")
    return tuple(names)


def _dtype(session: Any, output: str) -> npt.DTypeLike:
    """The type of the scores, as the session says it: never wider, so that no bit is added."""
    said = next(value.type for value in session.get_outputs() if value.name == output)
    return np.float64 if said == "tensor(double)" else np.float32


def _aligned(like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Room for such an array, at a boundary of the widest vector registers."""
    if like.dtype == np.object_:  # texts, which the runtime copies
        return np.empty_like(like)
    room = np.empty(like.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + like.nbytes].view(like.dtype).reshape(like.shape)


def _zeros(given: Input) -> npt.NDArray[Any]:
    shape = (1, *(size or 1 for size in given.shape))
    return np.full(shape, "" if given.dtype == np.object_ else 0, given.dtype)
