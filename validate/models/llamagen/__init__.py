"""LlamaGen, class- and text-conditional, from its public files."""

from validate.models.llamagen.captions import Captions, encode_captions, read_captions
from validate.models.llamagen.configuration import Configuration
from validate.models.llamagen.loading import load_pair, load_tokenizer, load_transformer
from validate.models.llamagen.transformer import LlamaGen
from validate.models.llamagen.vq import LlamaGenTokenizer, eight_bit

__all__ = [
    "Captions",
    "Configuration",
    "LlamaGen",
    "LlamaGenTokenizer",
    "eight_bit",
    "encode_captions",
    "load_pair",
    "load_tokenizer",
    "load_transformer",
    "read_captions",
]
