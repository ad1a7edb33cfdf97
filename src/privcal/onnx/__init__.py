"""Maps as ONNX: a calibration that runs wherever a model does. Needs the extra `onnx`."""
