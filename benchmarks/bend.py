#!/usr/bin/env python3
"""What the bend of the feed-forward network is worth (chapter 16).

    python benchmarks/bend.py            all runs that are not there yet
    python benchmarks/bend.py --list     name them, run nothing
    python benchmarks/bend.py --out other.json

The model `mini` on mini German with subordinate clauses, its feed-forward
networks without their activation: two linear maps, with all their parameters.
Three seeds, trained and judged as in the study `clauses` of ablation.py,
which holds the whole model and the one without feed-forward networks. Results
go to benchmarks/results/bend.json, which is written after every run, all of it
or none of it; started again, the script goes on with what is missing. All
runs take about three minutes on one core.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch
from torch import Tensor

from benchmarks import ablation
from benchmarks.ablation import MAX_TOKENS, SEEDS, kept, task_of
from transformer18.ablation import learning_curve
from transformer18.build import book_parts, make_transformer
from transformer18.config import TransformerConfig, count_parameters
from transformer18.feed_forward import FeedForward
from transformer18.runs import MINI_RECIPE

OUT = ROOT / "benchmarks" / "results" / "bend.json"
STEPS, EVAL_EVERY = 1500, 100


@dataclass(frozen=True)
class Run:
    """One training of the model without a bend."""

    seed: int
    steps: int = STEPS

    @property
    def name(self) -> str:
        return f"no activation/{self.seed}"


def all_runs() -> Iterator[Run]:
    yield from map(Run, SEEDS)


class Straight(FeedForward):
    """A feed-forward network without its activation."""

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(self.expand(x))


def train(run: Run) -> dict:
    """What is kept of one run."""
    task = task_of(run.seed, clauses=True)
    torch.manual_seed(run.seed)
    config = TransformerConfig.preset("mini", len(task.tokenizer))
    straight = replace(book_parts(), feed_forward=lambda c: Straight(c.d_model, c.d_ff))
    model = make_transformer(config, straight)
    recipe = replace(
        MINI_RECIPE, steps=run.steps, eval_every=min(EVAL_EVERY, run.steps), stop_at=2.0
    )
    began = time.process_time()
    history = learning_curve(model, task, recipe, seed=run.seed, max_tokens=MAX_TOKENS)
    return {
        **asdict(run),
        "parameters": count_parameters(model),
        "cpu_seconds": round(time.process_time() - began, 1),
        "history": kept(history),
    }


def main() -> None:
    ablation.run_all(__doc__, OUT, lambda: ablation.about("bend"), all_runs(), train)


if __name__ == "__main__":
    main()
