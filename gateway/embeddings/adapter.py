"""Put what was learned of tools and requests into the weights of the sentence model.

`adapter.npz` was trained by `tests/bench/train_adapter.py`. By name of a tensor it has the two factors of what is added
to a matrix (low-rank adaptation, https://arxiv.org/abs/2106.09685), or what is added to a vector.
"""

from __future__ import annotations

import importlib
from importlib import resources
from pathlib import Path
from typing import Any, Final

# Matrices of the model are whole numbers of eight bits, with a scale for each column.
_QUANTISED: Final = "_q"
_SCALE: Final = "_scale"
_GREATEST: Final = 127


def adapted_model(file: Path) -> bytes:
    """Return the model of a file with the adapter in it."""
    onnx: Any = importlib.import_module("onnx")
    numpy: Any = importlib.import_module("numpy")
    model = onnx.load(str(file))
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}

    def value(name: str) -> Any:
        return onnx.numpy_helper.to_array(tensors[name])

    def replace(name: str, changed: Any) -> None:
        tensors[name].CopyFrom(onnx.numpy_helper.from_array(changed, name))

    with resources.files("gateway.embeddings").joinpath("adapter.npz").open("rb") as stored:
        learned = numpy.load(stored, allow_pickle=False)
        for name in {entry.partition("/")[0] for entry in learned.files}:
            if name in tensors:
                replace(name, value(name) + learned[name].astype(numpy.float32))
                continue
            left, right = (learned[f"{name}/{side}"].astype(numpy.float32) for side in ("left", "right"))
            matrix = value(name + _QUANTISED) * value(name + _SCALE) + left @ right
            scale = abs(matrix).max(axis=0, keepdims=True) / _GREATEST
            replace(name + _QUANTISED, numpy.round(matrix / scale).astype(numpy.int8))
            replace(name + _SCALE, scale.astype(numpy.float32))
    serialized: bytes = model.SerializeToString()
    return serialized
