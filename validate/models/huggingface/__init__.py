"""Image models that transformers implements: ImageGPT, Janus, the Chameleon family, Emu3, other causal models.

    from validate.models import huggingface

    target = huggingface.load("path/to/Janus-Pro-7B", device="cuda", dtype="bfloat16")
    draft = huggingface.load("path/to/Janus-Pro-1B", device="cuda", dtype="bfloat16")
    huggingface.check_pair(target, draft)

Needs the extra ``relaxsd[hf]``; nothing else in `validate` imports this package by itself.
"""

try:
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise ImportError("models of transformers need its package: pip install 'relaxsd[hf]'") from error

from validate.models.huggingface.cache import RowCache
from validate.models.huggingface.causal import CausalImageModel
from validate.models.huggingface.chameleon import ChameleonImageModel
from validate.models.huggingface.common import TransformerImageModel
from validate.models.huggingface.emu3 import Emu3ImageModel
from validate.models.huggingface.imagegpt import ImageGPTModel
from validate.models.huggingface.janus import JanusImageModel
from validate.models.huggingface.loading import load
from validate.models.huggingface.pairs import check_pair
from validate.models.huggingface.prompts import Prompts
from validate.models.huggingface.sequences import RowSequences
from validate.models.huggingface.trees import TreeRowSequences

__all__ = [
    "CausalImageModel",
    "ChameleonImageModel",
    "Emu3ImageModel",
    "ImageGPTModel",
    "JanusImageModel",
    "Prompts",
    "RowCache",
    "RowSequences",
    "TransformerImageModel",
    "TreeRowSequences",
    "check_pair",
    "load",
]
