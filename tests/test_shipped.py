"""The model of everyday English that comes with the package."""

import json
import re
from pathlib import Path

import torch
from click.testing import CliRunner

from transformer18 import cli
from transformer18.checkpoint import read_checkpoint
from transformer18.runs import read_json, read_metrics
from transformer18.translator import MINI, PRETRAINED, SHIPPED, Translator

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "benchmarks" / "results" / "tatoeba.json"
EVERYDAY = {
    "Good morning!": "Guten Morgen!",
    "Where is the train station?": "Wo ist der Bahnhof?",
    "If it rains, we will stay at home.": "Wenn es regnet, bleiben wir zu Hause.",
    "They have gone home.": "Sie sind nach Hause gegangen.",
}


def test_small_and_whole():
    names = {path.name for path in SHIPPED.iterdir()}
    assert names == {
        "README.md", "metrics.jsonl", "model.safetensors", "run.json", "tokenizer.model",
    }  # fmt: skip
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 6_000_000
    weights, config, notes = read_checkpoint(SHIPPED / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    assert all(tensor.isfinite().all() for tensor in weights.values())
    story = read_json(SHIPPED / "run.json")
    assert story["config"] == config and story["best"]["step"] == notes["step"]
    assert read_metrics(SHIPPED)[-1]["step"] <= story["recipe"]["steps"]


def test_it_answers_everyday_english(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where there is no run of one's own
    for english, german in EVERYDAY.items():
        result = CliRunner().invoke(cli.main, ["translate", english])
        assert result.stdout == german + "\n" and str(SHIPPED) in result.stderr
    translator = Translator.load(SHIPPED)
    together = translator.translate(EVERYDAY)
    assert together == list(EVERYDAY.values())
    # any text at all: other scripts, noise, one long word
    odd = ["日本語", "🙂🙂", "x" * 500, "\u2581", "A\tB", "ÄÖÜ" * 30]
    assert len(translator.translate(odd)) == len(odd)


def test_shipped_models_have_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {path.name for path in PRETRAINED.iterdir()} == {"mini", "tiny"}
    result = CliRunner().invoke(cli.main, ["translate", "--model", "mini", "the cat sleeps"])
    assert result.stdout == "die Katze schläft\n" and str(MINI) in result.stderr
    (tmp_path / "tiny").mkdir()  # a folder of that name comes first
    result = CliRunner().invoke(cli.main, ["translate", "--model", "tiny", "Hello!"])
    assert result.exit_code == 1 and "no checkpoint tiny" in result.stderr


def test_the_record_is_of_this_model_and_the_card_says_what_it_says():
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    story = read_json(SHIPPED / "run.json")
    for key in ("seed", "config", "recipe", "best", "started", "hardware"):
        assert record[key] == story[key], key
    card = (SHIPPED / "README.md").read_text(encoding="utf-8")
    for test in record["tests"].values():
        for how in ("beam", "greedy"):
            for measure in ("bleu", "chrf"):
                assert re.search(rf"\b{test[how][measure]:.1f}\b", card), (how, measure)
        assert test["beam"]["bleu_signature"] in card
        assert f"{test['sentences']:,}" in card
    for words in ("CC BY 2.0 FR", "tatoeba.org", "manythings.org/anki", record["command"]):
        assert words in card
    assert f"{record['minutes']:.0f} minutes" in card
