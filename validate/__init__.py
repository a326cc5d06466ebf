"""Real image models in torch: loading, speculative decoding, prediction beside measurement, quality."""

from validate.decoding import Decoded, decode, decode_one_round
from validate.measurement import Measurement, measure, sample_baseline
from validate.models import Pair, Warp, load, resolve_device
from validate.prediction import Prediction, predict
from validate.scoring import Scores, filter_images, score

__all__ = [
    "Decoded",
    "Measurement",
    "Pair",
    "Prediction",
    "Scores",
    "Warp",
    "decode",
    "decode_one_round",
    "filter_images",
    "load",
    "measure",
    "predict",
    "resolve_device",
    "sample_baseline",
    "score",
]
