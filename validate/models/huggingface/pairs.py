"""Whether two models may be target and draft: the same tokens with the same meaning, read off the tensors.

Definitions.  A pair shares its image tokens when V, the grid and every table of the pixel decoders are equal, tensor by
tensor; it shares its conditions when the prompts of one are the prompts of the other. Each published file carries its
own copy of the tokenizer, so equality is looked at rather than assumed.
"""

from __future__ import annotations

from validate.models.huggingface.common import TransformerImageModel
from validate.models.pair import check_tokenizers

__all__ = ["check_pair"]


def check_pair(target: TransformerImageModel, draft: TransformerImageModel) -> None:
    """Accept a pair or say why not.

    Raises
    ------
    ValueError
        Another family, vocabulary, grid, prompt vocabulary, syntax or text tokenizer; a table of the pixel decoder that
        differs (names its number and, where shapes agree, index and values); a model without a pixel decoder.
    """
    if type(target) is not type(draft):
        raise ValueError(
            f"the target is a {type(target).__name__} but the draft a {type(draft).__name__}; families differ"
        )
    for name in ("vocab_size", "grid", "prompt_vocab", "opening", "null", "end_of_row"):
        ours, theirs = getattr(target, name), getattr(draft, name)
        if ours != theirs:
            raise ValueError(f"the target has {name} {ours} but the draft {theirs}; a pair must share it")
    for role, model in (("target", target), ("draft", draft)):
        if model.decoder is None:
            raise ValueError(f"the {role} has no pixel decoder, so its tokenizer cannot be compared")
    assert target.decoder is not None
    assert draft.decoder is not None
    check_tokenizers(target.decoder, draft.decoder, "the draft")
    if target.tokenizer is not None and draft.tokenizer is not None:
        ours, theirs = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
        if ours != theirs:
            word = min(set(ours.items()) ^ set(theirs.items()))[0]
            raise ValueError(f"the text tokenizers differ, for instance in {word!r}; a pair must read the same prompts")
