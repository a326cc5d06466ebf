"""Real image models in torch: loading, speculative decoding, prediction beside measurement, quality."""

from validate.batches import Options
from validate.decoding import Decoded, decode, decode_one_round
from validate.drafters import decode_jacobi
from validate.likelihood import image_log_likelihood
from validate.measurement import Measurement, measure, sample_baseline
from validate.models import Pair, Warp, load, resolve_device
from validate.prediction import Prediction, predict
from validate.scoring import Rescored, Scores, filter_images, score
from validate.speed import SpeedReport, fixed_acceptance, speed_report

__all__ = [
    "Decoded",
    "Measurement",
    "Options",
    "Pair",
    "Prediction",
    "Rescored",
    "Scores",
    "SpeedReport",
    "Warp",
    "decode",
    "decode_jacobi",
    "decode_one_round",
    "filter_images",
    "fixed_acceptance",
    "image_log_likelihood",
    "load",
    "measure",
    "predict",
    "resolve_device",
    "sample_baseline",
    "score",
    "speed_report",
]
