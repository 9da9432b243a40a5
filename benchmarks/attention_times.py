#!/usr/bin/env python3
"""What attention and decoding take, by length (chapters 11 and 13).

    python benchmarks/attention_times.py            both studies, minutes
    python benchmarks/attention_times.py --smoke    seconds: does it run?
    python benchmarks/attention_times.py --out other.json

    attention  one head of width 64, forward and backward: the additive
               score, the readable scaled dot product, the fused kernel
    decoding   the next token of the model `mini`, its decoder only, after
               a number of tokens: with a key/value cache and without

All contenders take one turn per round, in an order that moves on by one from
round to round. Kept are the CPU seconds of one thread: the median of the
rounds, the lowest and the highest. The load of the machine is written beside
them: run it where nothing else runs. Results go to
benchmarks/results/attention_times.json, all of them or none.

glibc never serves a block of more than 32 MiB from its heap: it maps it anew
for each tensor, which by itself more than doubles the time of the additive
score from 512 tokens on. To leave that out:

    MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=68719476736 \\
        python benchmarks/attention_times.py

The command in the result file has these settings in it.
"""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch

from benchmarks.measuring import load, machine
from transformer18.attention import attention
from transformer18.build import make_transformer
from transformer18.config import TransformerConfig
from transformer18.masking import KeyValueCache
from transformer18.rnn import AdditiveScore
from transformer18.runs import write_json
from transformer18.scaled_dot_product import scaled_dot_product_attention
from transformer18.vocabulary import UNKNOWN

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "results" / "attention_times.json"
WIDTH, VOCAB = 64, 200
LENGTHS = {"attention": (64, 128, 256, 512, 1024), "decoding": (1, 16, 64, 256, 512)}
SMOKE = {"attention": (4, 8), "decoding": (1, 4)}
ROUNDS, REPEATS = 15, 5  # a turn is so many repeats; one more round warms up


def attention_turns(T: int) -> dict[str, Callable]:
    """What each way of attending does in one turn, at T tokens."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, T, WIDTH, requires_grad=True) for _ in range(3))
    score, call = AdditiveScore(WIDTH, WIDTH, WIDTH), scaled_dot_product_attention
    ways = {
        "additive": lambda: attention(q, k, v, score=score)[0],
        "readable": lambda: call(q, k, v, need_weights=True)[0],
        "fused": lambda: call(q, k, v),
    }
    return {name: lambda run=run: run().sum().backward() for name, run in ways.items()}


def decoding_turns(t: int) -> dict[str, Callable]:
    """What the t-th token costs, of a model that has read ten tokens."""
    torch.manual_seed(0)
    model = make_transformer(TransformerConfig.preset("mini", VOCAB)).eval()
    ids = torch.randint(UNKNOWN + 1, VOCAB, (1, t))
    memory = model.encode(torch.randint(UNKNOWN + 1, VOCAB, (1, 10))).detach()
    cache = KeyValueCache(t + 1)
    with torch.no_grad():
        model.decode(ids[:, : max(1, t - 1)], memory, cache=cache)

    @torch.no_grad()
    def cached():
        cache.length = t - 1  # so that every turn writes the same token
        model.project(model.decode(ids[:, -1:], memory, cache=cache)[:, -1])

    @torch.no_grad()
    def uncached():
        model.project(model.decode(ids, memory)[:, -1])

    return {"no cache": uncached, "cache": cached}


def cpu_seconds(turns: dict[str, Callable], rounds: int, repeats: int) -> dict:
    """Median, lowest and highest CPU seconds of each, interleaved."""
    taken = {name: [] for name in turns}
    names = list(turns)
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            began = time.process_time()
            for _ in range(repeats):
                turns[name]()
            if number:
                taken[name].append((time.process_time() - began) / repeats)
    return {name: [round(f(some), 8) for f in (median, min, max)] for name, some in taken.items()}


@dataclass(frozen=True)
class Study:
    """What is measured at each of some sizes: size → contenders by name."""

    turns: Callable[[int], dict[str, Callable]]
    sizes: tuple[int, ...]
    smoke: tuple[int, ...]
    sizes_are: str = "lengths"  # their name in the file

    def measure(self, name: str, smoke: bool, rounds: int, repeats: int) -> dict:
        """Contender → one [median, lowest, highest] for each size."""
        found: dict[str, list] = {}
        sizes = self.smoke if smoke else self.sizes
        for size in sizes:
            for who, times in cpu_seconds(self.turns(size), rounds, repeats).items():
                found.setdefault(who, []).append(times)
            print(f"{name}, {size}: done", flush=True)
        return {self.sizes_are: list(sizes), "cpu_seconds": found}


def run_studies(doc: str, out: Path, studies: dict[str, Study], rounds, repeats, **about) -> None:
    """The command line of studies of time: --out and --smoke."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--out", type=Path, default=out, help="the result file")
    parser.add_argument("--smoke", action="store_true", help="tiny, into --out only")
    options = parser.parse_args()
    if options.smoke and options.out == out:
        parser.error("--smoke: give --out another file, it measures nothing of use")
    torch.set_num_threads(1)
    if options.smoke:
        rounds, repeats = 2, 1
    before = load()
    found = {
        name: study.measure(name, options.smoke, rounds, repeats)
        for name, study in studies.items()
    }
    loads = [before, load()]  # processes that want to run, before and after
    allocator = [f"{k}={v}" for k, v in os.environ.items() if k.startswith("MALLOC_")]
    results = {
        "about": {
            "command": shlex.join([*allocator, "python", f"benchmarks/{out.stem}.py"]),
            "date": datetime.now(UTC).date().isoformat(),
            "hardware": f"{os.cpu_count()} CPU cores, one thread, no GPU",
            "torch": torch.__version__,
            "load": loads,
            "machine": machine(loads),
            "seed": 0,
            **about,
            "rounds": rounds,
            "repeats": repeats,
        },
        "studies": found,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.out, results)


def main() -> None:
    studies = {
        "attention": Study(attention_turns, LENGTHS["attention"], SMOKE["attention"]),
        "decoding": Study(decoding_turns, LENGTHS["decoding"], SMOKE["decoding"]),
    }
    run_studies(__doc__, OUT, studies, ROUNDS, REPEATS, width=WIDTH)


if __name__ == "__main__":
    main()
