"""Running a model of ONNX, quietly and on one thread."""

from __future__ import annotations

from typing import Any


def run_model(model: Any, outputs: list[str] | None, inputs: dict[str, Any]) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    content = model if isinstance(model, bytes) else model.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return list(session.run(outputs, inputs))
