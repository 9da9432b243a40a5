#!/usr/bin/env python3
"""Post-norm and pre-norm, with warm-up and without (chapter 15).

    python benchmarks/warmup.py            all runs that are not there yet
    python benchmarks/warmup.py --list     name them, run nothing
    python benchmarks/warmup.py --out other.json

An encoder-only model of twelve narrow blocks learns to say six random tokens
backwards. The norm stands after the addition or before the sublayer; the
learning rate rises for a hundred steps or is there in full from the first;
the initial weights are Xavier's for each matrix by itself, or the package's
own, smaller by a factor of 1.4 to 2. Three seeds each: a seed settles the
initial weights and the tokens. Results go to benchmarks/results/warmup.json,
which is written after every run, all of it or none of it; started again, the
script goes on with what is missing. All runs take about three minutes on one
core.
"""

import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import ablation
from transformer18.build import book_parts
from transformer18.config import TransformerConfig
from transformer18.transformer import EncoderOnly

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "results" / "warmup.json"
SEEDS = (0, 1, 2)
STEPS, MEAN_OF = 300, 10  # a stored loss is the mean of ten steps
RATE = 3e-3
SENTENCES, TOKENS, FIRST, LAST = 32, 6, 4, 14  # ids from FIRST, below LAST
SIZES = dict(d_model=32, n_heads=4, n_layers=12, d_ff=64, dropout=0.0)


@dataclass(frozen=True)
class Run:
    """One training: which order, which warm-up, how it begins."""

    norm_first: bool
    warmup: int  # steps; 0: the full rate at once
    xavier: bool
    seed: int

    @property
    def name(self) -> str:
        order = "pre-norm" if self.norm_first else "post-norm"
        begin = "xavier" if self.xavier else "package"
        return f"{order}/{self.warmup}/{begin}/{self.seed}"


def all_runs() -> Iterator[Run]:
    """Every run, seed by seed, so that a file cut short is of use."""
    for seed in SEEDS:
        for xavier in (True, False):
            for norm_first in (False, True):
                for warmup in (0, 100):
                    yield Run(norm_first, warmup, xavier, seed)


def losses(run: Run, steps: int = STEPS) -> list[float]:
    """Training loss of every step, in nats per token."""
    torch.manual_seed(run.seed)
    config = TransformerConfig(LAST, norm_first=run.norm_first, **SIZES)
    model, found = EncoderOnly(config, book_parts()), []
    if run.xavier:
        for p in model.encoder.parameters():
            for matrix in p if p.dim() == 3 else [p]:  # Q, K and V: three
                if matrix.dim() == 2:
                    nn.init.xavier_uniform_(matrix)
    adam = torch.optim.Adam(model.parameters(), RATE, betas=(0.9, 0.98), eps=1e-9)
    for step in range(1, steps + 1):
        adam.param_groups[0]["lr"] = RATE * min(1, step / max(1, run.warmup))
        ids = torch.randint(FIRST, LAST, (SENTENCES, TOKENS))
        logits = model(ids).flatten(0, 1)
        loss = F.cross_entropy(logits, ids.flip(1).flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
        found.append(loss.item())
    return found


def train(run: Run, steps: int = STEPS) -> dict:
    """What is kept of one run."""
    began = time.process_time()
    found = torch.tensor(losses(run, steps)).view(-1, MEAN_OF).mean(1)
    return {
        **asdict(run),
        "cpu_seconds": round(time.process_time() - began, 1),
        "loss": [round(loss, 4) for loss in found.tolist()],
    }


def about() -> dict:
    """What someone needs to make the file again."""
    return {
        "command": "python benchmarks/warmup.py",
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": f"{os.cpu_count()} CPU cores, one thread, no GPU",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "seeds": list(SEEDS),
        "steps": STEPS,
        "mean_of": MEAN_OF,
        "rate": RATE,
        "sizes": SIZES,
    }


def main() -> None:
    ablation.run_all(
        __doc__, OUT, about, all_runs(), train,
        told=lambda found: f"loss {found['loss'][-1]:.3f}",
        same=lambda about: about["sizes"] == SIZES,
    )  # fmt: skip


if __name__ == "__main__":
    main()
