import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from tqdm import tqdm

from transformer18.batching import Batch
from transformer18.loss import label_smoothed_loss
from transformer18.schedule import learning_rate


# ---
@dataclass(frozen=True)
class Recipe:
    """How to train; the defaults are the paper's (section 5).

    steps        updates of the weights
    warmup       steps of rising learning rate (5.3)
    factor       times the paper's learning rate
    smoothing    label smoothing (5.4)
    clip         largest norm of all gradients together; None: any
    eval_every   steps between two evaluations
    stop_at      stop once the evaluation has reached this
    """

    steps: int = 100_000
    warmup: int = 4000
    factor: float = 1.0
    smoothing: float = 0.1
    clip: float | None = None
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    eval_every: int = 1000
    stop_at: float = math.inf


# ---
def train_step(model, batch: Batch, optimizer, recipe: Recipe) -> float:
    """One update of the weights; the loss per token without smoothing."""
    model.train()
    features = model.features(batch.src_ids, batch.tgt_ids)
    loss, nll = label_smoothed_loss(
        features, model.output_weight, batch.labels,
        smoothing=recipe.smoothing,
    )
    n_tokens = batch.n_tokens
    (loss / n_tokens).backward()
    if recipe.clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    optimizer.step()
    optimizer.zero_grad()
    return nll.item() / n_tokens


# ---
@torch.no_grad()
def mean_loss(model, batches: Iterable[Batch]) -> float:
    """Negative log-likelihood per target token in nats, no smoothing.

    Its exponential is the perplexity. The model is left in eval mode.
    """
    model.eval()
    total, n_tokens = 0.0, 0
    for batch in batches:
        features = model.features(batch.src_ids, batch.tgt_ids)
        _, nll = label_smoothed_loss(
            features, model.output_weight, batch.labels, smoothing=0.0
        )
        total, n_tokens = total + nll.item(), n_tokens + batch.n_tokens
    if n_tokens == 0:
        raise ValueError("no tokens to evaluate on: give some batches")
    return total / n_tokens


# ---
def make_optimizer(model: nn.Module, recipe: Recipe):
    """Adam with the paper's constants (5.3), in one fused kernel."""
    return torch.optim.Adam(
        model.parameters(), lr=0.0, betas=recipe.betas, eps=recipe.eps,
        fused=True,
    )


def set_rate(optimizer, model, recipe: Recipe, step: int) -> float:
    """Give the optimiser the learning rate of this step; return it."""
    rate = learning_rate(
        step, d_model=model.config.d_model, warmup=recipe.warmup,
        factor=recipe.factor,
    )
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate


# ---
def endless(
    batches: Callable[[int], Iterable[Batch]], steps: int
) -> Iterator[tuple[int, int, Batch]]:
    """(step, epoch, batch) for steps 1 … `steps`, epoch after epoch."""
    step = 0
    for epoch in itertools.count():
        before = step
        for batch in batches(epoch):
            if step == steps:
                return
            step += 1
            yield step, epoch, batch
        if step == before:
            raise ValueError(
                f"epoch {epoch} has no batches: give some training pairs"
            )


# ---
class Progress:
    """What has happened since the start and since the last record."""

    def __init__(self):
        self.started = time.perf_counter()
        self.tokens = 0
        self.losses: list[float] = []

    def add(self, nll: float, n_tokens: int, step: int) -> None:
        if not math.isfinite(nll):
            raise FloatingPointError(
                f"the loss is {nll} at step {step}: lower the learning "
                "rate (factor) or train with a longer warmup"
            )
        self.tokens += n_tokens
        self.losses.append(nll)

    def record(self, step: int, epoch: int, rate: float) -> dict:
        nll = sum(self.losses) / len(self.losses)
        self.losses.clear()
        return {
            "step": step,
            "epoch": epoch,
            "seconds": time.perf_counter() - self.started,
            "tokens": self.tokens,
            "learning_rate": rate,
            "nll": nll,
        }


# ---
class Loop:
    """The state of one training run: what `fit` does at each step."""

    def __init__(self, model, recipe, evaluate=None, on_record=None):
        self.model, self.recipe = model, recipe
        self.evaluate, self.on_record = evaluate, on_record
        self.optimizer = make_optimizer(model, recipe)
        self.device = next(model.parameters()).device
        self.progress = Progress()
        self.history: list[dict] = []
        self.best = -math.inf
        self.rate = 0.0

    def step(self, step: int, batch: Batch) -> None:
        """Update the weights once."""
        model, optimizer, recipe = self.model, self.optimizer, self.recipe
        self.rate = set_rate(optimizer, model, recipe, step)
        batch = batch.to(self.device)
        nll = train_step(model, batch, optimizer, recipe)
        self.progress.add(nll, batch.n_tokens, step)

    def look(self, step: int, epoch: int) -> dict:
        """Evaluate, keep a record; the numbers that the bar shows."""
        record = self.progress.record(step, epoch, self.rate)
        shown = {"nll": f"{record['nll']:.2f}"}
        if self.evaluate:
            metric = float(self.evaluate(self.model))
            record |= {"metric": metric, "best": metric > self.best}
            self.best = max(self.best, metric)
            shown["metric"] = f"{metric:.3f}"
        if self.on_record:
            self.on_record(self.model, record)
        self.history.append(record)
        return shown


# ---
def fit(
    model, batches: Callable[[int], Iterable[Batch]], recipe: Recipe, *,
    evaluate: Callable[[nn.Module], float] | None = None,
    on_record: Callable[[nn.Module, dict], None] | None = None,
    progress: bool = True,
) -> list[dict]:
    """Train a model; return a record for every evaluation.

    model      anything with `features(src_ids, tgt_ids)` -> (B, T, D),
               `output_weight` (V, D) and `config.d_model`
    batches    epoch number -> the batches of that epoch
    evaluate   model -> a number, larger is better
    on_record  called with (model, record) after every evaluation
    progress   show a bar

    A record holds step, epoch, seconds, tokens (target tokens so far),
    learning_rate, nll (nats per token since the last record) and, with
    evaluate, metric and best (is it the best so far?). The model ends
    with the weights of the last step. All randomness is torch's: seed it.

    Raises ValueError for an epoch without batches, FloatingPointError
    when the loss is no longer a number.
    """
    loop = Loop(model, recipe, evaluate, on_record)
    bar = tqdm(total=recipe.steps, disable=not progress, unit="step")
    with bar:
        for step, epoch, batch in endless(batches, recipe.steps):
            loop.step(step, batch)
            bar.update()
            if step % recipe.eval_every == 0 or step == recipe.steps:
                bar.set_postfix(loop.look(step, epoch))
                if loop.best >= recipe.stop_at:
                    break
    return loop.history
