"""Image models: the embedded pair of token transformers, its tokenizer, its judge, and how to load them."""

from validate.models.devices import resolve_device
from validate.models.guidance import guided_logits
from validate.models.judge import Judge, Reference
from validate.models.loading import known_models, load
from validate.models.pair import Pair
from validate.models.tensors import WeightsError
from validate.models.token_sequences import KVCache
from validate.models.transformer import TokenTransformer
from validate.models.vq import VQTokenizer
from validate.models.warping import Warp

__all__ = [
    "Judge",
    "KVCache",
    "Pair",
    "Reference",
    "TokenTransformer",
    "VQTokenizer",
    "Warp",
    "WeightsError",
    "guided_logits",
    "known_models",
    "load",
    "resolve_device",
]
