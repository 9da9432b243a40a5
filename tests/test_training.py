"""What the training loop refuses, and that it can be repeated."""

import dataclasses
import shutil
import sys
import types

import pytest
import torch

from transformer18.batching import make_batch, pooled_batches, token_batches
from transformer18.build import make_transformer
from transformer18.checkpoint import Checkpoints
from transformer18.config import TransformerConfig
from transformer18.runs import Task, read_metrics, to_tensorboard
from transformer18.schedule import learning_rate
from transformer18.training import Recipe, Updater, fit
from transformer18.vocabulary import Vocabulary

PAIRS = [([4 + i % 5, 5], [4 + i % 5, 6, 7]) for i in range(40)]


def trained(dropout=0.1, **changes):
    torch.manual_seed(0)
    model = make_transformer(
        TransformerConfig(
            9, d_model=12, n_heads=3, n_layers=1, d_ff=20, dropout=dropout
        )
    )
    recipe = Recipe(**(dict(steps=12, warmup=5, eval_every=4) | changes))
    history = fit(
        model,
        lambda epoch: token_batches(
            PAIRS, max_tokens=40, seed=0, epoch=epoch
        ),
        recipe,
        evaluate=changes.pop("evaluate", None),
        progress=False,
    )
    return model, history


def test_a_run_can_be_repeated():
    (one, history), (two, again) = trained(), trained()
    for a, b in zip(one.parameters(), two.parameters()):
        assert torch.equal(a, b)
    assert [r["nll"] for r in history] == [r["nll"] for r in again]
    assert [r["step"] for r in history] == [4, 8, 12]
    assert history[-1]["nll"] < history[0]["nll"]
    assert history[-1]["tokens"] > history[0]["tokens"]


def test_the_learning_rate_is_the_papers():
    _, history = trained()
    assert history[0]["learning_rate"] == learning_rate(
        4, d_model=12, warmup=5
    )


@pytest.mark.parametrize(
    "field, value",
    [("steps", 0), ("steps", "10"), ("warmup", -1), ("eval_every", 0),
     ("eval_every", 2.5), ("factor", -1.0), ("factor", float("nan")),
     ("clip", 0.0), ("accumulate", 0), ("average", 0), ("patience", 0),
     ("precision", "int8"), ("smoothing", 1.0), ("smoothing", -0.1),
     ("betas", (0.9, 1.5)), ("eps", 0.0), ("stop_at", float("nan"))],
)
def test_recipes_that_cannot_be(field, value):
    with pytest.raises(ValueError, match=field):
        Recipe(**{field: value})
    assert dataclasses.replace(Recipe(), clip=None).clip is None


def test_tasks_that_cannot_be():
    words = Vocabulary(["a"])
    with pytest.raises(ValueError, match="no dev pairs"):
        Task([("a", "a")], [], words)
    with pytest.raises(ValueError, match="no metric 'bogus'"):
        Task([("a", "a")], [("a", "a")], words, metric="bogus")


def test_an_epoch_without_batches_and_a_loss_that_is_no_number():
    model = make_transformer(
        TransformerConfig(9, d_model=12, n_heads=3, n_layers=1, d_ff=20)
    )
    with pytest.raises(ValueError, match="epoch 0 has no batches"):
        fit(model, lambda epoch: [], Recipe(steps=3), progress=False)
    with torch.no_grad():
        model.output_weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="nan at step 1"):
        fit(
            model, lambda epoch: token_batches(PAIRS, max_tokens=40, seed=0),
            Recipe(steps=3), progress=False,
        )


def made_from(batches, precision="float32", dtype=torch.float64, **recipe):
    """The gradient that an update from these batches is made from."""
    torch.manual_seed(0)
    model = make_transformer(
        TransformerConfig(9, d_model=12, n_heads=3, n_layers=1, d_ff=20, dropout=0.0)
    ).to(dtype)
    updater = Updater(model, Recipe(precision=precision, **recipe))
    updater.apply = lambda: updater.scaler.unscale_(updater.optimizer)
    nll = updater(1, batches)
    return torch.cat([p.grad.flatten() for p in model.parameters()]), nll


def test_accumulated_gradients_are_those_of_one_batch():
    parts = [PAIRS[:3], PAIRS[3:20], PAIRS[20:]]
    many, nll = made_from([make_batch(part) for part in parts])
    one, whole = made_from([make_batch(PAIRS)])
    assert (many - one).abs().max() < 1e-10 < one.abs().max()
    assert nll.item() == pytest.approx(whole.item(), rel=1e-12)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_gradients_in_16_bits(precision):
    half, _ = made_from([make_batch(PAIRS)], precision, torch.float32)
    full, _ = made_from([make_batch(PAIRS)], dtype=torch.float32)
    assert half.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(half, full, dim=0) > 0.99
    assert not torch.equal(half, full)  # else nothing was done in 16 bits


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_training_in_16_bits(precision):
    _, history = trained(precision=precision, steps=40, eval_every=20)
    _, exact = trained(steps=40, eval_every=20)
    assert history[-1]["nll"] < 0.8 * history[0]["nll"]
    assert history[-1]["nll"] == pytest.approx(exact[-1]["nll"], abs=0.1)


def test_an_update_that_overflowed_is_left_out():
    """float16: the first scale is too large for this loss."""
    torch.manual_seed(0)
    model = make_transformer(
        TransformerConfig(9, d_model=12, n_heads=3, n_layers=1, d_ff=20)
    )
    updater = Updater(model, Recipe(precision="float16"))
    updater.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    before = [p.detach().clone() for p in model.parameters()]
    updater(1, [make_batch(PAIRS)])
    assert updater.scaler.get_scale() == 2.0**119
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_early_stopping():
    metrics = iter([0.1, 0.5, 0.4, 0.5, 0.3, 0.9])
    torch.manual_seed(0)
    model = make_transformer(
        TransformerConfig(9, d_model=12, n_heads=3, n_layers=1, d_ff=20)
    )
    history = fit(
        model, lambda epoch: token_batches(PAIRS, max_tokens=40, seed=0),
        Recipe(steps=100, eval_every=2, patience=3),
        evaluate=lambda model: next(metrics), progress=False,
    )
    assert [r["metric"] for r in history] == [0.1, 0.5, 0.4, 0.5, 0.3]
    assert [r["best"] for r in history] == [True, True, False, True, False]


def test_a_step_clips_and_follows_the_schedule():
    moved = []
    for clip in (None, 1e-3):
        torch.manual_seed(0)
        model = make_transformer(
            TransformerConfig(9, d_model=12, n_heads=3, n_layers=1, d_ff=20, dropout=0.0)
        )
        updater = Updater(model, Recipe(clip=clip, warmup=10))
        updater.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        before = model.output_weight.detach().clone()
        updater(3, [make_batch(PAIRS)])
        moved.append((model.output_weight.detach() - before).norm())
        assert updater.rate == learning_rate(3, d_model=12, warmup=10)
    assert moved[1] <= 1e-3 * updater.rate < moved[0]


@pytest.mark.slow
def test_compiled_training_is_the_same():
    if not shutil.which("c++"):
        pytest.skip("torch.compile needs a C++ compiler")
    _, plain = trained(steps=4, eval_every=1, dropout=0.0)
    _, compiled = trained(steps=4, eval_every=1, compile=True, dropout=0.0)
    for a, b in zip(plain, compiled):
        assert a["nll"] == pytest.approx(b["nll"], abs=1e-4)


def test_an_iterator_of_batches_can_be_resumed_too(tmp_path):
    """As from `pooled_batches`: no sequence, so it is read up to the place."""

    def run(steps, folder):
        torch.manual_seed(0)
        model = make_transformer(
            TransformerConfig(9, d_model=12, n_heads=3, n_layers=1, d_ff=20)
        )
        fit(
            model,
            lambda epoch: pooled_batches(
                iter(PAIRS), max_tokens=40, seed=0, epoch=epoch, pool=15
            ),
            Recipe(steps=steps, warmup=5, eval_every=5), progress=False,
            checkpoints=Checkpoints(folder, every=5),
        )
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    straight = run(20, tmp_path / "straight")
    run(10, tmp_path / "other")
    assert torch.equal(run(20, tmp_path / "other"), straight)


def test_tensorboard(tmp_path, monkeypatch):
    """With a stand-in for the library, and without it."""
    written = []

    class Writer:
        def __init__(self, folder):
            assert folder == str(tmp_path / "t")

        def __enter__(self):
            return self

        def __exit__(self, *_):
            written.append("closed")

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    write = to_tensorboard(tmp_path / "t")
    write(None, {"step": 3, "nll": 1.5, "learning_rate": 0.1, "metric": 0.2, "best": True})
    assert written == [("nll", 1.5, 3), ("learning_rate", 0.1, 3), ("metric", 0.2, 3), "closed"]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match="pip install tensorboard"):
        to_tensorboard(tmp_path / "t")


def test_records_of_a_file_that_was_cut_off(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert read_metrics(tmp_path) == [{"step": 1}, {"step": 2}]
    assert read_metrics(tmp_path / "nowhere") == []
