"""Samplers of other frameworks under the kit.

===================  ==================================================================  =============
adapter              for                                                                 extra
===================  ==================================================================  =============
transformers_sampler the function in Hugging Face transformers, as it ships              relaxsd[hf]
torch_sampler        a function of torch tensors and a torch.Generator                   relaxsd[validate]
JsonLinesSampler     a program in any language that reads and writes lines of JSON       none
===================  ==================================================================  =============

Importing this package imports no framework.
"""

from simulate.testing.adapters.huggingface import transformers_sampler
from simulate.testing.adapters.json_lines import JsonLinesSampler
from simulate.testing.adapters.pytorch import torch_sampler

__all__ = ["JsonLinesSampler", "torch_sampler", "transformers_sampler"]
