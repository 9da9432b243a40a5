#!/usr/bin/env python3
"""One training step of the package's model against torch.nn.Transformer.

    python benchmarks/training_step.py                 tiny and base, minutes
    python benchmarks/training_step.py --sizes tiny    one of them
    python benchmarks/training_step.py --smoke         seconds: does it run?

A step is forward, loss, backward and Adam. What a step takes depends on the
model and on the loop around it, so both are exchanged, which makes four
contenders:

    model  torch.nn: nn.Transformer; package: make_transformer
    loop   plain: F.cross_entropy on all logits, Adam as torch makes it
           package: Updater, with its chunked loss and its fused Adam

The same in all four: sizes, ids, masks, embedding (shared by source, target
and output), sinusoidal positions, label smoothing 0.1, Adam's constants. The
two final norms of nn.Transformer, which the paper does not have, are taken
out. It keeps its biases in attention (the package has none), and with
dropout it drops attention weights and inner features of the feed-forward
network too, where the package has dropout only in the paper's places;
therefore everything is measured at dropout 0 as well.

All contenders take one step per round, in an order that moves on by one
from round to round. Counted are the CPU seconds of one thread. Results go to
benchmarks/results/training_step.json, all of them or none.
"""

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
import torch.nn.functional as F
from torch import nn

from transformer18.batching import Batch
from transformer18.build import make_transformer
from transformer18.config import TransformerConfig
from transformer18.embedding import TokenEmbedding
from transformer18.masking import causal_mask
from transformer18.position import SinusoidalPosition
from transformer18.training import Recipe, Updater
from transformer18.vocabulary import END, PAD, UNKNOWN, write_atomically

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "results" / "training_step.json"
SIZES = {
    "tiny": dict(
        d_model=128, n_heads=4, d_ff=256, n_layers=4, vocab_size=8000,
        sentences=128, tokens=32,
    ),
    "base": dict(
        d_model=512, n_heads=8, d_ff=2048, n_layers=6, vocab_size=37_000,
        sentences=32, tokens=32,
    ),
    "smoke": dict(
        d_model=12, n_heads=2, d_ff=20, n_layers=1, vocab_size=23, sentences=3, tokens=7
    ),
}  # fmt: skip
REPEATS = {"tiny": 5, "base": 3, "smoke": 3}  # rounds, after one to warm up
DROPOUTS = (0.1, 0.0)
CONTENDERS = {  # name: (model, loop); the first is what the rest is measured by
    "torch.nn, plain loop": ("torch.nn", "plain"),
    "torch.nn, package's loop": ("torch.nn", "package"),
    "package, plain loop": ("package", "plain"),
    "package, package's loop": ("package", "package"),
}
RECIPE = Recipe()  # the paper's smoothing and constants of Adam
RATE = 1e-4  # learning rate
QUIET = 2.5  # a load average from which on a machine counts as busy


# -- what is compared --------------------------------------------------------


class TorchTransformer(nn.Module):
    """nn.Transformer with all that it leaves to its user.

    features(src_ids (B, S), tgt_ids (B, T)) -> (B, T, D) and
    `output_weight` (V, D), as the package's model has them.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.embedding = TokenEmbedding(config.src_vocab_size, config.d_model)
        self.position = SinusoidalPosition(config.d_model, config.dropout)
        self.inner = nn.Transformer(
            config.d_model, config.n_heads, config.n_layers, config.n_layers,
            config.d_ff, config.dropout, batch_first=True,
        )  # fmt: skip
        self.inner.encoder.norm = self.inner.decoder.norm = None

    @property
    def output_weight(self) -> torch.Tensor:
        return self.embedding.weight

    def features(self, src_ids, tgt_ids):
        hidden = src_ids == PAD  # in torch.nn, True is hidden
        return self.inner(
            self.position(self.embedding(src_ids)),
            self.position(self.embedding(tgt_ids)),
            tgt_mask=~causal_mask(tgt_ids.size(1)),
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )


def make_model(kind: str, size: str, dropout: float) -> nn.Module:
    """The model of a contender, with weights of its own."""
    sizes = SIZES[size]
    names = ("d_model", "n_heads", "d_ff", "n_layers")
    shape = {name: sizes[name] for name in names}
    config = TransformerConfig(sizes["vocab_size"], dropout=dropout, **shape)
    return TorchTransformer(config) if kind == "torch.nn" else make_transformer(config)


def make_ids(size: str) -> Batch:
    """Sentences of one length: random ids, then `end`."""
    sizes = SIZES[size]
    shape = 2, sizes["sentences"], sizes["tokens"]
    ids = torch.randint(UNKNOWN + 1, sizes["vocab_size"], shape)
    ids[..., -1] = END
    return Batch(*ids)


def plain_step(model: nn.Module, batch: Batch, optimizer, recipe: Recipe) -> float:
    """A step as one would write it first; the loss per token."""
    model.train()
    features = model.features(batch.src_ids, batch.tgt_ids)
    logits = F.linear(features, model.output_weight)  # (B, T, V)
    loss = F.cross_entropy(
        logits.flatten(0, 1), batch.labels.flatten(),
        ignore_index=PAD, label_smoothing=recipe.smoothing,
    )  # fmt: skip
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def package_step(
    model: nn.Module, batch: Batch, rate: float, optimizer=None
) -> Callable[[], float]:
    """A step of the package's loop at a fixed learning rate."""
    factor = rate * model.config.d_model**0.5  # the schedule's first step
    updater = Updater(model, replace(RECIPE, warmup=1, factor=factor))
    updater.optimizer = optimizer or updater.optimizer
    return lambda: updater(1, [batch]).item() / batch.n_tokens


def make_step(name: str, size: str, dropout: float) -> Callable[[], float]:
    """The contender, ready: each call is one training step."""
    torch.manual_seed(0)
    batch = make_ids(size)
    kind, loop = CONTENDERS[name]
    model = make_model(kind, size, dropout)
    if loop == "package":
        return package_step(model, batch, RATE)
    adam = torch.optim.Adam(
        model.parameters(), lr=RATE, betas=RECIPE.betas, eps=RECIPE.eps
    )  # fmt: skip
    return lambda: plain_step(model, batch, adam, RECIPE)


# -- measuring ---------------------------------------------------------------


def time_steps(size: str, dropout: float, repeats: int) -> dict[str, list[float]]:
    """CPU seconds of every step of every contender, round by round."""
    steps = {name: make_step(name, size, dropout) for name in CONTENDERS}
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    names = list(CONTENDERS)
    for name in names:
        steps[name]()  # warms up, not counted
    for turn in range(repeats):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            began = time.process_time()
            steps[name]()
            seconds[name].append(round(time.process_time() - began, 5))
    return seconds


def resident(field: str) -> int:
    """Bytes of main memory that this process holds (VmRSS) or held at most
    (VmHWM). Linux only; elsewhere 0."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return 0
    lines = dict(line.split(":", 1) for line in status.splitlines())
    return 1024 * int(lines[field].split()[0])


def peak_of_two_steps(name: str, size: str) -> int:
    """Bytes at the peak, beyond what the process held without a model."""
    make_step(name, "smoke", DROPOUTS[0])()  # loads what torch loads late
    before = resident("VmRSS")
    step = make_step(name, size, DROPOUTS[0])
    step()
    step()
    return resident("VmHWM") - before


def measure_memory(name: str, size: str) -> int | None:
    """`peak_of_two_steps` in a process of its own; None where not known.

    The process is a copy of this one, which should not have computed yet:
    memory that it has freed could be used again unseen.
    """
    if not resident("VmHWM"):
        return None
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(peak_of_two_steps, name, size).result()


def summary(seconds: dict[str, list[float]]) -> dict[str, dict]:
    """Median and extremes: seconds a step, and how many times as fast as
    the first contender in the same round."""
    reference = next(iter(seconds.values()))
    found = {}
    for name, own in seconds.items():
        ratios = [a / b for a, b in zip(reference, own, strict=True)]
        found[name] = {
            "cpu_seconds": _spread(own),
            "times_as_fast": _spread(ratios),
        }
    return found


def _spread(values: list[float]) -> dict[str, float]:
    found = {"median": median(values), "least": min(values), "most": max(values)}
    return {name: round(value, 4) for name, value in found.items()}


def measure(size: str, repeats: int, memory: dict[str, int | None]) -> dict:
    """All that the result file says about one size."""
    seconds = {str(p): time_steps(size, p, repeats) for p in DROPOUTS}
    return {
        "sizes": SIZES[size],
        "repeats": repeats,
        "dropout": {
            p: {"summary": summary(found), "cpu_seconds": found} for p, found in seconds.items()
        },
        "peak_bytes": memory,
    }


# -- the result file ---------------------------------------------------------


def about(arguments: list[str]) -> dict:
    """What someone needs to make the file again."""
    capability = torch.backends.cpu.get_cpu_capability()
    return {
        "what": "forward, loss, backward and Adam of one batch without padding",
        "contenders": {
            name: f"model of {model}, {loop} loop" for name, (model, loop) in CONTENDERS.items()
        },
        "command": shlex.join(["python", "benchmarks/training_step.py", *arguments]),
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": f"{os.cpu_count()} CPU cores ({capability}), one thread used, no GPU",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": 1,
        "smoothing": RECIPE.smoothing,
        "peak_bytes": f"of a process that takes two steps at dropout {DROPOUTS[0]}",
    }


def load() -> float | None:
    """Processes that want to run, averaged over a minute."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def machine(loads: list[float | None]) -> str:
    """quiet, busy or unknown: was anything else running?"""
    if None in loads:
        return "unknown"
    return "busy" if max(loads) >= QUIET else "quiet"


def table(size: str, found: dict) -> str:
    """One size as text, a contender a line."""
    lines = []
    for p, one in found["dropout"].items():
        lines += [
            f"{size}, dropout {p}, {found['repeats']} rounds",
            f"  {'':26}{'CPU s (range)':>24}{'times as fast (range)':>26}{'peak MB':>9}",
        ]
        for name, row in one["summary"].items():
            cells = [
                "{median:.3f} ({least:.3f}–{most:.3f})".format(**row["cpu_seconds"]),
                "{median:.2f} ({least:.2f}–{most:.2f})".format(**row["times_as_fast"]),
            ]
            peak = found["peak_bytes"][name]
            shown = f"{peak / 1e6:.0f}" if peak and p == str(DROPOUTS[0]) else ""
            lines.append(f"  {name:26}{cells[0]:>24}{cells[1]:>26}{shown:>9}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny", "base"])
    parser.add_argument("--repeats", type=int, help="rounds, instead of each size's own number")
    parser.add_argument("--out", type=Path, help=f"result file ({OUT.relative_to(ROOT)})")
    parser.add_argument("--smoke", action="store_true", help="minute sizes; stored with --out only")
    options = parser.parse_args(arguments)
    if options.repeats is not None and options.repeats < 1:
        parser.error(f"--repeats must be at least 1, not {options.repeats}")
    sizes = ["smoke"] if options.smoke else options.sizes
    out = options.out or (None if options.smoke else OUT)
    torch.set_num_threads(1)
    results = {"about": about(arguments), "results": {}}
    loads = [load()]
    memory = {  # of all sizes, before anything is computed here
        size: {name: measure_memory(name, size) for name in CONTENDERS} for size in sizes
    }
    for size in sizes:
        found = measure(size, options.repeats or REPEATS[size], memory[size])
        results["results"][size] = found
        print(table(size, found), flush=True)
        loads.append(load())
    results["about"] |= {"machine": machine(loads), "load": loads}
    if out:
        write_atomically(out, (json.dumps(results, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
