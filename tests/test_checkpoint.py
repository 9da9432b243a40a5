"""A checkpoint gives the model back, and nothing is lost when it can't."""

import json

import pytest
import torch
from safetensors.torch import save_file

from transformer18.build import make_transformer
from transformer18.checkpoint import (
    Checkpoints,
    average_checkpoints,
    fingerprint,
    load_newest,
    load_weights,
    read_checkpoint,
    read_tensors,
    save_checkpoint,
    write_tensors,
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
    with pytest.raises(OSError, match=r"no space.*write elsewhere.*m\.safetensors"):
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
    digest = json.dumps(fingerprint({"x": torch.zeros(2)}))
    facts = {"config": config, "notes": "{}", "sha256": digest}
    save_file({"x": torch.zeros(2)}, path, facts)
    with pytest.raises(ValueError, match="not written by this package"):
        read_checkpoint(path)


def test_tensors_of_another_shape(tmp_path):
    path, net = tmp_path / "m.safetensors", model()
    save_checkpoint(net, path)
    weights, config, notes = read_checkpoint(path)
    name = next(iter(weights))
    weights[name] = torch.zeros(3, 3)
    write_tensors(path, weights, config=config, notes=notes)
    with pytest.raises(ValueError, match=f"in 1 tensors, {name}"):
        load_weights(net, path)


def test_a_changed_byte_is_found(tmp_path):
    """A file of the right length whose numbers are no longer the same."""
    path = tmp_path / "m.safetensors"
    save_checkpoint(model(), path)
    data = bytearray(path.read_bytes())
    data[-7] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="m.safetensors has changed since"):
        read_checkpoint(path)


def test_facts_and_tensors_of_every_kind(tmp_path):
    tensors = {
        "a": torch.arange(6).reshape(2, 3), "b": torch.tensor(2.5).bfloat16(),
        "c": torch.randn(4, 4).T, "d": torch.zeros(0, 3), "e": torch.tensor(True),
    }  # fmt: skip
    write_tensors(tmp_path / "x", tensors, facts={"best": float("-inf"), "n": 3})
    found, facts = read_tensors(tmp_path / "x")
    assert facts["facts"] == {"best": float("-inf"), "n": 3}
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype


def test_weights_in_16_bits_load_into_a_model(tmp_path):
    path, net = tmp_path / "m.safetensors", model()
    save_checkpoint(model().half(), path)
    assert path.stat().st_size < 0.6 * sum(4 * p.numel() for p in net.parameters()) + 9000
    load_weights(net, path)
    assert all(p.dtype == torch.float32 for p in net.parameters())


def save_steps(kept, *steps):
    net = model()
    for step in steps:
        with torch.no_grad():
            net.output_weight.fill_(step)
        kept.save(net, step, {"x": torch.tensor(step)}, {"step": step})
    return net


def test_the_last_few_are_kept(tmp_path):
    kept = Checkpoints(tmp_path / "c", every=10, keep=3)
    save_steps(kept, 10, 20, 30, 37)
    assert kept.steps() == [30, 37] and kept.steps("weights") == [20, 30, 37]
    save_steps(kept, 40)  # 37, where the run was stopped, is not wanted any more
    assert kept.steps() == [30, 40] and kept.steps("weights") == [20, 30, 40]
    save_steps(kept, 43)  # the end
    assert kept.steps("weights") == [30, 40, 43]


def test_what_a_killed_process_began_is_cleared_away(tmp_path):
    kept = Checkpoints(tmp_path, every=10)
    save_steps(kept, 10)
    (tmp_path / "00000020.weights.safetensorsab12cd_3").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "00000010.weights.safetensors.bak").write_text("mine")
    save_steps(kept, 20)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        *(f"000000{s}.{k}.safetensors" for s in (10, 20) for k in ("weights", "state")),
        "notes.txt", "00000010.weights.safetensors.bak",
    }  # fmt: skip


def test_newest(tmp_path):
    kept, net = Checkpoints(tmp_path, every=10, keep=3), model(5)
    assert load_newest(kept, net) is None
    save_steps(kept, 10, 20)
    tensors, facts = load_newest(kept, net)
    assert facts == {"step": 20} and tensors["x"] == 20 and net.output_weight[0, 0] == 20
    kept.weights(20).unlink()
    with pytest.raises(ValueError, match="00000020.weights.* --skip-broken"):
        load_newest(kept, net)
    kept.skip_broken = True
    assert load_newest(kept, net)[1] == {"step": 10} and net.output_weight[0, 0] == 10


def test_checkpoints_of_another_run(tmp_path):
    """They may fit in every shape: what they are of is written in them."""
    net = model(5)
    for run in ("a", "b"):
        kept = Checkpoints(tmp_path / run, every=10, keep=3, run=f"seed {run}")
        save_steps(kept, 10, 20)
    for kind in (kept.state, kept.weights):
        own = kind(20).read_bytes()
        kind(20).write_bytes((tmp_path / "a" / kind(20).name).read_bytes())
        with pytest.raises(ValueError, match=f"{kind(20).name} is of another run .seed a.*seed b"):
            load_newest(kept, net)
        kind(20).write_bytes(own)
    assert load_newest(kept, net)[1] == {"step": 20}


def test_average(tmp_path):
    kept = Checkpoints(tmp_path, every=10, keep=3)
    save_steps(kept, 10, 20, 60)
    mean = average_checkpoints(kept.weights(step) for step in (10, 20, 60))
    assert (mean["src_embedding.weight"] == 30).all()
    one = average_checkpoints([kept.weights(60)])
    assert torch.equal(one["src_embedding.weight"], torch.full((23, 12), 60.0))
    with pytest.raises(ValueError, match="no checkpoints to average"):
        average_checkpoints([])
    save_checkpoint(model(n_heads=4), tmp_path / "other")  # the same shapes
    with pytest.raises(ValueError, match="other is of another model"):
        average_checkpoints([kept.weights(60), tmp_path / "other"])
