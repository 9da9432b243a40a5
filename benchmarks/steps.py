#!/usr/bin/env python3
"""What each measure for speed is worth: taken back alone, all others kept.

    python benchmarks/steps.py                 all, some ten minutes
    python benchmarks/steps.py --sizes tiny    one size
    python benchmarks/steps.py --smoke         seconds: does it run?

    training   a step of the package on one batch, and the same with one
               thing done the plain way
    decoding   64 tokens for 1 and for 32 sentences of 32, with `pack` and
               `search_all`, and the same with one thing taken back; a beam
               of 4 for 16 sentences
    profile    where the time of a training step and of greedy decoding goes,
               with everything taken back and with nothing

A number says how many times as long it takes without the measure: 1.00 is
worth nothing. What a thing was before is a few lines here, put in its place
while it is timed; the package itself has one form only. All take one turn per
round, in an order that moves on by one from round to round; counted are the
CPU seconds of one thread. Results go to benchmarks/results/steps.json.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks import peers
from benchmarks.measuring import Plan, interleave, main, ratios, row, significant, threads
from benchmarks.peers import Size
from transformer18 import decoding, multi_head, packing
from transformer18.attention import attention
from transformer18.build import book_parts, make_transformer
from transformer18.decoder import greedy
from transformer18.decoding import search_all
from transformer18.feed_forward import FeedForward
from transformer18.masking import KeyValueStore
from transformer18.multi_head import MultiHeadAttention, Projections
from transformer18.packing import pack
from transformer18.scaled_dot_product import scaled_dot_product
from transformer18.transformer import Transformer
from transformer18.vocabulary import END, pad

ALL = "everything as it is"
PLAIN = "everything taken back"
ROUNDS = {"tiny": 7, "base": 3}
SOURCE, TARGET = 31, 64  # tokens, the source's `end` not counted


# -- what things were before: training -----------------------------------------


class ThreeProducts(Projections):
    """Q, K and V each by a product of its own."""

    def forward(self, query, key, value):
        k, v = self.heads(key, 1, 2)[0], self.heads(value, 2, 3)[0]
        return self.query(query), k, v


def three_products(config) -> MultiHeadAttention:
    module = MultiHeadAttention(config.d_model, config.n_heads)
    module.projections = ThreeProducts(config.d_model, config.n_heads)
    return module


class DroppedFeedForward(FeedForward):
    """Dropout also on the inner features, as torch.nn has it."""

    def __init__(self, d_model: int, d_ff: int, dropout: float):
        super().__init__(d_model, d_ff)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.contract(self.dropout(self.expand(x).relu()))


def written_out(query, key, value, *, mask=None, need_weights=False):
    """Attention that holds its weights."""
    out = attention(query, key, value, score=scaled_dot_product, mask=mask)
    return out if need_weights else out[0]


def with_dropout_inside(rate: float) -> Callable:
    """Attention with dropout on its weights, by the library's own call."""

    def call(query, key, value, *, mask=None, need_weights=False):
        return F.scaled_dot_product_attention(query, key, value, mask, dropout_p=rate)

    return call


@contextmanager
def attention_is(form: Callable) -> Iterator[None]:
    """`MultiHeadAttention` computes with this form in the block."""
    with patch.object(multi_head, "scaled_dot_product_attention", form):
        yield


def trainers(size: Size) -> dict[str, Callable]:
    """A training step on one batch: as it is, and each thing taken back."""
    torch.manual_seed(0)
    batch, config = size.ids(), size.config(0.1)

    def package(parts=None, optimizer=None):
        model = make_transformer(config, parts)
        return peers.package_step(model, optimizer and optimizer(model))

    def all_logits(optimizer=None, parts=None):
        model = make_transformer(config, parts)
        adam = optimizer or (lambda m: torch.optim.Adam(m.parameters(), lr=1e-4, fused=True))
        return peers.plain_step(model, peers.nn_loss(model), adam(model))

    def inside(parts):
        return replace(
            parts, feed_forward=lambda c: DroppedFeedForward(c.d_model, c.d_ff, c.dropout)
        )

    apart = replace(book_parts(), attention=three_products)
    forms = {
        "loss in chunks": (all_logits(), None),
        "Adam in one kernel": (package(optimizer=peers.adam), None),
        "one product for Q, K and V": (package(apart), None),
        "fused attention": (package(), written_out),
        "dropout only where the paper has it": (
            package(inside(book_parts())), with_dropout_inside(0.1),
        ),
    }  # fmt: skip
    as_it_is = package()
    turns: dict[str, Callable] = {ALL: lambda: as_it_is(batch)}
    for name, (step, form) in forms.items():

        def turn(step=step, form=form):
            with ExitStack() as stack:
                if form:
                    stack.enter_context(attention_is(form))
                step(batch)

        turns[name] = turn
    everything = all_logits(peers.adam, inside(apart))

    def all_back():
        with attention_is(dropped_and_written_out):
            everything(batch)

    return turns | {PLAIN: all_back}


def dropped_and_written_out(query, key, value, *, mask=None, need_weights=False):
    """Attention that holds its weights and drops some of them."""
    scores = scaled_dot_product(query, key)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return F.dropout(scores.softmax(-1), 0.1) @ value


# -- what things were before: decoding -----------------------------------------


def modules_called(model) -> Transformer:
    """A packed model whose steps go through its modules."""
    packed = pack(model)
    packed.__class__ = Transformer
    return packed


@contextmanager
def no_layout() -> Iterator[None]:
    with patch.object(packing, "LARGE", 10**12):
        yield


@torch.inference_mode()
def without_cache(model, sentences, length: int):
    """Everything anew for every token."""
    src_ids = pad([[*ids, END] for ids in sentences])
    memory = model.encode(src_ids)
    return greedy(
        lambda ids: model.project(model.decode(ids, memory)[:, -1]), len(sentences), length
    )


def decoders(model, sentences, beam: int, length: int, cache: bool) -> dict[str, Callable]:
    """Decoding as it is, and with each thing taken back."""
    packed, modules = pack(model), modules_called(model)
    with no_layout():
        as_they_lie = pack(model)
    options = dict(beam=beam, alpha=0, max_length=length, scores=False)

    def search(model=packed, patches=(), **changes):
        def turn():
            with ExitStack() as stack:
                for owner, name, value in patches:
                    stack.enter_context(patch.object(owner, name, value))
                search_all(model, sentences, **options | changes)

        return turn

    room = (KeyValueStore, "STEP", 10**6)
    argmax = (decoding, "likeliest", lambda logits: logits.argmax(dim=1))
    topk = (decoding, "top_tokens", lambda logits, m: logits.topk(m))
    turns = {
        ALL: search(),
        "weights laid out for few rows": search(as_they_lie),
        "single steps recorded": search(modules),
        "room for 16 tokens at a time": search(patches=[room]),
    }
    if beam == 1:
        turns["the best token by numpy"] = search(patches=[argmax])
        turns["no probabilities"] = search(scores=True)
    else:
        turns["top-k in two steps"] = search(patches=[topk])
    plain = search(model, [room, argmax, topk], scores=True)
    if cache:
        turns["key/value cache"] = lambda: without_cache(packed, sentences, length)
        plain = lambda: without_cache(model, sentences, length)  # noqa: E731
    turns[PLAIN] = plain
    if sum(w.numel() >= packing.LARGE for w in model.parameters()):
        turns["8 bits, in place of 32"] = search(pack(model, int8=True))
    return turns


# -- the studies -----------------------------------------------------------------


def worth(seconds: dict[str, list[float]]) -> dict[str, dict]:
    """How many times as long as with everything, by what is missing."""
    return {name: ratios(own, seconds[ALL]) for name, own in seconds.items() if name != ALL}


def training(plan: Plan) -> tuple[dict, dict]:
    found, rows = {}, {}
    for key, size in plan.sizes.items():
        with threads(1):
            seconds = interleave(trainers(size), plan.rounds(ROUNDS[key]))
        found[key] = {"cpu_seconds": {n: row(own) for n, own in seconds.items()}}
        rows |= {f"training/{key}/{name}": own for name, own in worth(seconds).items()}
    return found, rows


def decoding_study(plan: Plan) -> tuple[dict, dict]:
    found, rows = {}, {}
    for key, size in plan.sizes.items():
        model, found[key] = peers.endless_model(size), {}
        for n, beam in ((1, 1), (32, 1), (16, 4)):
            if plan.smoke:
                n = min(n, 2)
            length = 6 if plan.smoke else TARGET
            lengths = [5 if plan.smoke else SOURCE] * n
            sentences = peers.random_sentences(size, lengths)
            # without a cache, base would take minutes for many sentences
            cache = beam == 1 and (key == "tiny" or n == 1)
            with threads(1):
                turns = decoders(model, sentences, beam, length, cache)
                seconds = interleave(turns, plan.rounds(ROUNDS[key]))
            what = f"{key}/{n} × {beam}"
            found[key][f"{n} × {beam}"] = {n: row(own) for n, own in seconds.items()}
            rows |= {f"decoding/{what}/{name}": own for name, own in worth(seconds).items()}
    return found, rows


KINDS = {  # of operations, by a part of their name
    "products": ("mm", "linear"),
    "attention": ("scaled_dot_product", "flash"),
    "dropout": ("dropout", "bernoulli"),
    "softmax and loss": ("softmax", "logsumexp", "exp", "nll", "log", "scatter", "gather"),
    "norm": ("layer_norm",),
    "Adam": ("adam", "addcdiv", "addcmul", "lerp", "sqrt"),
    "sums and other arithmetic": ("add", "sub", "mul", "div", "sum", "max", "clamp", "threshold"),
}


def kind_of(name: str) -> str:
    name = name.lower()
    matches = (kind for kind, parts in KINDS.items() if any(part in name for part in parts))
    return next(matches, "moving and the rest")


def shares(job: Callable) -> dict[str, float]:
    """Seconds by kind of operation; what is left of the time is Python."""
    job()
    began = time.process_time()
    job()
    whole = time.process_time() - began
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        began = time.process_time()
        job()
        slower = (time.process_time() - began) / whole  # for being watched
    found: dict[str, float] = {}
    for one in seen.key_averages():
        kind = kind_of(one.key)
        found[kind] = found.get(kind, 0.0) + one.self_cpu_time_total / 1e6 / max(1.0, slower)
    found["Python"] = max(0.0, whole - sum(found.values()))
    return {kind: significant(seconds, 4) for kind, seconds in found.items()}


def profiles(plan: Plan) -> tuple[dict, dict]:
    """Before and after: a training step, and decoding one and many."""
    found: dict = {}
    for key, size in plan.sizes.items():
        with threads(1):
            turns = trainers(size)
            found[f"training/{key}"] = {name: shares(turns[name]) for name in (PLAIN, ALL)}
            model = peers.endless_model(size)
            for n in (1, 2) if plan.smoke else (1, 32):
                sentences = peers.random_sentences(size, [SOURCE if not plan.smoke else 5] * n)
                turns = decoders(model, sentences, 1, 6 if plan.smoke else TARGET, cache=False)
                found[f"decoding/{key}/{n}"] = {name: shares(turns[name]) for name in (PLAIN, ALL)}
    return found, {}


STUDIES = {"training": training, "decoding": decoding_study, "profile": profiles}


if __name__ == "__main__":
    main("steps", __doc__, STUDIES)
