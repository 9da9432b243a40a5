#!/usr/bin/env python3
"""Ways to tell a Transformer where a token stands (chapter 8).

    python benchmarks/position.py            all runs that are not there yet
    python benchmarks/position.py --list     name them, run nothing
    python benchmarks/position.py --out other.json

The model `mini` on mini German with subordinate clauses, three seeds each:

    way     places added as sinusoids, as a learned table or as one whose
            entries start as large as those of the sinusoids; not at all; put
            into features of their own (in place of the last 16 or 32 of a
            token's 64); added to token vectors not multiplied by the root
            of D
    untied  sinusoids and features of their own, where the output layer is a
            table of its own
    length  sinusoids and learned table, trained on short sentences only,
            judged on short, longer and long ones
    end     sinusoids, learned table and features of their own, trained on
            all sentences to the end, judged by length as well

A seed settles the sentences, the initial weights, the order of batches and
dropout. Results go to benchmarks/results/position.json, which is written
after every run, all of it or none of it; started again, the script goes on
with what is missing. All runs take about eleven minutes on one core.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch
from torch import Tensor, nn

from benchmarks import ablation
from benchmarks.ablation import MAX_TOKENS, SEEDS
from transformer18.ablation import NoPosition, learning_curve
from transformer18.build import book_parts, make_transformer
from transformer18.config import Parts, TransformerConfig, count_parameters
from transformer18.embedding import TokenEmbedding
from transformer18.position import LearnedPosition, SinusoidalPosition, sinusoids
from transformer18.runs import MINI_RECIPE, Task, judge, mini_german_task

OUT = ROOT / "benchmarks" / "results" / "position.json"
STEPS = {"way": 400, "untied": 400, "length": 600, "end": 1000}  # updates, by study
EVAL_EVERY = 100
LONGEST = 128  # rows of a learned table; an untrained model writes long sentences
# Words of the longer side of a pair: learnt from, and judged by.
GROUPS = {"short": (1, 14), "longer": (15, 17), "long": (18, 99)}
N_DEV = 200  # sentences that a model is judged by, of each group


class OwnFeatures(nn.Module):
    """Places in features of their own: the last `width` of a token's are
    replaced by the sinusoids of its place. forward(x (B, T, D), start=0).
    """

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.width, self.dropout = width, nn.Dropout(dropout)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        B, T, _ = x.shape
        places = sinusoids(T, self.width, start).to(x).expand(B, T, -1)
        x = torch.cat([x[..., : -self.width], places], dim=-1)
        return self.dropout(x)


def unscaled(config: TransformerConfig, vocab_size: int) -> TokenEmbedding:
    """Token vectors as they stand in the table, not times sqrt(D)."""
    embedding = TokenEmbedding(vocab_size, config.d_model)
    embedding.scale = 1.0
    return embedding


def large_table(config: TransformerConfig) -> LearnedPosition:
    """A learned table with the root mean square of sinusoids, 0.7."""
    position = LearnedPosition(LONGEST, config.d_model, config.dropout)
    nn.init.normal_(position.weight, std=0.7)
    return position


WAYS = {
    "sinusoidal": dict(position=lambda c: SinusoidalPosition(c.d_model, c.dropout)),
    "learned": dict(position=lambda c: LearnedPosition(LONGEST, c.d_model, c.dropout)),
    "learned, 0.7": dict(position=large_table),
    "none": dict(position=lambda c: NoPosition(c.dropout)),
    "16 of 64": dict(position=lambda c: OwnFeatures(16, c.dropout)),
    "32 of 64": dict(position=lambda c: OwnFeatures(32, c.dropout)),
    "unscaled": dict(embedding=unscaled),
}


def parts_of(way: str) -> Parts:
    """The book's parts, told of places in this way."""
    return replace(book_parts(), **WAYS[way])


@dataclass(frozen=True)
class Run:
    """One training: which study, which way, which seed."""

    study: str
    way: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.study}/{self.way}/{self.seed}"


def all_runs() -> Iterator[Run]:
    """Every run, seed by seed, so that a file cut short is of use."""
    for seed in SEEDS:
        for way in WAYS:
            yield Run("way", way, seed)
        for way in ("sinusoidal", "32 of 64"):
            yield Run("untied", way, seed)
        for way in ("sinusoidal", "learned"):
            yield Run("length", way, seed)
    for seed in SEEDS:
        for way in ("sinusoidal", "learned", "32 of 64"):
            yield Run("end", way, seed)


def n_words(pair: tuple[str, str]) -> int:
    """Words of the longer side."""
    return max(len(sentence.split()) for sentence in pair)


def in_group(pairs: list, group: str) -> list:
    low, high = GROUPS[group]
    return [pair for pair in pairs if low <= n_words(pair) <= high]


def train(run: Run, steps: int | None = None, eval_every: int = EVAL_EVERY) -> dict:
    """What is kept of one run."""
    task, _ = mini_german_task(run.seed, clauses=True)
    everything = task.dev
    task = replace(task, dev=everything[:N_DEV])
    if run.study == "length":
        task = replace(
            task,
            train=in_group(task.train, "short"),
            dev=in_group(everything, "short")[:N_DEV],
        )
    recipe = replace(
        MINI_RECIPE, steps=steps or STEPS[run.study], eval_every=eval_every, stop_at=2.0
    )
    config = TransformerConfig.preset(
        "mini", len(task.tokenizer), tie_embeddings=run.study != "untied"
    )
    torch.manual_seed(run.seed)
    model = make_transformer(config, parts_of(run.way))
    began = time.process_time()
    history = learning_curve(model, task, recipe, seed=run.seed, max_tokens=MAX_TOKENS)
    found = {
        **asdict(run),
        "parameters": count_parameters(model),
        "cpu_seconds": round(time.process_time() - began, 1),
        "history": ablation.kept(history),
    }
    if run.study in ("length", "end"):
        found |= {"groups": judged(model, task, everything)}
    return found


def judged(model: nn.Module, task: Task, pairs: list) -> dict:
    """Exact match and loss on each group of lengths."""
    found = {}
    for group in GROUPS:
        some = in_group(pairs, group)[:N_DEV]
        by_loss = replace(task, metric="negative loss")
        found[group] = {
            "sentences": len(some),
            "exact": round(judge(model, task, some), 4),
            "loss": round(-judge(model, by_loss, some), 4),
        }
    return found


def about() -> dict:
    """What someone needs to make the file again."""
    return ablation.about("position", steps=STEPS, groups=GROUPS)


def main() -> None:
    ablation.run_all(__doc__, OUT, about, all_runs(), train)


if __name__ == "__main__":
    main()
