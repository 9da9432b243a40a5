"""What the training loop refuses, and that it can be repeated."""

import dataclasses

import pytest
import torch

from transformer18.batching import token_batches
from transformer18.build import make_transformer
from transformer18.config import TransformerConfig
from transformer18.runs import Task
from transformer18.schedule import learning_rate
from transformer18.training import Recipe, fit
from transformer18.vocabulary import Vocabulary

PAIRS = [([4 + i % 5, 5], [4 + i % 5, 6, 7]) for i in range(40)]


def trained(**changes):
    torch.manual_seed(0)
    model = make_transformer(
        TransformerConfig(9, d_model=12, n_heads=3, n_layers=1, d_ff=20)
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
     ("clip", 0.0)],
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
