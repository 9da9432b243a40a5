#!/usr/bin/env python3
"""Train `tiny` and `base` on one GPU and say how fast and how well.

    python benchmarks/gpu_full_model.py FOLDER [--minutes 9] [--data gpu/data]
    python benchmarks/gpu_full_model.py FOLDER --runs tatoeba
    python benchmarks/gpu_full_model.py --dry-run FOLDER

Two runs share the time: `tiny` on Multi30k until it no longer gets better,
then `base` on Tatoeba until the time is up, both in bfloat16, in buckets, each
shape compiled for itself. Both are runs of the command line, so they leave
checkpoints, and the same command goes on with them. Compiling takes minutes
the first time; FOLDER/compiled keeps the programs for the next.

FOLDER/report.json then holds, for each run:

    shapes, padding          of its batches: [rows, columns, batches an epoch]
    tokens_a_second          target tokens that are not padding: the median of
                             the stretches between two looks at dev, without the
                             looks, checkpoints, and the first stretch, which
                             compiles
    stretches                of which it is the median; 0: there was but the first
    tokens_a_second_in_all   the same with looks and checkpoints
    share_of_matmul_rate     operations of these tokens a second, as a share of
                             the rate of large matrix products (`matmul_flops`)
    ceiling_of_matmul_rate   an estimate of the most that share can be: the
                             run's own products as fast as they are here alone,
                             the numbers that must be moved besides as fast as
                             memory copies, nothing else, and its padding
    peak_bytes, dev_nll, scores

A dry run does all of it on a CPU with small made-up data and smaller batches,
and compiles nothing.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import torch

from transformer18.config import TransformerConfig, parameter_budget
from transformer18.devices import best_device
from transformer18.mini_german import split
from transformer18.runs import read_json, read_metrics, write_json

FAST = ["--precision", "bfloat16", "--buckets", "16"]  # and --compile, on a GPU
RUNS = {  # name: options of `train`, share of the time, how BLEU is counted
    "multi30k": (
        ["--preset", "tiny", "--vocab-size", "10000", "--max-tokens", "8192",
         "--warmup", "2000", "--peak", "0.005", "--steps", "8000", "--eval-every", "120",
         "--patience", "10", "--average", "10", *FAST],
        0.4, ["--beam", "5", "--tokenize", "none"],
    ),
    "tatoeba": (
        ["--preset", "base", "--vocab-size", "16000", "--max-tokens", "25000",
         "--warmup", "4000", "--steps", "100000", "--eval-every", "500",
         "--average", "5", *FAST],
        0.6, ["--beam", "4"],
    ),
}  # fmt: skip
DRY = [
    "--vocab-size", "320", "--max-tokens", "300", "--warmup", "10", "--steps", "12",
    "--eval-every", "4", "--average", "2", "--peak", "0.002", "--preset", "mini",
]  # fmt: skip
TO_SCORE = 60  # seconds kept back for the translation of a test set


def seconds_of(work: Callable[[], torch.Tensor], at_least: float = 0.1) -> float:
    """Seconds that a piece of work on the device takes, many times over."""
    work().flatten()[0].item()  # waits for the device
    done, began = 0, time.perf_counter()
    while not done or time.perf_counter() - began < at_least:
        for _ in range(10):
            result = work()
        result.flatten()[0].item()
        done += 10
    return (time.perf_counter() - began) / done


def rates(device: str, gpu: bool) -> tuple[float, float]:
    """FLOP/s of large matrix products; bytes a second that a copy moves,
    those read and those written."""
    n, dtype = (8192, torch.bfloat16) if gpu else (512, torch.float32)
    a = torch.randn(n, n, device=device).to(dtype)
    product = seconds_of(lambda: a @ a, 2.0 if gpu else 0.2)
    x = torch.zeros(2**28 if gpu else 2**24, device=device)
    y = torch.zeros_like(x)
    copy = seconds_of(lambda: y.copy_(x), 0.5 if gpu else 0.1)
    return 2 * n**3 / product, 2 * x.nbytes / copy


def flops(config: TransformerConfig, sources: float) -> float:
    """Operations to train on a target token and so many source tokens,
    without attention's own products and look-ups of embeddings (chapter 17).
    Keys and values of cross-attention are made from source tokens."""
    parts = parameter_budget(config)
    cross = parts["decoder cross-attention"]
    source = parts["encoder attention"] + parts["encoder feed-forward"] + cross / 2
    target = parts["decoder self-attention"] + parts["decoder feed-forward"] + cross / 2
    target += config.output_size * config.d_model
    return 6 * (source * sources + target)


def products(config: TransformerConfig) -> list[tuple[int, int, int]]:
    """(inputs, outputs, how many) of the matrices that a token meets, source
    or target."""
    D, F, N = config.d_model, config.d_ff, config.n_layers
    attentions = [(D, 3 * D, 2 * N), (D, 2 * D, N), (D, D, 4 * N)]  # q k v; k v; q, out
    return [*attentions, (D, F, 2 * N), (F, D, 2 * N), (D, config.output_size, 1)]


def seconds_of_products(config, n: int, device: str, dtype: torch.dtype) -> float:
    """Seconds for the products of n source and n target tokens, forward and
    backward, each with nothing else around it."""
    total = 0.0
    for D, F, count in products(config):
        x = torch.randn(n, D, device=device).to(dtype)
        y = torch.randn(n, F, device=device).to(dtype)
        w = torch.randn(F, D, device=device).to(dtype)
        works = (lambda: x @ w.T, lambda: y @ w, lambda: y.T @ x)  # noqa: B023
        total += count * sum(seconds_of(work, 0.05) for work in works)
    return total


def bytes_moved(config: TransformerConfig, n: int) -> float:
    """Bytes that an update of n source and n target tokens must read and
    write outside its products, if every pass between two of them is one program.

    Products read and write 16 bits, residuals are in 32. A residual with dropout
    and norm: 12 bytes a feature forward (reads both sides, writes the sum in both
    precisions) and 16 back. An attention: its four tensors forward, eight back.
    ReLU with bias: reads and writes, twice back. The loss: logits read twice, their
    slope in 32 bits written, read, written in 16. Adam reads four numbers of
    32 bits a parameter, writes three, and a copy in 16 bits is made.
    """
    D, F, N = config.d_model, config.d_ff, config.n_layers
    a_token = 5 * N * 28 * D + 3 * N * 24 * D + 2 * N * 10 * F + 14 * config.output_size
    return n * a_token + 34 * sum(parameter_budget(config).values())


def ceiling(config, batches: dict, rate: float, memory: float, device: str, dtype) -> float:
    """The most that the share of the matrix-product rate can be, estimated.

    batches  shapes and padding, as a run describes them
    """
    n = max(rows * columns for rows, columns, _ in batches["shapes"])
    seconds = seconds_of_products(config, n, device, dtype)
    seconds += bytes_moved(config, n) / memory
    source, target = (1 - batches["padding"][side] for side in ("source", "target"))
    return n * target * flops(config, source / target) / seconds / rate


def made_up(folder: Path) -> None:
    """Small data of the same layout, for a dry run."""
    train, dev, test = split(300, 30, 30, seed=0)
    for name in ("multi30k", "tatoeba"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    parts = (("train", train), ("valid", dev), ("test_2016_flickr", test))
    for part, pairs in parts:
        for side, language in enumerate(("en", "de")):
            text = "".join(pair[side] + "\n" for pair in pairs)
            (folder / "multi30k" / f"{part}.{language}").write_text(text)
    for part, pairs in (("train", train), ("dev", dev), ("test", test)):
        text = "".join(f"{source}\t{target}\n" for source, target in pairs)
        (folder / "tatoeba" / f"{part}.tsv").write_text(text)


def find(folder: Path, name: str) -> str:
    """A file, or the same with .gz. Exits if neither is there."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return str(path)
    sys.exit(f"no file {folder / name}, nor with .gz: lay the data there")


def files(data: Path, run: str, part: str) -> list[str]:
    """The files of a part of a corpus: two, or one TSV."""
    if run == "tatoeba":
        return [find(data / run, f"{part}.tsv")]
    part = {"dev": "valid", "test": "test_2016_flickr"}.get(part, part)
    return [find(data / run, f"{part}.{language}") for language in ("en", "de")]


def call(*arguments: str, limit: float | None = None) -> str:
    """Run the command line; after `limit` seconds ask it to stop."""
    command = [sys.executable, "-m", "transformer18", *arguments]
    source = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": source},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    stopped = False
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        stopped = True
        process.send_signal(signal.SIGTERM)  # it writes a checkpoint and leaves
        output, _ = process.communicate()
    print(output, flush=True)
    if process.returncode and not stopped:
        sys.exit(f"{' '.join(command)} failed")
    return output


def pairs(name: str, values: list[str]) -> list[str]:
    return [part for value in values for part in (name, value)]


def report(folder: Path, run: str, scores: str, told: dict, device: str) -> dict:
    """What is known of a run, from what it left."""
    records, story = read_metrics(folder / run), read_json(folder / run / "run.json")
    config, batches = TransformerConfig(**story["config"]), story["batches"]
    first, last = records[0], records[-1]
    speeds = [record["tokens_a_second"] for record in records]
    speed, in_all = median(speeds[1:] or speeds), None
    if len(records) > 1:
        in_all = last["tokens"] - first["tokens"]
        in_all = round(in_all / (last["seconds"] - first["seconds"]))
    source, target = (1 - batches["padding"][side] for side in ("source", "target"))
    rate, memory = told["matmul_flops"], told["memory_bytes_a_second"]
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    most = ceiling(config, batches, rate, memory, device, dtype)
    return {
        "steps": last["step"],
        "minutes": round(last["seconds"] / 60, 2),
        "dev_nll": -max(record["metric"] for record in records),
        **batches,
        "tokens_a_second": round(speed),
        "stretches": len(records) - 1,
        "tokens_a_second_in_all": in_all,
        "share_of_matmul_rate": round(speed * flops(config, source / target) / rate, 4),
        "ceiling_of_matmul_rate": round(most, 4),
        "peak_bytes": last.get("peak_bytes"),
        "scores": dict(line.split(": ", 1) for line in scores.splitlines() if ": " in line),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="for the runs and the report")
    parser.add_argument("--data", type=Path, default=ROOT / "gpu" / "data")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--runs", nargs="+", choices=[*RUNS], default=[*RUNS])
    parser.add_argument("--dry-run", action="store_true", help="a CPU, made-up data")
    options = parser.parse_args()
    began, folder, data = time.monotonic(), options.folder, options.data
    device = best_device()
    if options.dry_run:
        data = folder / "data"
        made_up(data)
    elif device == "cpu":
        sys.exit("no GPU here: --dry-run shows that the script works")
    gpu = device.startswith("cuda")
    rate, memory = rates(device, gpu)
    path = folder / "report.json"
    told = {
        "device": torch.cuda.get_device_name() if gpu else device,
        "torch": torch.__version__, "python": platform.python_version(),
        "matmul_flops": rate, "memory_bytes_a_second": memory,
        "minutes": options.minutes,
        "runs": read_json(path)["runs"] if path.is_file() else {},
    }  # fmt: skip
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder.resolve() / "compiled"))
    chosen = {run: RUNS[run] for run in RUNS if run in options.runs}
    whole, spent = sum(share for _, share, _ in chosen.values()), 0.0
    for run, (settings, share, how) in chosen.items():
        spent += share / whole
        left = 60 * options.minutes * spent - (time.monotonic() - began) - TO_SCORE
        settings = [*settings, *DRY] if options.dry_run else [*settings, "--compile"]
        out = str(folder / run)
        if left > 0:
            call(
                "train", "--resume", "--out", out, *settings,
                *pairs("--data", files(data, run, "train")),
                *pairs("--dev", files(data, run, "dev")),
                limit=left,
            )  # fmt: skip
        if not (folder / run / "model.safetensors").is_file():
            print(f"{run}: no time for a first look at dev; start again with this folder")
            continue
        test = pairs("--data", files(data, run, "test"))
        scores = call("evaluate", "--model", out, *test, *how)
        told["runs"][run] = report(folder, run, scores, told, device)
        write_json(path, told)
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
