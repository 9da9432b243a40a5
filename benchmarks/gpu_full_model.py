#!/usr/bin/env python3
"""Train `tiny` and `base` on one GPU and say how fast and how well.

    python benchmarks/gpu_full_model.py FOLDER [--minutes 9] [--data gpu/data]
    python benchmarks/gpu_full_model.py --dry-run FOLDER

Two runs share the time: `tiny` on Multi30k until it no longer gets better,
then `base` in bfloat16 on Tatoeba until the time is up. Both are runs of the
command line, so they leave checkpoints, and the same command goes on with
them. FOLDER/report.json then holds, for each, tokens a second, the share of
the card's measured matrix-product rate, peak memory and BLEU. A dry run does
all of it on a CPU with small made-up data and smaller batches.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import torch

from transformer18.config import TransformerConfig, parameter_budget
from transformer18.devices import best_device
from transformer18.mini_german import split
from transformer18.runs import read_json, read_metrics, write_json

BF16 = ["--precision", "bfloat16"]
RUNS = {  # name: options of `train`, share of the time, how BLEU is counted
    "multi30k": (
        ["--preset", "tiny", "--vocab-size", "10000", "--max-tokens", "8192",
         "--warmup", "2000", "--peak", "0.005", "--steps", "8000", "--eval-every", "60",
         "--patience", "10", "--average", "10", *BF16],
        0.35, ["--beam", "5", "--tokenize", "none"],
    ),
    "tatoeba": (
        ["--preset", "base", "--vocab-size", "16000", "--max-tokens", "25000",
         "--warmup", "4000", "--steps", "100000", "--eval-every", "200",
         "--average", "5", *BF16],
        0.65, ["--beam", "4"],
    ),
}  # fmt: skip
DRY = [
    "--vocab-size", "320", "--max-tokens", "300", "--warmup", "10", "--steps", "12",
    "--eval-every", "4", "--average", "2", "--peak", "0.002", "--preset", "mini",
]  # fmt: skip
TO_SCORE = 60  # seconds kept back for the translation of a test set


def matmul_rate(device: str, n: int, dtype: torch.dtype, seconds: float = 1.0) -> float:
    """FLOP/s of products of two (n, n) matrices."""
    a = torch.randn(n, n, device=device).to(dtype)
    (a @ a).sum().item()
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(10):
            product = a @ a
        product.sum().item()  # waits for the device
        done += 10
    return done * 2 * n**3 / (time.perf_counter() - began)


def flops_a_pair(config: TransformerConfig) -> float:
    """Operations to train on one source and one target token, without
    attention's own products and look-ups of embeddings (chapter 17)."""
    parts = parameter_budget(config)
    matrices = sum(n for name, n in parts.items() if "norm" not in name)
    matrices -= parts["embeddings"] + parts["output layer"]
    return 6 * (matrices + config.output_size * config.d_model)


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


def report(folder: Path, run: str, rate: float, scores: str) -> dict:
    """What is known of a run, from what it left."""
    records = read_metrics(folder / run)
    config = TransformerConfig(**read_json(folder / run / "run.json")["config"])
    first, last = records[0], records[-1]
    seconds = last["seconds"] - (first["seconds"] if len(records) > 1 else 0)
    tokens = last["tokens"] - (first["tokens"] if len(records) > 1 else 0)
    speed = tokens / seconds  # the first stretch warms up; looks at dev count
    return {
        "steps": last["step"],
        "minutes": round(last["seconds"] / 60, 2),
        "dev_nll": -max(record["metric"] for record in records),
        "tokens_a_second": round(speed),
        "share_of_matmul_rate": round(speed * flops_a_pair(config) / rate, 4),
        "peak_bytes": last.get("peak_bytes"),
        "scores": dict(line.split(": ", 1) for line in scores.splitlines() if ": " in line),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="for the runs and the report")
    parser.add_argument("--data", type=Path, default=ROOT / "gpu" / "data")
    parser.add_argument("--minutes", type=float, default=9.0)
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
    n, dtype = (8192, torch.bfloat16) if gpu else (512, torch.float32)
    rate = matmul_rate(device, n, dtype, seconds=2.0 if gpu else 0.2)
    told = {
        "device": torch.cuda.get_device_name() if gpu else device,
        "torch": torch.__version__, "python": platform.python_version(),
        "matmul_flops": rate, "minutes": options.minutes, "runs": {},
    }  # fmt: skip
    spent = 0.0
    for run, (settings, share, how) in RUNS.items():
        spent += share
        left = 60 * options.minutes * spent - (time.monotonic() - began) - TO_SCORE
        settings = [*settings, *DRY] if options.dry_run else settings
        out = str(folder / run)
        if left > 0:
            call(
                "train", "--resume", "--out", out, *settings,
                *pairs("--data", files(data, run, "train")),
                *pairs("--dev", files(data, run, "dev")),
                limit=left,
            )  # fmt: skip
        test = pairs("--data", files(data, run, "test"))
        scores = call("evaluate", "--model", out, *test, *how)
        told["runs"][run] = report(folder, run, rate, scores)
        write_json(folder / "report.json", told)
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
