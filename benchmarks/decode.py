#!/usr/bin/env python3
"""Decoding with the package against what a user would decode with instead.

    python benchmarks/decode.py                 all, some fifteen minutes
    python benchmarks/decode.py --sizes tiny    one size
    python benchmarks/decode.py --smoke         seconds: does it run?

    greedy   64 tokens for 1 and for 32 sentences of 31 tokens and `end`
    beam     the same with 4 hypotheses, for 16 sentences
    mix      lengths of real news: sorted, 32 sentences at a time, against one
             at a time
    length   what the next token takes, after 32 … 512
    batch    tokens a second against the number of sentences

The package decodes as its user does: `pack` the model once, then
`search_all`. The others are CTranslate2, on the model that `to_ctranslate2`
exports, and `generate` of Hugging Face's MarianMTModel. All have the same
random weights, with which no sentence ever ends (`peers.endless_model`), so
that every engine writes as many tokens as it may. Before anything is timed,
the tokens of a few sentences are compared: those in fp32 must be the same,
ties apart, which are counted.

Only in `mix` does a sentence have a limit of its own: as many tokens as the
real target has. For this, and for nothing else, the function that gives
`search_all` its limits is replaced while it runs.

All contenders take one turn per round, in an order that moves on by one from
round to round, after one round that warms up. Counted are the CPU seconds of
one thread; wall times of two threads stand beside them. Results go to
benchmarks/results/decode.json, all of them or none.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch

from benchmarks import peers
from benchmarks.measuring import (
    Plan,
    interleave,
    main,
    not_measured,
    ratios,
    row,
    threads,
)
from benchmarks.peers import CT2, MARIAN, Decoder, Size
from benchmarks.train import LENGTHS
from transformer18 import decoding
from transformer18.vocabulary import BEGIN, END, PAD

PACKAGE, PACKAGE8, CT2_8 = "package", "package, int8", "CTranslate2, int8"
SOURCE, TARGET = 32, 64  # tokens, the source's `end` counted
ROUNDS = {"tiny": 5, "base": 3}
CALLS = {"tiny": {1: 8, 32: 2}, "base": {1: 2}}  # of one turn; else 1
SAME = 3  # sentences whose tokens are compared
TIE = 1e-4  # log-probabilities nearer than that are as good as equal
MIX = {"tiny": 128, "base": 64}  # sentences
TOGETHER = 32  # of them at a time
WINDOW = 16  # tokens that what a token takes is the median of
LENGTHS_SHOWN = (32, 64, 128, 256, 512)
BATCHES = (1, 2, 4, 8, 16, 32, 64)


# -- the contenders --------------------------------------------------------------


def engines(model, int8: bool, count: int = 1) -> dict[str, Decoder]:
    """Everyone who is installed, ready to decode with so many threads."""
    absent = peers.missing()
    found: dict[str, Decoder] = {PACKAGE: peers.PackageDecoder(model)}
    if CT2 not in absent:
        found[CT2] = peers.CTranslate2Decoder(model, threads=count)
    if MARIAN not in absent:
        found[MARIAN] = peers.MarianDecoder(model)
    if int8:
        found[PACKAGE8] = peers.PackageDecoder(model, int8=True)
        if CT2 not in absent:
            found[CT2_8] = peers.CTranslate2Decoder(model, int8=True, threads=count)
    return found


@torch.inference_mode()
def log_probs(model, source: Sequence[int], target: Sequence[int]) -> torch.Tensor:
    """Of every next token after begin and after each of the target: (T + 1, V)."""
    src_ids = torch.tensor([[*source, END]])
    tgt_ids = torch.tensor([[BEGIN, *target]])
    return model(src_ids, tgt_ids)[0].log_softmax(dim=-1)


def tied(model, source, ours: Sequence[int], theirs: Sequence[int], greedy: bool) -> bool:
    """Do two outputs differ only because two choices were equally good?

    In greedy search the first token that differs counts, else the whole.
    """
    if greedy:
        pairs = zip(ours, theirs)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if first is None:  # one ends earlier
            return False
        scores = log_probs(model, source, ours[:first])[-1]
        return bool((scores[ours[first]] - scores[theirs[first]]).abs() < TIE)
    whole = [
        log_probs(model, source, ids).gather(1, torch.tensor([[*ids, PAD]]).T)[:-1].sum()
        for ids in (ours, theirs)
    ]
    return bool((whole[0] - whole[1]).abs() < TIE)


def compare(model, them: dict[str, Decoder], sentences, beam: int, length: int) -> dict:
    """How many outputs of each equal the package's, and how many are ties.

    Raises AssertionError for one that computes in fp32 and writes anything
    else, and for anyone who writes fewer tokens than it may.
    """
    found, ours = {}, them[PACKAGE].translate(sentences, beam, length)
    for name, decoder in them.items():
        outputs = decoder.translate(sentences, beam, length)
        lengths = [len(ids) for ids in outputs]
        if lengths != [length] * len(sentences):
            raise AssertionError(f"{name} wrote {lengths} tokens, not {length} each")
        others = [three for three in zip(sentences, ours, outputs) if three[1] != three[2]]
        ties = sum(tied(model, *three, beam == 1) for three in others)
        if name not in (PACKAGE8, CT2_8) and ties < len(others):
            raise AssertionError(f"{name} does not write the tokens of {PACKAGE}, beam {beam}")
        same = len(sentences) - len(others)
        found[name] = {"sentences": len(sentences), "same": same, "ties": ties}
    return found


# -- greedy and beam ---------------------------------------------------------------


# (row's name, sentences, beam) of what is timed at a fixed length
SEARCHES = [("greedy", 1, 1), ("greedy", 32, 1), ("beam 4", 16, 4)]


def search_rows(key: str, what: str, n: int, seconds: dict[str, list[float]]) -> dict:
    """How many times as fast ours is as each peer, where both were there."""
    absent = peers.missing()
    wanted = {f"{what}/{key}/{n}/{peer}": (peer, PACKAGE) for peer in (CT2, MARIAN)}
    if what == "greedy" and key == "base":
        wanted[f"int8/{key}/{n}/{CT2}"] = (CT2_8, PACKAGE8)
    rows = {}
    for name, (peer, own) in wanted.items():
        if peer in seconds and own in seconds:
            rows[name] = ratios(seconds[peer], seconds[own])
        elif (CT2 if peer == CT2_8 else peer) in absent:
            rows[name] = not_measured(absent[CT2 if peer == CT2_8 else peer])
    return rows


def fixed(plan: Plan) -> tuple[dict, dict]:
    """Greedy and beam search, as many tokens for everyone."""
    found, rows = {}, {}
    source, length = (5, 6) if plan.smoke else (SOURCE, TARGET)
    for key, size in plan.sizes.items():
        model = peers.endless_model(size)
        them = engines(model, int8=key == "base")
        if plan.quick:
            them = {name: them[name] for name in (PACKAGE, CT2) if name in them}
        both = {} if plan.quick else two_threads(model, them)
        sizes = found[key] = {"sizes": asdict(size)}
        for what, n, beam in SEARCHES:
            if plan.quick and what != "greedy":
                continue
            sentences = peers.random_sentences(size, [source - 1] * n)
            pair = them, both
            if beam > 1 and key == "base":  # takes long, and no floor asks for more
                pair = [{n: d for n, d in some.items() if n in (PACKAGE, CT2)} for some in pair]
            one = one_search(plan, key, model, pair, sentences, beam, length)
            sizes[f"{what}, {n} at a time"] = one
            seconds = {name: own["rounds"] for name, own in one["cpu_seconds"].items()}
            rows |= search_rows(key, what, n, seconds)
            print(table(f"{key}, {what}, {n} at a time", one), flush=True)
    return found, rows


def two_threads(model, them: dict[str, Decoder]) -> dict[str, Decoder]:
    """The same for two threads: only CTranslate2's number is its own."""
    found = dict(them)
    for name in them:
        if name in (CT2, CT2_8):
            found[name] = peers.CTranslate2Decoder(model, int8=name == CT2_8, threads=2)
    return found


def one_search(plan: Plan, key: str, model, them, sentences, beam: int, length: int) -> dict:
    """What one kind of search takes everyone who is timed with it."""
    one, two = them
    n, rounds = len(sentences), plan.rounds(ROUNDS[key])
    calls = 1 if plan.smoke else CALLS[key].get(n, 1)
    with threads(1):
        tokens = compare(model, one, sentences[:SAME], beam, length)
        jobs = {name: decoder.job(sentences, beam, length) for name, decoder in one.items()}
        cpu = interleave(jobs, rounds, calls=calls)
    with threads(2):
        jobs = {name: decoder.job(sentences, beam, length) for name, decoder in two.items()}
        for decoder in two.values():
            decoder.job(sentences, beam, 2)()  # warms up
        walls = min(rounds, 2 if key == "tiny" else 1)
        wall = interleave(jobs, walls, calls=calls, clock=time.perf_counter, warm=False)
    return {
        "source": len(sentences[0]) + 1, "tokens": length, "calls_a_turn": calls,
        "outputs": tokens,
        "cpu_seconds": {name: row(own) for name, own in cpu.items()},
        "wall_seconds": {name: row(own) for name, own in wall.items()},
        "tokens_a_second": {name: row([n * length / s for s in own]) for name, own in cpu.items()},
    }  # fmt: skip


def table(head: str, found: dict) -> str:
    """One kind of search as text, a contender a line."""
    titles = ("CPU s (range)", "tokens/s", "2 threads, s", "same tokens")
    lines = [head, f"  {'':22}{titles[0]:>28}{titles[1]:>10}{titles[2]:>14}{titles[3]:>14}"]
    for name, own in found["cpu_seconds"].items():
        cell = "{median:.4f} ({least:.4f}–{most:.4f})".format(**own)
        speed = found["tokens_a_second"][name]["median"]
        wall = found["wall_seconds"].get(name)
        shown = f"{wall['median']:.4f}" if wall else ""
        same = "{same}+{ties} of {sentences}".format(**found["outputs"][name])
        lines.append(f"  {name:22}{cell:>28}{speed:>10.0f}{shown:>14}{same:>14}")
    return "\n".join(lines)


# -- lengths of real news ----------------------------------------------------------


@contextmanager
def own_limits(sentences: Sequence[Sequence[int]], lengths: Sequence[int]) -> Iterator[None]:
    """In this block a search writes so many tokens for each sentence."""
    known = {(*ids, END): length for ids, length in zip(sentences, lengths, strict=True)}

    def limits(src_ids, max_length):
        rows = ((src_ids[i], src_ids[i] != PAD) for i in range(len(src_ids)))
        found = [known[tuple(ids[real].tolist())] for ids, real in rows]
        return torch.tensor(found, device=src_ids.device)

    with patch.object(decoding, "limits", limits):
        yield


def news(size: Size, n: int, most: int) -> tuple[list[list[int]], list[int]]:
    """Sources of random ids as long as n of real news, and the lengths of
    their targets with `end`; none above `most`."""
    told = json.loads(LENGTHS.read_text(encoding="utf-8"))
    pairs = [pair for pair in zip(told["source"], told["target"], strict=True) if max(pair) <= most]
    chosen = random.Random(0).sample(pairs, n)
    sentences = peers.random_sentences(size, [source for source, _ in chosen])
    return sentences, [target + 1 for _, target in chosen]


def mix(plan: Plan) -> tuple[dict, dict]:
    """Real lengths, many sentences at a time against one at a time."""
    found, rows = {}, {}
    for key, size in plan.sizes.items():
        n, together = (6, 3) if plan.smoke else (MIX[key], TOGETHER)
        sentences, lengths = news(size, n, 12 if plan.smoke else 1000)
        order = sorted(range(n), key=lambda i: -len(sentences[i]))
        decoder = peers.PackageDecoder(peers.endless_model(size))
        groups = [[sentences[i] for i in order[j : j + together]] for j in range(0, n, together)]
        whole = sum(len(ids) + 1 for ids in sentences)
        jobs = {
            "one at a time": [decoder.job([ids]) for ids in sentences],
            f"{together} at a time": [decoder.job(group) for group in groups],
        }
        turns = {name: lambda some=some: [job() for job in some] for name, some in jobs.items()}
        with own_limits(sentences, lengths), threads(1):
            outputs = [len(ids) for job in jobs["one at a time"][:3] for ids in decoder.ids(job())]
            if outputs != lengths[:3]:
                raise AssertionError(f"{outputs} tokens were written, not {lengths[:3]}")
            jobs[f"{together} at a time"][-1]()  # warms up
            seconds = interleave(turns, plan.rounds(3 if key == "tiny" else 2), warm=False)
        alone, grouped = seconds.values()
        rows[f"mix/{key}"] = ratios(alone, grouped)
        speeds = {name: row([sum(lengths) / s for s in own]) for name, own in seconds.items()}
        found[key] = {
            "sentences": n, "source_tokens": whole, "target_tokens": sum(lengths),
            "cpu_seconds": {name: row(own) for name, own in seconds.items()},
            "tokens_a_second": speeds,
        }  # fmt: skip
        shown = ", ".join(f"{name} {own['median']:.0f}" for name, own in speeds.items())
        print(f"mix, {key}, tokens a second: {shown}", flush=True)
    return found, rows


# -- growth ------------------------------------------------------------------------


@contextmanager
def step_ends(times: list[float]) -> Iterator[None]:
    """In this block every step of a greedy search notes when it is over."""
    step = decoding.GreedySearch.step

    def timed(self, *arguments, **options):
        found = step(self, *arguments, **options)
        times.append(time.process_time())
        return found

    with patch.object(decoding.GreedySearch, "step", timed):
        yield


def token_seconds(job: Callable, shown: Sequence[int], window: int) -> list[float]:
    """What a token took, of the last few up to each of some lengths."""
    times = [time.process_time()]
    with step_ends(times):
        job()
    steps = [after - before for before, after in zip(times, times[1:])]
    return [median(steps[length - window : length]) for length in shown]


def length(plan: Plan) -> tuple[dict, dict]:
    """Seconds of a step after more and more tokens."""
    found, rows = {}, {}
    shown, window = ((4, 8, 16), 2) if plan.smoke else (LENGTHS_SHOWN, WINDOW)
    for key, size in plan.sizes.items():
        decoder = peers.PackageDecoder(peers.endless_model(size))
        found[key] = {"lengths": list(shown)}
        for n in (1,) if key == "base" else (1, 32):
            sentences = peers.random_sentences(size, [SOURCE - 1] * n)
            job = decoder.job(sentences, max_length=shown[-1])
            with threads(1):
                decoder.job(sentences, max_length=4)()  # warms up
                taken = [token_seconds(job, shown, window) for _ in range(plan.rounds(3))]
            found[key][f"{n} at a time"] = [row(own) for own in zip(*taken)]
            ratio = row([own[-1] / own[0] for own in taken])
            rows[f"length/{key}/{n}"] = ratio
            print(f"length, {key}, {n} at a time: {ratio['median']:.2f}", flush=True)
    return found, rows


def batch(plan: Plan) -> tuple[dict, dict]:
    """Greedy tokens a second for more and more sentences at a time."""
    found = {}
    sizes, tokens = ((1, 2), 4) if plan.smoke else (BATCHES, TARGET)
    for key, size in plan.sizes.items():
        them = engines(peers.endless_model(size), int8=False)
        curves: dict[str, list] = {name: [] for name in them}
        for n in sizes:
            sentences = peers.random_sentences(size, [SOURCE - 1] * n)
            jobs = {name: one.job(sentences, 1, tokens) for name, one in them.items()}
            with threads(1):
                seconds = interleave(jobs, plan.rounds(3 if key == "tiny" else 1), warm=n == 1)
            for name, own in seconds.items():
                curves[name].append(row([n * tokens / s for s in own]))
        found[key] = {"sentences": list(sizes), "tokens": tokens, "tokens_a_second": curves}
        print(f"batch, {key}: done", flush=True)
    return found, {}


# -- all of it ---------------------------------------------------------------------

STUDIES = {"fixed": fixed, "mix": mix, "length": length, "batch": batch}


if __name__ == "__main__":
    main("decode", __doc__, STUDIES)
