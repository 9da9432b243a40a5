#!/usr/bin/env python3
"""How many heads, at a constant cost, and how far they look (chapter 12).

    python benchmarks/heads.py            all runs that are not there yet
    python benchmarks/heads.py --list     name them, run nothing
    python benchmarks/heads.py --out other.json

The model `mini` on mini German with subordinate clauses, with 1 to 32 heads
(of width 64 to 2), three seeds each. Of every model is kept how it learns,
and how far each head of its self-attentions looks on the dev sentences,
before training and after it. A seed settles the sentences, the initial
weights, the order of batches and dropout. Results go to
benchmarks/results/heads.json, which is written after every run, all of
it or none of it; started again, the script goes on with what is missing.
All runs take five to ten minutes on one core.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch

from benchmarks import ablation
from benchmarks.ablation import MAX_TOKENS, SEEDS, task_of
from transformer18.ablation import learning_curve
from transformer18.batching import make_batch
from transformer18.build import make_transformer
from transformer18.config import TransformerConfig, count_parameters
from transformer18.multi_head import mean_distance
from transformer18.runs import MINI_RECIPE, Task
from transformer18.transformer import Transformer, attention_maps
from transformer18.vocabulary import PAD

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "results" / "heads.json"
HEADS = (1, 2, 4, 8, 16, 32)
STEPS, EVAL_EVERY = 400, 100


@dataclass(frozen=True)
class Run:
    """One training: how many heads, which seed."""

    n_heads: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.n_heads}/{self.seed}"


def all_runs() -> Iterator[Run]:
    """Every run, seed by seed, so that a file cut short is of use."""
    for seed in SEEDS:
        for n_heads in HEADS:
            yield Run(n_heads, seed)


@torch.no_grad()
def distances(model: Transformer, task: Task) -> dict[str, list[float]]:
    """Mean distance that each head looks over, by self-attention."""
    model.eval()
    batch = make_batch(task.ids(task.dev))
    with attention_maps(model) as maps:
        model.features(batch.src_ids, batch.tgt_ids)
    real = {"encoder": batch.src_ids != PAD, "decoder": batch.labels != PAD}
    return {
        name: [round(d, 3) for d in mean_distance(weights, real[name[:7]]).tolist()]
        for name, weights in maps.items()
        if "self" in name
    }


def train(run: Run, steps: int = STEPS, eval_every: int = EVAL_EVERY) -> dict:
    """What is kept of one run."""
    task = task_of(run.seed, True)
    recipe = replace(MINI_RECIPE, steps=steps, eval_every=eval_every, stop_at=2.0)
    config = TransformerConfig.preset("mini", len(task.tokenizer), n_heads=run.n_heads)
    torch.manual_seed(run.seed)
    model = make_transformer(config)
    before = distances(model, task)
    began = time.process_time()
    history = learning_curve(model, task, recipe, seed=run.seed, max_tokens=MAX_TOKENS)
    return {
        **asdict(run),
        "parameters": count_parameters(model),
        "cpu_seconds": round(time.process_time() - began, 1),
        "distance": {"before": before, "after": distances(model, task)},
        "history": ablation.kept(history),
    }


def about() -> dict:
    """What someone needs to make the file again."""
    return ablation.about("heads", steps=STEPS, heads=list(HEADS))


def main() -> None:
    ablation.run_all(__doc__, OUT, about, all_runs(), train)


if __name__ == "__main__":
    main()
