"""Prompts: openings, null prompts, ranges, texts; guidance asked of models that have none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from validate.models.huggingface import CausalImageModel, ChameleonImageModel, Emu3ImageModel, JanusImageModel, Prompts

from .tiny import SYNTAX, case, chameleon, emu3, janus, llama


def test_null_prompts_of_every_family() -> None:
    """Janus keeps the length, Anole reads 0 and begin-of-image, Lumina drops the prompt, Emu3 reads another one."""
    rows = {name: case(name).model.encode_conditions([[0, 9, 8, 4]]) for name in ("anole", "lumina")}
    assert rows["anole"].ids.tolist() == [[0, 9, 8, 4, 5]]
    assert rows["anole"].nulls.tolist() == [[-1, -1, -1, 0, 5]]
    assert rows["lumina"].ids.tolist() == [[0, 9, 8, 4, 5, 22, 21]]
    assert rows["lumina"].nulls.tolist() == [[-1, -1, -1, -1, 5, 22, 21]]
    rows["janus"] = case("janus").model.encode_conditions([[1, 9, 8, 3], [1, 7]])
    assert rows["janus"].ids.tolist() == [[1, 9, 8, 3], [-1, 1, 7, 3]]
    assert rows["janus"].nulls.tolist() == [[1, 2, 2, 3], [-1, 1, 2, 3]]
    # begin-of-image, "3*2", wrapper
    opening = [4, 11, 7, 10, 5]
    emu = Emu3ImageModel(emu3(), (3, 2)).encode_conditions([torch.tensor([1, 20])])
    assert emu.ids.tolist() == [[1, 20, *opening]]
    assert emu.nulls is not None
    assert emu.nulls.tolist() == [[-1, 1, *opening]]


def test_prompts_have_a_length_and_can_be_indexed() -> None:
    prompts = case("anole").model.encode_conditions([[0, 4], [0, 9, 4], [0]])
    assert len(prompts) == 3
    chosen = prompts[torch.tensor([2, 1])]
    assert chosen.ids.tolist() == [[-1, -1, 0, 5], [0, 9, 4, 5]]
    assert case("anole").model.start(chosen).rows == 2
    images = case("imagegpt").model.encode_conditions(3)
    assert len(images) == 3
    assert case("imagegpt").model.start(images[torch.tensor([0])]).rows == 1


@pytest.mark.parametrize(
    ("name", "conditions", "message"),
    [
        ("anole", [[0, 4], [0, 24]], r"prompts\[1\]\[1\] = 24 is outside the text vocabulary 0…23"),
        ("janus", [[-1]], r"prompts\[0\]\[0\] = -1 is outside"),
        ("emu3", [[1.5]], r"prompts\[0\]\[0\] is 1.5; token ids are whole numbers"),
        ("emu3", [torch.tensor([[1]])], r"prompts\[0\] must be token ids in one dimension"),
        ("anole", [0, 4], r"conditions must be a list of prompts; conditions\[0\] is the number 0"),
        ("anole", 3, "conditions must be a list with one prompt"),
        ("anole", "a cat", "conditions must be a list with one prompt"),
        ("anole", ["a cat"], "text prompts need the checkpoint's tokenizer files"),
        ("anole", ["a cat", [1]], "all text or all token ids"),
        ("imagegpt", [[1]], "takes the number of images"),
        ("imagegpt", True, "takes the number of images"),
        ("anole", [[0] * 60], "take 69 positions; the model has 64"),
    ],
)
def test_bad_conditions_are_named(name: str, conditions: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        case(name).model.start(conditions)


def test_guidance_needs_a_condition_and_a_null_prompt() -> None:
    with pytest.raises(ValueError, match="unconditional"):
        case("imagegpt").model.start(2, guidance=2.0)
    bare = CausalImageModel(llama(), (3, 4), (1, 2), opening=[1])
    assert bare.start([[5]]).rows == 1
    with pytest.raises(ValueError, match="needs a null prompt"):
        bare.start([[5]], guidance=2.0)
    with pytest.raises(ValueError, match="must be finite"):
        case("anole").model.start([[0]], guidance=float("nan"))


def test_texts_are_written_as_each_family_does() -> None:
    class Words:
        chat_template = "template"

        def __call__(self, text: str, add_special_tokens: bool) -> SimpleNamespace:
            assert not add_special_tokens
            return SimpleNamespace(input_ids=[8 + len(word) for word in text.split()])

        def apply_chat_template(self, messages, tokenize: bool, add_generation_prompt: bool) -> str:
            assert add_generation_prompt
            assert not tokenize
            return f"user {messages[0]['content'][0]['text']} assistant"

    model = ChameleonImageModel(chameleon(), ids=SYNTAX, tokenizer=Words())
    assert model.encode_conditions(["a cat"]).ids.tolist() == [[0, 9, 11, 4, 5]]
    model = Emu3ImageModel(emu3(), (3, 2), tokenizer=Words())
    assert model.encode_conditions(["a cat"]).ids.tolist() == [[1, 9, 11, 4, 11, 7, 10, 5]]
    model = JanusImageModel(janus(), tokenizer=Words())
    assert model.encode_conditions(["a cat"]).ids.tolist() == [[1, 12, 9, 11, 17, 3]]
    plain = Words()
    plain.chat_template = ""
    with pytest.raises(ValueError, match="no chat template"):
        JanusImageModel(janus(), tokenizer=plain).encode_conditions(["a cat"])


def test_models_refuse_what_they_cannot_run() -> None:
    with pytest.raises(ValueError, match=r"image_ids\[1\] = 24 is outside"):
        CausalImageModel(llama(), (3, 24), (1, 2))
    with pytest.raises(ValueError, match="image_ids holds 3 twice"):
        CausalImageModel(llama(), (3, 4, 3), (1, 2))
    with pytest.raises(ValueError, match="end_of_row 4 is also an image id"):
        CausalImageModel(llama(), (3, 4), (1, 2), end_of_row=4)
    with pytest.raises(ValueError, match="grid must be"):
        CausalImageModel(llama(), (3, 4), (0, 2))
    with pytest.raises(ValueError, match="takes no mask of its own"):
        CausalImageModel(llama(attention="flex_attention"), (3, 4), (1, 2))
    # Chameleon's own forward masks image ids; the generic model must not take it for an ordinary language model.
    with pytest.raises(ValueError, match="changes its head's logits"):
        CausalImageModel(chameleon(), (11, 12), (1, 2))
    with pytest.raises(ValueError, match="layout 'lumina' needs the grid"):
        ChameleonImageModel(chameleon(), layout="lumina", ids=SYNTAX)
    with pytest.raises(ValueError, match=r"grid \(3, 2\) is odd"):
        ChameleonImageModel(chameleon(), layout="lumina", grid=(3, 2), ids=SYNTAX)
    with pytest.raises(ValueError, match="begin-of-image at 5 but ids say 8197"):
        ChameleonImageModel(chameleon())


def test_prompts_check_themselves() -> None:
    with pytest.raises(ValueError, match="must be int64"):
        Prompts(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="align them"):
        Prompts(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.int64))
