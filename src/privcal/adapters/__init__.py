"""Maps where models run: scikit-learn, PyTorch, ONNX."""
