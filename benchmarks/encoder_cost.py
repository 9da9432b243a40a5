#!/usr/bin/env python3
"""What one encoder block takes in time, by tokens and by width (chapter 4).

    python benchmarks/encoder_cost.py            both studies, a few minutes
    python benchmarks/encoder_cost.py --smoke    seconds: does it run?
    python benchmarks/encoder_cost.py --out other.json

    tokens  one sentence of more and more tokens, at the width of `base`
    width   512 tokens of greater and greater width, the inner width four
            times as wide

Forward and backward of one block made of torch's parts, in two ways: by the
fused kernel, and with the weights of attention stored. Both take one turn per
round, in an order that moves on by one from round to round. Kept are the CPU
seconds of one thread: the median of the rounds, the lowest and the highest.
The load of the machine is written beside them: run it where nothing else runs.
Results go to benchmarks/results/encoder_cost.json, all of them or none.
"""

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.attention_times import Study, run_studies
from transformer18.config import TransformerConfig
from transformer18.encoder import EncoderBlock, torch_parts

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "results" / "encoder_cost.json"
TOKENS, WIDTH, HEADS = 512, 512, 8  # what stands still while the other grows
SIZES = {"tokens": (64, 128, 256, 512, 1024, 2048), "width": (64, 128, 256, 512, 1024)}
SMOKE = {"tokens": (4, 8), "width": (8, 16)}
ROUNDS, REPEATS = 5, 1  # a turn is so many repeats; one more round warms up


def turns(tokens: int, width: int) -> dict[str, Callable]:
    """Both ways through one block, forward and backward."""
    torch.manual_seed(0)
    config = TransformerConfig(1, d_model=width, n_heads=HEADS, d_ff=4 * width)
    block = EncoderBlock(config, torch_parts()).eval()  # without dropout
    x = torch.randn(1, tokens, width, requires_grad=True)

    def fused():
        block(x).sum().backward()

    def stored():
        with sdpa_kernel(SDPBackend.MATH):
            fused()

    return {"fused kernel": fused, "weights stored": stored}


def main() -> None:
    studies = {
        "tokens": Study(lambda n: turns(n, WIDTH), SIZES["tokens"], SMOKE["tokens"], "sizes"),
        "width": Study(lambda n: turns(TOKENS, n), SIZES["width"], SMOKE["width"], "sizes"),
    }
    run_studies(
        __doc__, OUT, studies, ROUNDS, REPEATS, tokens=TOKENS, width=WIDTH, heads=HEADS
    )


if __name__ == "__main__":
    main()
