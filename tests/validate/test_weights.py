"""Every way a weights folder can be wrong is an error that names it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as parse
from safetensors.torch import save
from torch import Tensor

import validate.models
from validate.models import Pair, WeightsError, known_models, load

SHIPPED = Path(validate.models.__file__).resolve().parent.parent / "weights" / "fashion"


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load("fashion")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "fashion"))


def rewrite(folder: Path, name: str, change: Callable[[dict[str, Tensor]], object], *, shapes: bool = True) -> None:
    """Change a file's tensors and record its new size, hash and (with ``shapes``) tensors in the manifest."""
    tensors = parse((folder / name).read_bytes())
    change(tensors)
    content = save(tensors)
    (folder / name).write_bytes(content)

    def record(manifest: dict) -> None:
        entry = manifest["files"][name]
        entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        if shapes:
            entry["tensors"] = {
                key: {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
                for key, value in tensors.items()
            }

    edit_manifest(folder, record)


def edit_manifest(folder: Path, change: Callable[[dict], object]) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_unknown_names() -> None:
    assert "fashion" in known_models()
    with pytest.raises(WeightsError, match=r"unknown model 'fashon'; known models are .*fashion"):
        load("fashon")
    with pytest.raises(WeightsError, match="unknown draft 'tiny'; known drafts are 64x1, 32x1, 24x1"):
        load("fashion", draft="tiny")


def test_untampered_copy_loads(folder: Path, pair: Pair) -> None:
    copied = load("fashion", weights=folder)
    ids = torch.tensor([[256, 1, 2]])
    assert torch.equal(copied.target(ids), pair.target(ids))
    with pytest.raises(WeightsError, match="describes 'fashion', but 'mnist' was asked for"):
        load("mnist", weights=folder)


def test_missing_folder_manifest_and_file(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere.manifest\.json is missing"):
        load("fashion", weights=tmp_path / "nowhere")
    (folder / "draft-32x1.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"draft-32x1\.safetensors is missing although manifest\.json lists it"):
        load("fashion", weights=folder)


def test_damaged_manifest(folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest.pop("guidance"))
    with pytest.raises(WeightsError, match="has no entry 'guidance'"):
        load("fashion", weights=folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(WeightsError, match="is not JSON"):
        load("fashion", weights=folder)
    (folder / "manifest.json").write_text("[]")
    with pytest.raises(WeightsError, match="holds a list"):
        load("fashion", weights=folder)


def test_manifest_entries_of_files(folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest["files"]["judge.safetensors"].pop("sha256"))
    with pytest.raises(WeightsError, match=r"file 'judge\.safetensors' has no entry 'sha256'"):
        load("fashion", weights=folder)
    edit_manifest(folder, lambda manifest: manifest["files"].pop("target.safetensors"))
    with pytest.raises(WeightsError, match=r"lists no file 'target\.safetensors'; it lists tokenizer"):
        load("fashion", weights=folder)
    edit_manifest(folder, lambda manifest: manifest["files"].update({"target.safetensors": 3}))
    with pytest.raises(WeightsError, match=r"entry of 'target\.safetensors' is a int"):
        load("fashion", weights=folder)


@pytest.mark.parametrize("entry", ["name", "guidance", "draft", "drafts", "files", "figures"])
@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [3], {"x": 3}, float("nan")], ids=str)
def test_manifest_entries_of_another_kind(folder: Path, entry: str, value: object) -> None:
    edit_manifest(folder, lambda manifest: manifest.update({entry: value}))
    if (entry, value) == ("guidance", 3):
        assert load("fashion", weights=folder).guidance == 3
        return
    with pytest.raises(WeightsError):
        load("fashion", weights=folder)


@pytest.mark.parametrize("key", ["config", "config_sha256", "tensors"])
@pytest.mark.parametrize("value", [None, 3, "x", [], {"x": 3}], ids=str)
def test_file_entries_of_another_kind(folder: Path, key: str, value: object) -> None:
    edit_manifest(folder, lambda manifest: manifest["files"]["target.safetensors"].update({key: value}))
    with pytest.raises(WeightsError):
        load("fashion", weights=folder)


@pytest.mark.parametrize("figure", ["test_images", "judge_accuracy"])
@pytest.mark.parametrize("value", [None, "many", []], ids=str)
def test_figures_of_another_kind(folder: Path, figure: str, value: object) -> None:
    edit_manifest(folder, lambda manifest: manifest["figures"].update({figure: value}))
    with pytest.raises(WeightsError, match="malformed"):
        load("fashion", weights=folder)


@pytest.mark.parametrize("verify", [True, False])
def test_config_that_fits_but_was_changed(folder: Path, verify: bool) -> None:
    """The number of heads shows in no shape, and another one is another network."""
    edit_manifest(folder, lambda manifest: manifest["files"]["target.safetensors"]["config"].update(heads=1))
    with pytest.raises(WeightsError, match=r"config .*'heads': 1.* was changed"):
        load("fashion", weights=folder, verify=verify)


def test_file_names_cannot_leave_the_folder(folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest.update(drafts=["/../../x"], draft="/../../x"))
    with pytest.raises(WeightsError, match="not a plain file name"):
        load("fashion", weights=folder)


def test_truncated_file(folder: Path) -> None:
    path = folder / "target.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(WeightsError, match=r"target\.safetensors is truncated: \d+ bytes, manifest\.json records \d+"):
        load("fashion", weights=folder)
    with pytest.raises(WeightsError, match=r"target\.safetensors is not a readable safetensors file"):
        load("fashion", weights=folder, verify=False)
    path.write_bytes(b"")
    with pytest.raises(WeightsError, match=r"target\.safetensors is not a readable safetensors file"):
        load("fashion", weights=folder, verify=False)


def test_flipped_bit(folder: Path) -> None:
    path = folder / "tokenizer.safetensors"
    content = bytearray(path.read_bytes())
    recorded = hashlib.sha256(content).hexdigest()
    content[-1] ^= 1
    path.write_bytes(content)
    found = hashlib.sha256(content).hexdigest()
    with pytest.raises(WeightsError, match=rf"tokenizer\.safetensors has SHA-256 {found}, .* records {recorded}"):
        load("fashion", weights=folder)
    # The documented opt-out: without verification the flipped bit goes through.
    load("fashion", weights=folder, verify=False)


@pytest.mark.parametrize("shapes", [False, True], ids=["manifest says otherwise", "network says otherwise"])
def test_missing_extra_and_misshapen_tensors(folder: Path, shapes: bool) -> None:
    name = "draft-24x1.safetensors"

    def expect(change: Callable[[dict[str, Tensor]], object], message: str) -> None:
        shutil.copy(SHIPPED / name, folder / name)
        rewrite(folder, name, change, shapes=shapes)
        with pytest.raises(WeightsError, match=message):
            load("fashion", weights=folder)
        shutil.copy(SHIPPED / "manifest.json", folder / "manifest.json")

    expect(lambda t: t.pop("head.bias"), r"lacks tensor 'head\.bias' of shape \(256,\)")
    expect(lambda t: t.update(more=torch.zeros(2)), r"extra tensor 'more' of shape \(2,\)")
    expect(
        lambda t: t.update({"head.bias": torch.zeros(255).half()}),
        r"'head\.bias' has shape \(255,\), expected \(256,\)",
    )


def test_other_dtype_than_recorded(folder: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["head.bias"] = tensors["head.bias"].to(torch.int16)

    rewrite(folder, "draft-24x1.safetensors", change, shapes=False)
    with pytest.raises(WeightsError, match=r"'head\.bias' has dtype int16, manifest\.json records float16"):
        load("fashion", weights=folder)
    rewrite(folder, "draft-24x1.safetensors", lambda tensors: None)
    with pytest.raises(WeightsError, match=r"'head\.bias' has dtype int16, a network's values are floating point"):
        load("fashion", weights=folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite(folder: Path, value: float) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors["blocks.2.qkv.weight"][3, 5] = value

    rewrite(folder, "target.safetensors", change)
    with pytest.raises(WeightsError, match=rf"'blocks\.2\.qkv\.weight' holds {value} at index \(3, 5\)"):
        load("fashion", weights=folder, verify=False)


def test_config_that_does_not_fit(folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest["files"]["target.safetensors"]["config"].update(depth=3))
    with pytest.raises(WeightsError, match=r"config .* of target\.safetensors does not fit TokenTransformer: .*depth"):
        load("fashion", weights=folder)


def test_reference_lacks_a_tensor(folder: Path) -> None:
    rewrite(folder, "reference.safetensors", lambda tensors: tensors.pop("labels"))
    with pytest.raises(WeightsError, match=r"reference\.safetensors lacks tensor 'labels'"):
        load("fashion", weights=folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["labels"].__setitem__(5, 10), r"labels hold 10 at index \(5,\), outside 0…9"),
        (lambda t: t.update(labels=-t["labels"].to(torch.int64) - 1), r"labels hold -\d+ at index \(0,\)"),
        (lambda t: t.update(labels=t["labels"][:-1].clone()), r"'tokens' has shape \(1000, 49\), expected \(999, 49\)"),
        (lambda t: t.update(labels=t["labels"][:, None].clone()), r"'labels' has shape"),
        (lambda t: t.update(tokens=t["tokens"].to(torch.int32) + 250), r"tokens hold \d+ at index"),
        (lambda t: t.update(feature_mean=t["feature_mean"][:-1].clone()), "'feature_mean' has shape"),
    ],
)
def test_reference_that_does_not_fit(folder: Path, change: Callable[[dict[str, Tensor]], object], message: str) -> None:
    rewrite(folder, "reference.safetensors", change)
    with pytest.raises(WeightsError, match=message):
        load("fashion", weights=folder)
