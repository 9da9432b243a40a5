#!/usr/bin/env python3
"""Training with the package against what a user would train with instead.

    python benchmarks/train.py                 all, some fifteen minutes
    python benchmarks/train.py --sizes tiny    one size
    python benchmarks/train.py --smoke         seconds: does it run?

    steps      a step (forward, loss, backward, Adam) of every contender, with
               dropout as each has it and without any; the share that its
               matrix products have in what the machine can do
    memory     at the peak of such steps, in a process of their own
    useful     real target tokens a second on the lengths of real news, in
               batches of like length and in random ones; the padding in them
    attention  the fused kernel against the formula as one writes it
    growth     a step against the number of sentences, and their length

What a step takes depends on the model and on the loop around it, so both are
exchanged: torch.nn.Transformer or `make_transformer`; F.cross_entropy on all
logits with Adam as torch makes it, or `Updater`. The same for all: sizes,
ids, masks, one embedding for source, target and output, Adam's constants, and
label smoothing of 0.1.

All contenders take one turn per round, in an order that moves on by one from
round to round, after one round that warms up. Counted are the CPU seconds of
one thread; wall times of two threads stand beside them. Results go to
benchmarks/results/train.json, all of them or none.
"""

import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import numpy as np
import torch

from benchmarks import peers
from benchmarks.measuring import (
    ROOT,
    Plan,
    bfloat16_instructions,
    in_a_new_process,
    interleave,
    lines_of,
    main,
    not_measured,
    ratios,
    resident,
    row,
    significant,
    spread,
    threads,
)
from benchmarks.peers import BF16, MARIAN, NN, OURS, SMOKE, THEIRS, Size, X
from transformer18.batching import Batch, PackedPairs, token_batches
from transformer18.build import book_parts
from transformer18.masking import causal_mask
from transformer18.scaled_dot_product import scaled_dot_product, scaled_dot_product_attention
from transformer18.vocabulary import UNKNOWN

LENGTHS = ROOT / "benchmarks" / "news_lengths.json"
DROPOUTS = (0.1, 0.0)
ROUNDS = {"tiny": 5, "base": 3}
MAX_TOKENS = 4096  # of a batch of real lengths, on either side
NO_BF16 = "this processor has no bfloat16 instructions"


# -- a step ----------------------------------------------------------------------


def contenders(quick: bool) -> tuple[list[str], dict[str, str]]:
    """Who takes part, and who does not: why."""
    absent = peers.missing()
    left_out = {name: absent[peer] for name, peer in peers.TRAINERS.items() if peer in absent}
    if not bfloat16_instructions():
        left_out[BF16] = NO_BF16
    names = [THEIRS, OURS] if quick else list(peers.TRAINERS)
    return [name for name in names if name not in left_out], left_out


def time_steps(
    size: Size, dropout: float, names: Sequence[str], rounds: int, walls: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of every step of every contender, round by round: CPU time of
    one thread, and wall time of two in as many rounds as `walls`."""
    torch.manual_seed(0)
    batch = size.ids()
    steps = {name: peers.make_trainer(name, size, dropout) for name in names}
    turns = {name: lambda step=step: step(batch) for name, step in steps.items()}
    with threads(1):
        cpu = interleave(turns, rounds)
    with threads(2):
        wall = interleave(turns, walls, clock=time.perf_counter, warm=False)
    return cpu, wall


def matmul_rates(size: Size, seconds: float) -> dict[str, float]:
    """FLOP/s of fp32 products (n, k) (k, m), by their shape: the best of
    several turns of one thread."""
    rows = size.sentences * size.tokens
    shapes = [(n, n, n) for n in (512, 1024, 2048)] + [(rows, size.d_model, size.d_ff)]
    found = {}
    for n, k, m in shapes:
        a, b, best = torch.randn(n, k), torch.randn(k, m), 0.0
        until = time.process_time() + seconds
        while time.process_time() < until:
            began = time.process_time()
            a @ b
            best = max(best, 2.0 * n * k * m / max(1e-9, time.process_time() - began))
        found[f"{n} × {k} × {m}"] = significant(best)
    return found


def steps(plan: Plan) -> tuple[dict, dict]:
    """Training steps, by size and dropout; what they make of the machine."""
    names, left_out = contenders(plan.quick)
    found, rows = {}, {}
    for key, size in plan.sizes.items():
        rounds = plan.rounds(ROUNDS[key])
        by_dropout = {}
        for p in DROPOUTS[:1] if plan.quick else DROPOUTS:
            walls = min(rounds, 2 if key == "tiny" else 1)
            if plan.quick or p != DROPOUTS[0]:
                walls = 0
            seconds, wall = time_steps(size, p, names, rounds, walls)
            by_dropout[str(p)] = {
                "cpu_seconds": {name: row(own) for name, own in seconds.items()},
                "wall_seconds": {name: row(own) for name, own in wall.items() if own},
                "times_as_fast": {n: ratios(seconds[THEIRS], own) for n, own in seconds.items()},
            }
            print(table(key, p, by_dropout[str(p)]), flush=True)
            rows |= step_rows(key, p, seconds, left_out)
        with threads(1):
            rates = matmul_rates(size, 0.01 if plan.smoke else 1.0)
        best = max(rates.values())
        own = by_dropout[str(DROPOUTS[0])]["cpu_seconds"][OURS]["rounds"]
        rows[f"matmul share/{key}"] = row([size.flops / one / best for one in own])
        found[key] = {
            "sizes": asdict(size), "dropout": by_dropout, "matmul_flops": size.flops,
            "matmul_flops_a_second": rates,
        }  # fmt: skip
    return {"contenders": peers.TRAINERS_ARE, "left_out": left_out, **found}, rows


def step_rows(key: str, p: float, seconds: dict, left_out: dict[str, str]) -> dict[str, dict]:
    """How many times as fast ours is as each peer."""
    more = "" if p == DROPOUTS[0] else ", dropout 0"
    rows = {f"train/{key}/{NN}{more}": ratios(seconds[THEIRS], seconds[OURS])}
    pairs = {
        f"train/{key}/bfloat16{more}": (THEIRS, BF16),
        f"train/{key}/{MARIAN}{more}": (MARIAN, OURS),
        f"train/{key}/{X}{more}": (X, OURS),
    }
    for name, pair in pairs.items():
        why = [left_out[who] for who in pair if who in left_out]
        if why:
            rows[name] = not_measured(why[0])
        elif all(who in seconds for who in pair):
            rows[name] = ratios(*(seconds[who] for who in pair))
    return rows


def table(key: str, p: float, found: dict) -> str:
    """One size and dropout as text, a contender a line."""
    head = ("CPU s (range)", "times as fast (range)", "2 threads, s")
    lines = [f"{key}, dropout {p}", f"  {'':26}{head[0]:>24}{head[1]:>26}{head[2]:>14}"]
    for name, own in found["cpu_seconds"].items():
        cells = [
            "{median:.3f} ({least:.3f}–{most:.3f})".format(**own),
            "{median:.2f} ({least:.2f}–{most:.2f})".format(**found["times_as_fast"][name]),
        ]
        wall = found["wall_seconds"].get(name)
        shown = f"{wall['median']:.3f}" if wall else ""
        lines.append(f"  {name:26}{cells[0]:>24}{cells[1]:>26}{shown:>14}")
    return "\n".join(lines)


# -- memory ----------------------------------------------------------------------


def peak_of_two_steps(name: str, size: Size) -> int:
    """Bytes at the peak, beyond what the process held without a model."""
    torch.set_num_threads(1)
    small = SMOKE["tiny"]
    peers.make_trainer(name, small, DROPOUTS[0])(small.ids())  # loads what comes late
    before = resident("VmRSS")
    step, batch = peers.make_trainer(name, size, DROPOUTS[0]), size.ids()
    step(batch)
    step(batch)
    return resident("VmHWM") - before


def memory(plan: Plan) -> tuple[dict, dict]:
    """Bytes at the peak of every contender's steps."""
    names, left_out = contenders(quick=plan.smoke)
    found, rows = {"left_out": left_out}, {}
    for key, size in plan.sizes.items():
        name = f"memory/{key}"
        if not resident("VmHWM"):
            rows[name] = not_measured("this system does not tell a process's peak")
            continue
        peaks = {who: in_a_new_process(peak_of_two_steps, who, size) for who in names}
        found[key] = {"peak_bytes": peaks}
        rows[name] = row([peaks[OURS] / max(1, peaks[THEIRS])])
        shown = ", ".join(f"{who} {peak / 1e6:.0f}" for who, peak in peaks.items())
        print(f"memory, {key}, MB: {shown}", flush=True)
    return found, rows


# -- real lengths ----------------------------------------------------------------


@cache
def news_pairs(vocab_size: int) -> PackedPairs:
    """Pairs of random ids, as long as those of real news."""
    told = json.loads(LENGTHS.read_text(encoding="utf-8"))
    rng = np.random.default_rng(0)

    def ids(length: int) -> list[int]:
        return rng.integers(UNKNOWN + 1, vocab_size, length).tolist()

    lengths = zip(told["source"], told["target"], strict=True)
    return PackedPairs((ids(source), ids(target)) for source, target in lengths)


def padding(batches: Sequence[Batch], pairs: PackedPairs) -> dict[str, float]:
    """What share of the places in batches of all pairs is padding.

    longer side  of the longer side of every pair, which is what a batch of so
                 many tokens is filled up with
    """
    source = sum(batch.src_ids.numel() for batch in batches)
    target = sum(batch.labels.numel() for batch in batches)
    longer = sum(max(batch.src_ids.numel(), batch.labels.numel()) for batch in batches)
    real_source, real_target = int(pairs.src.lengths.sum()), int(pairs.tgt.lengths.sum())
    shares = {
        "longer side": 1 - int(pairs.sizes.sum()) / longer,
        "source": 1 - real_source / source,
        "target": 1 - real_target / target,
        "both sides": 1 - (real_source + real_target) / (source + target),
    }
    return {name: significant(share) for name, share in shares.items()}


def random_batches(pairs: PackedPairs, max_tokens: int) -> list[Batch]:
    """All pairs in random order; rows × longest is at most `max_tokens`."""
    order = list(range(len(pairs)))
    random.Random(0).shuffle(order)
    groups: list[list[int]] = [[]]
    longest = 0
    for i in order:
        longest = max(longest, int(pairs.sizes[i]))
        if groups[-1] and (len(groups[-1]) + 1) * longest > max_tokens:
            groups.append([])
            longest = int(pairs.sizes[i])
        groups[-1].append(i)
    return [pairs.batch(np.array(group)) for group in groups]


def epoch(step, chunks: Sequence[Sequence[Batch]], tokens: list[int]) -> Iterator[None]:
    """Trains on a chunk whenever it is asked to go on; notes its tokens."""
    for chunk in chunks:
        trained = 0
        for batch in chunk:
            step(batch)
            trained += batch.n_tokens
        tokens.append(trained)
        yield


def useful(plan: Plan) -> tuple[dict, dict]:
    """Real target tokens a CPU second, on real lengths.

    In batches of like length (`token_batches`), and in random ones that are
    filled up to as many places. Every round has other batches of the same
    epoch.
    """
    size = plan.sizes.get("tiny")
    if size is None:
        return {}, {}
    pairs = news_pairs(size.vocab_size)
    buckets = token_batches(pairs, max_tokens=MAX_TOKENS, seed=0)
    mixed = random_batches(pairs, MAX_TOKENS)
    waste = {"length buckets": padding(buckets, pairs), "random batches": padding(mixed, pairs)}
    rounds, each = plan.rounds(3), 1 if plan.smoke else 8
    parts = {
        name: [[some[(i * each + j) % len(some)] for j in range(each)] for i in range(rounds)]
        for name, some in (("length buckets", buckets), ("random batches", mixed))
    }
    if plan.smoke:
        parts = {name: [[size.ids()]] * rounds for name in parts}
    runs = {
        "torch.nn, random batches": (THEIRS, "random batches"),
        "torch.nn, length buckets": (THEIRS, "length buckets"),
        "package, length buckets": (OURS, "length buckets"),
    }
    turns, tokens = {}, {}
    with threads(1):
        for name, (who, how) in runs.items():
            step, tokens[name] = peers.make_trainer(who, size, DROPOUTS[0]), []
            step(size.ids())  # warms up
            chunks = epoch(step, parts[how], tokens[name])
            turns[name] = lambda chunks=chunks: next(chunks)
        seconds = interleave(turns, rounds, warm=False)
    speed = {
        name: [n / s for n, s in zip(tokens[name], own, strict=True)]
        for name, own in seconds.items()
    }
    ours = speed["package, length buckets"]
    rows = {f"useful/{name}": ratios(ours, speed[f"torch.nn, {name}"]) for name in parts}
    rows["padding/longer side"] = row([waste["length buckets"]["longer side"]])
    rows["padding/both sides"] = row([waste["length buckets"]["both sides"]])
    found = {
        "pairs": len(pairs), "max_tokens": MAX_TOKENS, "padding": waste,
        "batches": {"length buckets": len(buckets), "random batches": len(mixed)},
        "tokens_a_second": {name: row(own) for name, own in speed.items()},
    }  # fmt: skip
    shown = ", ".join(f"{name} {spread(own)['median']:.0f}" for name, own in speed.items())
    print(f"useful tokens a second: {shown}", flush=True)
    return found, rows


# -- attention -------------------------------------------------------------------

WAYS = ("naive", "fused", "torch's is_causal")


def attention_turn(way: str, n: int):
    """Causal attention of 8 heads of width 64 over n tokens, forward.

    naive  the formula as one writes it: all scores, softmax, average
    fused  the package's call with the mask that its model makes
    """
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 8, n, 64) for _ in range(3))
    if way == "torch's is_causal":
        call = torch.nn.functional.scaled_dot_product_attention
        return lambda: call(q, k, v, is_causal=True)
    if way == "fused":
        mask = book_parts().target_mask(torch.full((1, n), UNKNOWN + 1))
        return lambda: scaled_dot_product_attention(q, k, v, mask=mask)
    hidden = ~causal_mask(n)

    def naive():
        scores = scaled_dot_product(q, k).masked_fill(hidden, -torch.inf)
        return scores.softmax(dim=-1) @ v

    return naive


@torch.inference_mode()
def attention_peak(way: str, n: int) -> int:
    """Bytes at the peak of one call, beyond its inputs and its mask."""
    torch.set_num_threads(1)
    attention_turn(way, 64)()
    turn = attention_turn(way, n)
    before = resident("VmRSS")
    turn()
    return resident("VmHWM") - before


def attention(plan: Plan) -> tuple[dict, dict]:
    """What n = 8192 tokens take, fused and not."""
    n = 256 if plan.smoke else 8192
    with torch.inference_mode(), threads(1):
        for way in WAYS:
            attention_turn(way, 64)()  # warms up
        turns = {way: attention_turn(way, n) for way in WAYS}
        seconds = interleave(turns, plan.rounds(2), warm=False)
    rows = {"attention/time": ratios(seconds["naive"], seconds["fused"])}
    found = {"n": n, "cpu_seconds": {way: row(own) for way, own in seconds.items()}}
    if resident("VmHWM"):
        peaks = {way: in_a_new_process(attention_peak, way, n) for way in WAYS}
        rows["attention/memory"] = row([peaks["naive"] / max(1, peaks["fused"])])
        found["peak_bytes"] = peaks
    else:
        rows["attention/memory"] = not_measured("this system does not tell a process's peak")
    print("attention:", *lines_of(rows), sep="\n", flush=True)
    return found, rows


# -- growth ----------------------------------------------------------------------


def growth(plan: Plan) -> tuple[dict, dict]:
    """CPU seconds of a step against sentences, and against their length with
    as many tokens in the batch."""
    found = {}
    for key, size in plan.sizes.items():
        whole = size.sentences * size.tokens
        tokens = [size.tokens] if plan.smoke else [16, 32, 64, 128, 256]
        shapes = {
            "sentences": [(max(1, size.sentences // part), size.tokens) for part in (8, 4, 2, 1)],
            "length": [(whole // length, length) for length in tokens],
        }
        names, rounds = (THEIRS, OURS), plan.rounds(2 if key == "tiny" else 1)
        with threads(1):
            makers = {name: peers.make_trainer(name, size, DROPOUTS[0]) for name in names}
            for step in makers.values():
                step(size.ids(2))  # warms up
            found[key] = {
                what: [step_seconds(makers, size.ids(n, t), rounds) for n, t in these]
                for what, these in shapes.items()
            }
        print(f"growth, {key}: done", flush=True)
    return found, {}


def step_seconds(steps: dict, batch: Batch, rounds: int) -> dict:
    """What a step on this batch takes everyone."""
    turns = {name: lambda step=step: step(batch) for name, step in steps.items()}
    seconds = interleave(turns, rounds, warm=False)
    n, tokens = batch.labels.shape
    taken = {name: row(own) for name, own in seconds.items()}
    return {"sentences": n, "tokens": tokens, "cpu_seconds": taken}


# -- all of it -------------------------------------------------------------------

STUDIES = {
    "memory": memory, "steps": steps, "useful": useful, "attention": attention, "growth": growth,
}  # fmt: skip


if __name__ == "__main__":
    main("train", __doc__, STUDIES)
