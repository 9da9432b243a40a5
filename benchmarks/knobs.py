#!/usr/bin/env python3
"""Each knob of a Transformer turned once (chapter 17).

    python benchmarks/knobs.py            all runs that are not there yet
    python benchmarks/knobs.py --list     name them, run nothing
    python benchmarks/knobs.py --out other.json

The model `mini` on mini German with subordinate clauses, and the same with
one size or rate changed, down and up; three seeds each. A seed settles the
sentences, the initial weights, the order of batches and dropout. Results go
to benchmarks/results/knobs.json, which is written after every run, all of
it or none of it; started again, the script goes on with what is missing.
All runs take about a quarter of an hour on one core.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch

from benchmarks import ablation
from benchmarks.ablation import MAX_TOKENS, SEEDS, task_of
from transformer18.ablation import learning_curve
from transformer18.build import make_transformer
from transformer18.config import TransformerConfig, count_parameters
from transformer18.runs import MINI_RECIPE

OUT = ROOT / "benchmarks" / "results" / "knobs.json"
STEPS, EVAL_EVERY = 400, 100
MINI = TransformerConfig.preset("mini", 4)
KNOBS = {  # what is turned: the values beside that of `mini`
    "d_model": (32, 128),
    "n_heads": (1, 16),
    "n_layers": (1, 4),
    "d_ff": (32, 512),
    "smoothing": (0.0, 0.3),
    "dropout": (0.0, 0.3),
}


@dataclass(frozen=True)
class Run:
    """One training: which knob at which value, which seed."""

    knob: str  # empty: `mini` as it is
    value: float
    seed: int

    @property
    def name(self) -> str:
        turned = f"{self.knob}={self.value}" if self.knob else "mini"
        return f"{turned}/{self.seed}"


def usual(knob: str) -> float:
    """The value of a knob in `mini`."""
    return MINI_RECIPE.smoothing if knob == "smoothing" else getattr(MINI, knob)


def all_runs() -> Iterator[Run]:
    """Every run, seed by seed, so that a file cut short is of use."""
    for seed in SEEDS:
        yield Run("", 0, seed)
        for knob, values in KNOBS.items():
            for value in values:
                yield Run(knob, value, seed)


def train(run: Run, steps: int = STEPS, eval_every: int = EVAL_EVERY) -> dict:
    """What is kept of one run."""
    task = task_of(run.seed, True)
    recipe = replace(MINI_RECIPE, steps=steps, eval_every=eval_every, stop_at=2.0)
    sizes = {}
    if run.knob == "smoothing":
        recipe = replace(recipe, smoothing=run.value)
    elif run.knob:
        sizes[run.knob] = run.value
    config = TransformerConfig.preset("mini", len(task.tokenizer), **sizes)
    torch.manual_seed(run.seed)
    model = make_transformer(config)
    began = time.process_time()
    history = learning_curve(model, task, recipe, seed=run.seed, max_tokens=MAX_TOKENS)
    return {
        **asdict(run),
        "parameters": count_parameters(model),
        "cpu_seconds": round(time.process_time() - began, 1),
        "history": ablation.kept(history),
    }


def about() -> dict:
    """What someone needs to make the file again."""
    return ablation.about("knobs", steps=STEPS, knobs=KNOBS)


def main() -> None:
    ablation.run_all(__doc__, OUT, about, all_runs(), train)


if __name__ == "__main__":
    main()
