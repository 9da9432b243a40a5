"""A checkpoint gives the model back, and nothing is lost when it can't."""

import json

import pytest
import torch
from safetensors.torch import save_file

from transformer18.build import make_transformer
from transformer18.checkpoint import (
    load_weights,
    read_checkpoint,
    save_checkpoint,
)
from transformer18.config import TransformerConfig
from transformer18.vocabulary import write_atomically


def model(seed=0, **changes):
    torch.manual_seed(seed)
    sizes = dict(d_model=12, n_heads=3, n_layers=2, d_ff=20)
    return make_transformer(TransformerConfig(23, **(sizes | changes))).eval()


@pytest.mark.parametrize(
    "changes",
    [{}, {"tgt_vocab_size": 19}, {"tie_embeddings": False},
     {"norm_first": True}],
)
def test_round_trip(tmp_path, changes):
    path = tmp_path / "new" / "m.safetensors"
    one, other = model(0, **changes), model(1, **changes)
    save_checkpoint(one, path, seed=7, metric=0.5)
    assert load_weights(other, path) == {"seed": 7, "metric": 0.5}
    src, tgt = torch.randint(0, 19, (2, 2, 5))
    assert torch.equal(one(src, tgt), other(src, tgt))
    other.tgt_embedding.weight.data.add_(1)
    tied = other.output is None
    assert (other.output_weight is other.tgt_embedding.weight) == tied


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    save_checkpoint(model(), path)
    before = path.read_bytes()

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        save_checkpoint(model(1), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_atomic_write_makes_folders_and_replaces(tmp_path):
    path = tmp_path / "a" / "b"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"


@pytest.mark.parametrize("length", [0, 5, 100, -100, -1])
def test_truncated(tmp_path, length):
    path = tmp_path / "m.safetensors"
    save_checkpoint(model(), path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match="m.safetensors is cut off or no"):
        read_checkpoint(path)


def test_missing_foreign_and_other_configuration(tmp_path):
    path = tmp_path / "m.safetensors"
    with pytest.raises(FileNotFoundError, match="no checkpoint .*m.safe"):
        load_weights(model(), path)
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="not written by this package"):
        load_weights(model(), path)
    save_checkpoint(model(), path)
    with pytest.raises(
        ValueError, match=r"another configuration .*d_model 12 against 24"
    ):
        load_weights(model(d_model=24), path)


@pytest.mark.parametrize("config", ["[1]", "3", "null", "{"])
def test_metadata_that_is_no_configuration(tmp_path, config):
    path = tmp_path / "m.safetensors"
    save_file({"x": torch.zeros(2)}, path, {"config": config, "notes": "{}"})
    with pytest.raises(ValueError, match="not written by this package"):
        read_checkpoint(path)


def test_tensors_of_another_shape(tmp_path):
    path, net = tmp_path / "m.safetensors", model()
    save_checkpoint(net, path)
    weights, config, notes = read_checkpoint(path)
    name = next(iter(weights))
    weights[name] = torch.zeros(3, 3)
    metadata = {"config": json.dumps(config), "notes": json.dumps(notes)}
    save_file(weights, path, metadata)
    with pytest.raises(ValueError, match=f"in 1 tensors, {name}"):
        load_weights(net, path)
