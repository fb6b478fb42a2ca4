"""What is not installed: which extra brings it, told in one line."""

from __future__ import annotations

EXTRAS = {  # module: the extra of pyproject.toml that brings it
    "fastapi": "serve",
    "hydra_plugins": "sweep",
    "mlflow": "mlflow",
    "onnx": "train",
    "onnxscript": "train",
    "plotly": "report",
    "prometheus_client": "serve",
    "pymetis": "graphs",
    "ray": "train",
    "tensorboard": "train",
    "threadpoolctl": "serve",
    "torch": "train",
    "torch_geometric": "train",
    "transformers": "train",
    "uvicorn": "serve",
}


def missing_extra(error: BaseException | None) -> str | None:
    """What an error says if a module of an extra is not there: `needs the extra ...`."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            extra = EXTRAS.get(error.name.partition(".")[0])
            if extra is not None:
                return f"needs the extra '{extra}': pip install 'meshwright[{extra}]'"
        error = error.__cause__ or error.__context__
    return None
