"""Training of a pair from a folder of IDX files: ``python -m validate.training --data DIR``.

A run is tokenizer → tokens → target → drafts → judge → figures → weights folder (`Run`, then `export`).
"""

from validate.training.export import export
from validate.training.fitting import TrainingError
from validate.training.idx import DataError, ImageData, load_folder
from validate.training.presets import PRESETS, DecoderPlan, Plan, Preset
from validate.training.stages import Run

__all__ = [
    "PRESETS",
    "DataError",
    "DecoderPlan",
    "ImageData",
    "Plan",
    "Preset",
    "Run",
    "TrainingError",
    "export",
    "load_folder",
]
