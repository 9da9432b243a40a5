#!/usr/bin/env python3
"""What tying Q and K, or dropping V, costs (chapter 9).

    python benchmarks/tying.py            all runs not there yet
    python benchmarks/tying.py --list     name them, run nothing
    python benchmarks/tying.py --out other.json

Four variants of attention: a matrix each for Q, K and V; one for Q and K;
none for V; one for all three. Three seeds each, in three settings:

    alone  one attention that is to say the token before; the answer of
           the look-up goes to the output layer. Model and training are
           cells of chapter 9 (tag `experiment`), run from there
    added  the same, but the answer is added to x first
    mini   all attentions of the model `mini` on mini German with
           subordinate clauses

A seed settles the sentences, the initial weights, the order of batches and
dropout. Results go to benchmarks/results/tying.json, which is
written after every run, all of it or none of it; started again, the script
goes on with what is missing. All runs take about four minutes on one core.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from benchmarks import ablation
from benchmarks.ablation import MAX_TOKENS, SEEDS, task_of
from transformer18.ablation import learning_curve
from transformer18.attention import attention
from transformer18.build import book_parts, make_transformer
from transformer18.config import TransformerConfig, count_parameters
from transformer18.multi_head import MultiHeadAttention, Projections
from transformer18.position import sinusoids
from transformer18.runs import MINI_RECIPE

OUT = ROOT / "benchmarks" / "results" / "tying.json"
ONE_HEAD_STEPS = (250, 1000)
MINI_STEPS, EVAL_EVERY = 400, 100


@cache
def chapter() -> dict:
    """What the cells of chapter 9 tagged `experiment` define."""
    names = {"torch": torch, "nn": nn, "F": F, "attention": attention}
    return ablation.experiment("09_attention", **names)


@dataclass(frozen=True)
class Run:
    """One training: in which setting, which variant, how long, which seed."""

    setting: str
    variant: str
    steps: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.setting}/{self.variant}/{self.steps}/{self.seed}"


def all_runs() -> Iterator[Run]:
    """Every run, seed by seed, so that a file cut short is of use."""
    for seed in SEEDS:
        for variant in chapter()["variants"]:
            for setting in ("alone", "added"):
                for steps in ONE_HEAD_STEPS:
                    yield Run(setting, variant, steps, seed)
            yield Run("mini", variant, MINI_STEPS, seed)


class Shared(Projections):
    """Q, K and V made by the matrices number `use`; 3 is none at all.

    Every head then gets its slice of the input as it is. The matrices start
    as those of `Projections` under the same seed; those that nothing uses
    are not there.
    """

    def __init__(self, d_model: int, n_heads: int, use: tuple[int, ...]):
        super().__init__(d_model, n_heads)
        kept = sorted({number for number in use if number < 3})
        self.weight = nn.Parameter(self.weight.detach()[kept])
        self.use = [kept.index(number) if number < 3 else None for number in use]

    def heads(self, x: Tensor, first: int, last: int) -> Tensor:
        made = [
            x if number is None else F.linear(x, self.weight[number])
            for number in self.use[first:last]
        ]
        return rearrange(made, "n b t (h k) -> n b h t k", h=self.n_heads)


def shared_attention(config: TransformerConfig, use) -> MultiHeadAttention:
    """An attention for `Parts` with `Shared` projections."""
    part = MultiHeadAttention(config.d_model, config.n_heads)
    part.projections = Shared(config.d_model, config.n_heads, use)
    return part


def train_one_head(run: Run) -> dict:
    """Accuracy on new sentences, how often the token itself is named, and
    the mean length, over tokens, of a query at each place."""
    names = chapter()
    model = names["trained"](
        names["variants"][run.variant], run.setting == "added", run.steps, run.seed
    )
    right, itself = names["share_naming"](model), names["share_naming"](model, back=0)
    with torch.no_grad():
        tokens = model.embedding(torch.arange(16))[:, None]  # (16, 1, D)
        queries = model.q(tokens + sinusoids(32, 32))  # (16, T, D)
        lengths = queries.norm(dim=-1).mean(dim=0).tolist()
    return {
        "parameters": count_parameters(model),
        "right": round(right, 4),
        "itself": round(itself, 4),
        "lengths": [round(length, 2) for length in lengths],
    }


def train_mini(run: Run) -> dict:
    """The learning curve of the whole model."""
    task, use = task_of(run.seed, True), chapter()["variants"][run.variant]
    recipe = replace(MINI_RECIPE, steps=run.steps, eval_every=EVAL_EVERY, stop_at=2.0)
    config = TransformerConfig.preset("mini", len(task.tokenizer))
    parts = replace(book_parts(), attention=lambda c: shared_attention(c, use))
    torch.manual_seed(run.seed)
    model = make_transformer(config, parts)
    history = learning_curve(model, task, recipe, seed=run.seed, max_tokens=MAX_TOKENS)
    kept = ablation.kept(history)
    return {
        "parameters": count_parameters(model),
        "right": kept[-1]["metric"],
        "dev_loss": kept[-1]["dev_loss"],
        "history": kept,
    }


def train(run: Run) -> dict:
    """What is kept of one run."""
    began = time.process_time()
    found = train_mini(run) if run.setting == "mini" else train_one_head(run)
    seconds = round(time.process_time() - began, 1)
    return {**asdict(run), "cpu_seconds": seconds, **found}


def about() -> dict:
    """What someone needs to make the file again."""
    variants = {name: list(use) for name, use in chapter()["variants"].items()}
    return ablation.about("tying", variants=variants)


def main() -> None:
    ablation.run_all(
        __doc__, OUT, about, all_runs(), train, lambda found: f"right {found['right']:.3f}"
    )


if __name__ == "__main__":
    main()
