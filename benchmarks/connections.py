#!/usr/bin/env python3
"""Which encoder block a decoder block reads (chapter 6).

    python benchmarks/connections.py            all runs not there yet
    python benchmarks/connections.py --list     name them, run nothing
    python benchmarks/connections.py --out other.json

The model `mini` on mini German with subordinate clauses, with two and with
four blocks on each side, three seeds each:

    last to all  every decoder block reads the last encoder block (the paper)
    k to k       decoder block k reads encoder block k
    mean to all  every decoder block reads the mean of all encoder blocks

The last two are cells of chapter 6 (tag `experiment`; `mean to all` is the
solution of its exercise 6.2), run from there. All have the same parameters,
and under one seed begin with the same weights. A run has 300 steps; the first two
with four blocks have the recipe's 1000.

A seed settles the sentences, the initial weights, the order of batches and
dropout. Results go to benchmarks/results/connections.json, which is written
after every run, all of it or none of it; started again, the script goes on
with what is missing. All runs take about eight minutes on one core.
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

from benchmarks import ablation
from benchmarks.ablation import MAX_TOKENS, SEEDS, task_of
from transformer18.ablation import learning_curve
from transformer18.batching import make_batch
from transformer18.build import book_parts
from transformer18.config import TransformerConfig, count_parameters
from transformer18.runs import MINI_RECIPE
from transformer18.transformer import Transformer
from transformer18.vocabulary import PAD

OUT = ROOT / "benchmarks" / "results" / "connections.json"
STEPS, LONG, EVERY = 300, 1000, 100
DEPTHS = (2, 4)
KINDS = {"last to all": "Transformer", "k to k": "LevelByLevel", "mean to all": "MeanOfAll"}


@dataclass(frozen=True)
class Run:
    """One training: which connection, how many blocks, which seed."""

    kind: str
    n_layers: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.n_layers}/{self.seed}"

    @property
    def steps(self) -> int:
        """Two connections are followed to the end of the recipe."""
        return LONG if self.n_layers == 4 and self.kind != "mean to all" else STEPS


def all_runs() -> Iterator[Run]:
    """Every run, seed by seed, so that a file cut short is of use."""
    for seed in SEEDS:
        for n_layers in DEPTHS:
            for kind in KINDS:
                yield Run(kind, n_layers, seed)


@cache
def chapter() -> dict:
    """What the cells of chapter 6 tagged `experiment` define."""
    return ablation.experiment("06_encoder_decoder", torch=torch, Transformer=Transformer)


@torch.no_grad()
def share_exact(model: Transformer, batch) -> float:
    """Share of sentences that greedy decoding would get right.

    Without decoding: it goes right as long as every token is the likeliest
    after the right beginning (chapter 5).
    """
    model.eval()
    said = model(batch.src_ids, batch.tgt_ids).argmax(dim=-1)
    right = (said == batch.labels) | (batch.labels == PAD)
    return right.all(dim=1).float().mean().item()


def train(run: Run, steps: int | None = None, every: int = EVERY) -> dict:
    """What is kept of one run."""
    task = task_of(run.seed, True)
    recipe = replace(MINI_RECIPE, steps=steps or run.steps, eval_every=every, stop_at=2.0)
    config = TransformerConfig.preset("mini", len(task.tokenizer), n_layers=run.n_layers)
    torch.manual_seed(run.seed)
    kind = chapter()[KINDS[run.kind]]
    model, dev = kind(config, book_parts()), make_batch(task.ids(task.dev))
    began = time.process_time()
    history = learning_curve(
        model,
        task,
        recipe,
        seed=run.seed,
        max_tokens=MAX_TOKENS,
        evaluate=lambda model: share_exact(model, dev),
    )
    return {
        **asdict(run),
        "parameters": count_parameters(model),
        "cpu_seconds": round(time.process_time() - began, 1),
        "history": ablation.kept(history),
    }


def about() -> dict:
    """What someone needs to make the file again."""
    changed = {"eval_every": EVERY, "stop_at": 2.0}  # in the recipe
    return ablation.about("connections", steps=STEPS, long=LONG, changed=changed)


def main() -> None:
    ablation.run_all(__doc__, OUT, about, all_runs(), train)


if __name__ == "__main__":
    main()
