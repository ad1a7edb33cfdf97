"""An ONNX model, run on one row at a time.

A runtime that multiplies matrices over a batch chooses its kernels by the batch's shape, so the
last bits of a row's scores depend on how many rows come with it: removing one person would move
the scores of others, and no sensitivity would hold. Here a batch is one row.

Nor may a row's place in memory matter: a sum over a row that begins off a vector register's
boundary is added up in another order. So a row is copied to a place that is the same for all.

Nor may a row meet anything that another one left behind. A session lives as long as its model, and
an operator that writes into it carries something from row to row. So a model consists of operators
from a list, none of which does.

Proof that a row's scores are a function of that row and the model alone. The session is made of the
checked graph with fixed settings: one thread, operators one after the other, one provider. Nothing
else in the file reaches it, and no other file is read (`_bare`, `check_model`). It is given one row,
always at the same place, or at one that is aligned alike. So what a run gives is a function of the
row and of what the session holds. An operator of the list is a function of its inputs and writes to
nothing but its outputs, and the runtime gives no output the place of a constant. So no run changes
what the session holds. ∎

The last step but one relies on the runtime. It is not proved here but tested: each operator scores a
row again after others that would move whatever it kept (`tests/data/scoring/test_model_operators.py`). No such
test finds a graph made to exploit a fault of the runtime: a model file is software. That a row which
ends its process, or takes too much, takes no other with it is for `privcal.data.scoring.alone`.

That an operator is a function of its inputs is more than being free of random numbers. A runtime keeps a
session's memory from one run to the next, and some operators write into it. A `BatchNormalization` that is set for training adds every row
to the running mean that the next row meets, so that one row would decide the scores of all later ones.
A list says what is allowed, and whatever is not on it is refused, inside branches and the model's own
functions too.

`tests/data/scoring/test_model_operators.py` tries each operator of the list: it scores a row, then rows made to
leave something behind (no numbers, infinite, huge, negative, ones on which the operator fails), then
the first row again, which must have the same bits. It does so for the versions of the operator that the
runtime has, and it does see the state of operators that are refused for theirs. Also left out are
`Loop`, which goes on for as long as a row says, caches, sequences, maps, operators of single runtimes,
and those that classifiers have no use for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from privcal.data.columns import Kind
from privcal.data.scoring.alone import Feed, Graph, open_session
from privcal.trusted import records
from privcal.trusted.errors import InputError

if TYPE_CHECKING:
    import onnx

STANDARD = """
    Abs Acos Acosh Add AffineGrid And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool
    BatchNormalization BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
    BlackmanWindow Cast CastLike Ceil Celu CenterCropPad Clip Col2Im Compress Concat Constant
    ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh CumProd CumSum DFT DepthToSpace
    DequantizeLinear Div Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand EyeLike
    Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool
    Greater GreaterOrEqual GridSample GroupNormalization HammingWindow HannWindow HardSigmoid
    HardSwish Hardmax Identity If InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization
    LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul MatMulInteger Max
    MaxPool Mean MeanVarianceNormalization MelWeightMatrix Min Mish Mod Mul Neg NonZero Not
    OneHot Or PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear RMSNormalization RNN Range
    Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
    ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize ReverseSequence RotaryEmbedding
    Round STFT Scan Scatter ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh
    Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze StringConcat
    StringNormalizer StringSplit Sub Sum Swish Tan Tanh TfIdfVectorizer ThresholdedRelu Tile
    TopK Transpose Trilu Unique Unsqueeze Upsample Where Xor
"""
"""Of ai.onnx. `Dropout` and `BatchNormalization` as they are for inference (see `_trains`)."""

LEARNING = """
    ArrayFeatureExtractor Binarizer CategoryMapper FeatureVectorizer Imputer LabelEncoder
    LinearClassifier LinearRegressor Normalizer OneHotEncoder SVMClassifier SVMRegressor Scaler
    TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor ZipMap
"""
"""Of ai.onnx.ml."""

KNOWN = {
    **dict.fromkeys(("", "ai.onnx"), frozenset(STANDARD.split())),
    "ai.onnx.ml": frozenset(LEARNING.split()),
}
"""What is allowed of each domain."""

RUNTIMES = ("ai.onnx", "com.microsoft", "com.ms.", "org.pytorch")
"""How domains begin in which runtimes have operators of their own: these run, whatever function of the
same name a model brings along."""

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

    Operators that are not known to score each row by itself and weights in other files are refused: the
    file's bytes alone decide what a row's scores are, and these bytes are what its name is made of.

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
        from privcal.data.scoring.outputs import find_scores, without_zipmaps

        self.path = Path(path)
        content = _bytes(self.path)
        self.name = _name(content)
        proto = _parse(content, self.path)
        try:
            found = find_scores(proto, output=output, kind=kind)
            content = _bare(without_zipmaps(proto))
            session = open_session(content)
            self.inputs = tuple(_input(value) for value in session.get_inputs())
        except InputError as error:
            raise InputError(f"model {self.path}: {error}") from None
        self.kind, self.column = found.kind, found.column
        self.features = _features(self.path, proto)
        """The columns that the model takes as one matrix, where its file says so."""
        count = found.classes or self._width(session, found.output)
        self.classes = self._names(count, classes, found.names)
        self.raw_columns = 1 if self.column else count
        self.columns = self.raw_columns if self.kind == "probabilities" else count
        """The columns of its scores: one where that is the probability of class 1 of two."""
        self.dtype = np.dtype(_dtype(session, found.output))
        self._graph = Graph(content, session, found.output, self.raw_columns, self.dtype.str)

    def run(self, row: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """What the model says of one row, given as an array with a first dimension of 1 for each input.

        As many numbers as `raw_columns`; `as_scores` makes scores of them.
        """
        return self._graph.run(row)

    def run_all(
        self, feed: Feed, rows: int, stop: bool = False
    ) -> tuple[npt.NDArray[Any], dict[int, str]]:
        """What it says of each of some rows, NaN where it fails, and why it does; maybe only the first.

        Each runs alone, and a row that ends its process, or takes too much, takes no other with it.
        """
        return self._graph.run_all(feed, rows, stop)

    def as_scores(self, said: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What was said of some rows, as scores: each number by itself.

        Log-odds of class 1 of two become two logits. A probability that rounding has put just
        outside [0, 1] is 0 or 1.
        """
        if self.kind == "probabilities":
            near = ((said > 1) & (said <= 1 + ROUNDING)) | ((said < 0) & (said >= -ROUNDING))
            return np.where(near, np.clip(said, 0, 1), said)
        return np.concatenate([np.zeros_like(said), said], axis=1) if self.column else said

    def _width(self, session: Any, output: str) -> int:
        """The number of classes where the file does not say: what a row of zeros gets."""
        row = {
            i.name: np.full(
                (1, *(n or 1 for n in i.shape)), "" if i.dtype == np.object_ else 0, i.dtype
            )
            for i in self.inputs
        }
        try:
            return int(np.asarray(session.run([output], row)[0]).shape[-1])
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


@dataclass(frozen=True)
class Setup:
    """How a table goes through a model.

    Parameters
    ----------
    label
        The column (in an npz: the array) of the true classes.
    person
        That of person ids, if there is one.
    features
        For a model that takes all its numbers as one matrix: their columns, in order.
    classes
        The names of the classes, where the model has none or the labels have others.
    output, kind
        Which output of the model holds the scores, and whether logits or probabilities, where the
        file leaves it open.
    missing
        Whether blank cells go to the model, as NaN or empty text: for one that knows what to do.
    """

    label: str
    person: str | None = None
    features: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    output: str | None = None
    kind: Kind | None = None
    missing: bool = False

    def open(self, path: str | Path) -> Model:
        """The model in a file, as this setup reads it."""
        return Model(path, output=self.output, kind=self.kind, classes=self.classes)

    def to_dict(self) -> dict[str, Any]:
        """As settings have it; what is not said is left out, and so is the person, who is the ledger's."""
        said = records.facts(self, given=True)
        return {
            _CALLED.get(name, name): value
            for name, value in said.items()
            if name != "person" and value is not False
        }

    @classmethod
    def of(cls, facts: dict[str, Any], where: str) -> Setup:
        """The setup that `to_dict` wrote; `where` is named in errors."""
        known = [_CALLED.get(name, name) for name in cls.__annotations__ if name != "person"]
        for name in facts:
            if name not in known:
                raise InputError(f"{where}: scoring has no {name!r}; it has {', '.join(known)}")
        own = {called: name for name, called in _CALLED.items()}
        said = {own.get(name, name): value for name, value in facts.items()}
        return records.read(cls, said, f"{where}: scoring")


_CALLED = {"kind": "as", "missing": "allow_missing"}
"""What settings call a field, where it has another name there."""


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


def _bare(model: Any) -> bytes:
    """The graph and the functions of a model, as they were checked.

    Left behind is what the file holds besides: settings for a runtime, a graph for training, and
    whatever a newer format has that was not looked at.
    """
    import onnx

    bare = onnx.ModelProto(
        ir_version=model.ir_version,
        opset_import=model.opset_import,
        graph=model.graph,
        functions=model.functions,
    )
    bare.DiscardUnknownFields()
    content: bytes = bare.SerializeToString()
    return content


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


def _features(path: Path, proto: Any) -> Any:
    """The names of the features in a model's metadata: a JSON list."""
    said = {entry.key: entry.value for entry in proto.metadata_props}.get(FEATURES)
    try:
        return None if said is None else _names_in(FEATURES, json.loads(said))
    except ValueError:
        raise InputError(
            f"model {path}: its metadata {FEATURES} must be a JSON list of names"
        ) from None


_names_in = records.reader(FEATURES, tuple[str, ...])


def _dtype(session: Any, output: str) -> npt.DTypeLike:
    """The type of the scores, as the session says it: never wider, so that no bit is added."""
    said = next(value.type for value in session.get_outputs() if value.name == output)
    return np.float64 if said == "tensor(double)" else np.float32


def read_model(path: str | Path) -> onnx.ModelProto:
    """The model in a file, if it is all in that file and scores each row by itself (see `check_model`)."""
    return _parse(_bytes(Path(path)), path)


def _parse(content: bytes, path: str | Path) -> onnx.ModelProto:
    """The same, of what was read from that file."""
    import onnx

    try:
        model = onnx.load_model_from_string(content)
    except Exception:  # protobuf's own, of which there are several
        model = onnx.ModelProto()
    if not model.graph.output:
        raise InputError(
            f"{path} is not an ONNX model, or is cut short; export yours as ONNX, one of scikit-learn "
            "with skl2onnx (docs/scoring.md)"
        )
    try:
        check_model(model)
    except InputError as error:
        raise InputError(f"model {path}: {error}") from None
    return model


def check_model(model: onnx.ModelProto) -> None:
    """Refuse a model that is not all in its file, or has an operator that is not known to be stateless."""
    from onnx import TensorProto

    tensors = (part for part in _parts(model) if isinstance(part, TensorProto))
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in tensors):
        raise InputError(
            "its weights are in other files, which its digest does not cover; save it as one file"
        )
    own = {
        (f.domain, f.name)
        for f in model.functions
        if f.domain and not f.domain.startswith(RUNTIMES)
    }
    for node in all_nodes(model):
        known = node.op_type in KNOWN.get(node.domain, ()) or (node.domain, node.op_type) in own
        if known and not _trains(node):
            continue
        name = f"{node.op_type} of {node.domain}" if node.domain else node.op_type
        what = (
            "is or may be set for training" if known else "is not known to score each row by itself"
        )
        raise InputError(
            f"its operator {name} {what}; export the model for inference (in PyTorch, call model.eval() "
            "first), with operators from the list in docs/scoring.md"
        )


def _trains(node: onnx.NodeProto) -> bool:
    """Whether an operator is set for training, or may be: it changes the model, or draws random numbers."""
    if node.op_type == "BatchNormalization":
        mode = [a for a in node.attribute if a.name == "training_mode"]
        return len(node.output) > 1 or any(a.i or a.ref_attr_name for a in mode)
    return node.op_type == "Dropout" and len(node.input) > 2


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes, wherever they are: inside others, in functions, in what these take by default."""
    import onnx

    return (part for part in _parts(model) if isinstance(part, onnx.NodeProto))


def _parts(whole: Any) -> Iterator[Any]:
    """All messages inside a message, those inside them, and so on."""
    for field, value in whole.ListFields():
        if field.message_type is not None:
            for part in [value] if hasattr(value, "ListFields") else value:
                yield part
                yield from _parts(part)
