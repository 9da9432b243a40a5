"""The command line as a user meets it: what it prints, where it stops."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from transformer18 import cli
from transformer18.checkpoint import read_checkpoint
from transformer18.mini_german import split
from transformer18.runs import mini_german_task, read_json, read_metrics
from transformer18.translator import (
    MINI,
    Translator,
    translation_map,
)

SENTENCE = "the old man gives the child a book"
GERMAN = "der alte Mann gibt dem Kind ein Buch"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a command in an empty folder; mini German is the default."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "SHIPPED", MINI)

    def invoke(*args, stdin=None):
        return CliRunner().invoke(cli.main, args, input=stdin)

    return invoke


def fails(result, *parts):
    """One line on stderr that says all of this, and no traceback."""
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    lines = [x for x in result.stderr.splitlines() if x[:6] != "model:"]
    assert len(lines) == 1 and lines[0].startswith("Error: ")
    for part in parts:
        assert part in lines[0]


@pytest.fixture
def own_run(run, tmp_path):
    """A run of a few steps on a few pairs."""
    (tmp_path / "p.tsv").write_text("a b\tx y\nb a\ty x\n" * 30)
    done = run(
        "train", "--data", "p.tsv", "--dev", "p.tsv", "--vocab-size", "268",
        "--steps", "3", "--out", "runs/mine",
    )
    assert done.exit_code == 0, done.output
    return tmp_path / "runs" / "mine"


def test_without_a_run_of_ones_own(run):
    result = run("translate", SENTENCE)
    assert result.stdout == GERMAN + "\n"
    assert "pretrained" in result.stderr


def test_words_lines_and_standard_input(run, tmp_path):
    assert run("translate", *SENTENCE.split()).stdout == GERMAN + "\n"
    two = f"{SENTENCE}\nthe cat sleeps\n"
    (tmp_path / "two.txt").write_text(two)
    expected = GERMAN + "\ndie Katze schläft\n"
    assert run("translate", "--file", "two.txt").stdout == expected
    assert run("translate", stdin=two).stdout == expected


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_empty_text(run, text):
    fails(run("translate", text), "empty", "write some words")


def test_nothing_at_all(run):
    fails(run("translate", stdin=""), "nothing to translate")


def test_unknown_words_are_named(run):
    result = run("translate", "the unicorn eats a pizza")
    fails(result, "sentence 1", "'unicorn', 'pizza'", "never saw")


def test_files_that_are_not_there_or_not_utf8(run, tmp_path):
    fails(run("translate", "--file", "no.txt"), "no.txt", "check the path")
    (tmp_path / "latin.txt").write_bytes("the cat\nschläft".encode("latin1"))
    fails(run("translate", "--file", "latin.txt"), "latin.txt, line 2",
          "not UTF-8")
    fails(run("evaluate", "--data", "latin.txt"), "latin.txt, line 1", "TAB")
    fails(run("train", "--data", "no.tsv"), "no.tsv")
    three = ["--data", "a", "--data", "b", "--data", "c"]
    fails(run("train", *three), "3 files", "one for each")


def test_missing_truncated_and_mixed_up_models(run, own_run):
    fails(run("translate", "--model", "nowhere", "a"), "nowhere", "no check")
    model = own_run / "model.safetensors"
    data = model.read_bytes()
    model.write_bytes(data[:-20])
    fails(run("translate", "a"), "model.safetensors is cut off", "again")
    model.write_bytes(data)
    tokenizer = own_run / "tokenizer.model"
    pieces = tokenizer.read_bytes()
    tokenizer.write_bytes(pieces[:50])
    fails(run("translate", "a"), "tokenizer.model is no sentencepiece model")
    tokenizer.unlink()
    fails(run("translate", "a"), "vocabulary.json")
    (own_run / "vocabulary.json").write_text('{"words": ["a"]}')
    fails(run("translate", "a"), "5 entries", "model 268")
    (own_run / "vocabulary.json").write_text('{"wor')
    fails(run("translate", "a"), "vocabulary.json is no vocabulary")


def test_train_on_own_text_and_use_it(run, own_run):
    names = {path.name for path in own_run.iterdir()}
    assert names == {
        "run.json", "metrics.jsonl", "model.safetensors", "tokenizer.model",
        "checkpoints", "metrics.png",
    }
    story = json.loads((own_run / "run.json").read_text())
    assert story["recipe"]["steps"] == 3 and story["seed"] == 0
    assert story["best"]["judged_by"] == "negative loss"
    lines = (own_run / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 3
    assert read_checkpoint(own_run / "model.safetensors")[1]["d_model"] == 64
    result = run("translate", "a b")
    assert result.exit_code == 0 and "runs/mine" in result.stderr
    result = run("evaluate", "--data", "p.tsv")
    assert "sentences: 60" in result.stdout and "version:" in result.stdout


def test_a_run_is_never_overwritten(run, own_run):
    before = {p: p.read_bytes() for p in own_run.rglob("*.*")}
    again = run("train", "--data", "p.tsv", "--vocab-size", "268",
                "--steps", "1", "--out", "runs/mine")
    fails(again, "runs/mine", "not empty", "another folder")
    assert before == {p: p.read_bytes() for p in own_run.rglob("*.*")}


def test_text_that_does_not_fit(run, tmp_path):
    (tmp_path / "p.tsv").write_text("a b\tx y\nb a\ty x\n" * 60)
    big = ["--vocab-size", "8000"]
    fails(run("train", "--data", "p.tsv", *big), "vocabulary of 8000")
    small = ["--vocab-size", "10"]
    fails(run("train", "--data", "p.tsv", *small), "vocabulary of 10")
    assert not (tmp_path / "runs").exists()
    fails(
        run("train", "--data", "p.tsv", "--vocab-size", "268",
            "--max-tokens", "2"),
        "max_tokens 2",
    )


def test_python_m_says_its_name():
    done = subprocess.run(
        [sys.executable, "-m", "transformer18", "translate", ""],
        capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "transformer18", "--help"],
        capture_output=True, text=True,
    )
    assert "python -m transformer18" in done.stdout


def test_translator_in_python():
    folder = MINI
    translator = Translator.load(folder)
    pairs = split(0, 0, 50, seed=4)[2]
    sources = [source for source, _ in pairs]
    together = translator.translate(sources)
    assert together == [translator.translate([s])[0] for s in sources]
    assert translator.translate([]) == []
    assert translator.translate(iter(sources[:2])) == together[:2]
    with pytest.raises(TypeError, match="sentence 2 is no text: None"):
        translator.translate([SENTENCE, None])
    with pytest.raises(TypeError, match="list of sentences"):
        translator.translate(SENTENCE)
    source, target, weights = translation_map(translator, SENTENCE)
    assert source == [*SENTENCE.split(), "<end>"]
    assert target == [*GERMAN.split(), "<end>"]
    assert weights.shape == (2, 4, len(target), len(source))
    assert (weights.sum(-1) - 1).abs().max() < 1e-5


def test_translate_with_other_searches(run):
    for beam in ("1", "4", "50"):
        result = run("translate", "--beam", beam, SENTENCE)
        assert result.stdout == GERMAN + "\n"
    # likelier, but a word shorter: what the length penalty is for
    assert run("translate", "buy").stdout == "kaufen\n"
    assert run("translate", "--alpha", "0", "buy").stdout == "\n"
    # greedy search misses what beam search finds
    odd = "the apple eats the man"
    greedy = run("translate", "--beam", "1", odd).stdout
    assert greedy == "der Apfel isst den Apfel\n"
    assert run("translate", odd).stdout == "der Mann isst den Apfel\n"


def test_n_best_lines_with_scores(run):
    text = f"{SENTENCE}\n\nthe cat sleeps\n"
    lines = run("translate", "--n-best", "3", stdin=text).stdout.split("\n")
    assert len(lines) == 3 + 1 + 3 + 1 and lines[3] == lines[-1] == ""
    numbers = [line.split("\t")[0] for line in lines if line]
    assert numbers == ["1"] * 3 + ["3"] * 3
    scores = [float(line.split("\t")[1]) for line in lines if line]
    assert 0 > scores[0] > scores[1] > scores[2]
    assert 0 > scores[3] > scores[4] > scores[5]
    texts = [line.split("\t")[2] for line in lines if line]
    assert texts[0] == GERMAN and texts[3] == "die Katze schläft"
    assert len(set(texts)) == 6
    best = Translator.load(MINI).n_best([SENTENCE], 3)[0]
    assert [text for _, text in best] == texts[:3]
    assert [f"{score:.4f}" for score, _ in best] == [
        line.split("\t")[1] for line in lines[:3]
    ]


def test_searches_out_of_range(run):
    fails(run("translate", "--n-best", "5", "cat"), "n_best 5 with beam 4",
          "wider beam")
    for option in (["--beam", "0"], ["--alpha", "-1"], ["--n-best", "0"]):
        result = run("translate", *option, "cat")
        assert result.exit_code == 2 and option[0] in result.stderr
    translator = Translator.load(MINI)
    with pytest.raises(ValueError, match="alpha 11"):
        translator.translate(["cat"], alpha=11)
    with pytest.raises(ValueError, match="max_length 0"):
        translator.translate(["cat"], max_length=0)
    assert translator.translate([SENTENCE], max_length=2) == ["der alte"]


def test_evaluate_says_how_and_stores_what_it_wrote(run, tmp_path):
    right = "Der Hund schläft"
    (tmp_path / "p.tsv").write_text(
        f"{SENTENCE}\t{GERMAN}\nthe dog sleeps\t{right}\n"
    )
    pairs = ["--data", "p.tsv", "--model", str(MINI)]
    plain = run("evaluate", *pairs)
    assert "exact_match: 0.5" in plain.stdout
    assert "tok:13a" in plain.stdout and "case:mixed" in plain.stdout
    result = run("evaluate", *pairs, "--tokenize", "none", "--lowercase",
                 "--output", "new/out.txt")
    assert result.exit_code == 0, result.output
    assert "tok:none" in result.stdout and "case:lc" in result.stdout
    assert "\nbleu: 100\n" in result.stdout
    written = (tmp_path / "new" / "out.txt").read_text(encoding="utf-8")
    assert written == f"{GERMAN}\nder Hund schläft\n"
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["out.txt"]


def test_evaluate_with_options_that_cannot_be(run, tmp_path):
    (tmp_path / "p.tsv").write_text("the cat sleeps\tdie Katze schläft\n")
    result = run("evaluate", "--data", "p.tsv", "--output", ".")
    fails(result, "folder", "file to write to")
    assert result.stdout == ""  # before any work
    result = run("evaluate", "--data", "p.tsv", "--tokenize", "words")
    assert result.exit_code == 2 and "none" in result.stderr


def test_no_progress_bar_in_a_file(run, monkeypatch):
    text = "the cat sleeps\n" * 5000
    result = run("translate", stdin=text)
    assert result.stderr.count("\n") == 1  # which model
    assert result.stdout == "die Katze schläft\n" * 5000
    monkeypatch.setattr(cli, "bar", lambda: True)
    assert "5000/5000" in run("translate", stdin=text).stderr
    few = run("translate", stdin="the cat sleeps\n" * 3).stderr
    assert few.count("\n") == 1


def test_a_map_is_of_the_translation_that_was_found():
    translator = Translator.load(MINI)
    for options in (dict(beam=1), dict(), dict(alpha=0), dict(max_length=1)):
        _, target, weights = translation_map(translator, "cat", **options)
        (text,) = translator.translate(["cat"], **options)
        cut = options.get("max_length")
        assert target == text.split() + ([] if cut else ["<end>"])
        assert weights.shape == (2, 4, len(target), 2)


def test_a_sentence_of_a_thousand_words():
    translator = Translator.load(MINI)
    (text,) = translator.translate(["the cat " * 500], max_length=20)
    assert 0 <= len(text.split()) <= 20


def test_without_a_size_the_vocabulary_is_what_the_text_fills(run, tmp_path):
    (tmp_path / "p.tsv").write_text("a b\tx y\nb a\ty x\n" * 60)
    done = run("train", "--data", "p.tsv", "--steps", "2", "--out", "r")
    assert done.exit_code == 0 and "269 tokens" in done.output
    assert "loss per token" in done.output


def test_options_that_would_be_ignored_are_refused(run, tmp_path):
    for option in (
        ["--warmup", "7"], ["--dev", "x.tsv"], ["--separate"], ["--peak", "1"],
        ["--dropout", "0.2"], ["--vocab-size", "300"], ["--average", "3"],
    ):  # fmt: skip
        fails(run("train", *option), f"{option[0]} needs --data")
    assert not (tmp_path / "runs").exists()
    (tmp_path / "two.txt").write_text("the cat sleeps\n")
    fails(run("translate", "--file", "two.txt", "a"), "not both")


def test_empty_lines_of_a_file_stay(run):
    lines = "the cat sleeps\n\nthe dog sleeps\n"
    german = "die Katze schläft\n\nder Hund schläft\n"
    assert run("translate", stdin=lines).stdout == german


def test_a_folder_with_anything_in_it_is_left_alone(run, tmp_path):
    (tmp_path / "p.tsv").write_text("a b\tx y\nb a\ty x\n" * 60)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "model.safetensors").write_bytes(b"precious")
    for out in ("old", "p.tsv"):
        result = run("train", "--data", "p.tsv", "--steps", "1", "--out", out)
        fails(result, out, "another folder")
    assert (tmp_path / "old" / "model.safetensors").read_bytes() == b"precious"
    assert len(list((tmp_path / "old").iterdir())) == 1


def test_bad_dev_pairs_show_before_training(run, tmp_path):
    (tmp_path / "p.tsv").write_text("a b\tx y\nb a\ty x\n" * 60)
    (tmp_path / "d.tsv").write_text("a b\tx y\na b" + " a" * 500 + "\tx\n")
    result = run("train", "--data", "p.tsv", "--dev", "d.tsv", "--out", "r",
                 "--max-tokens", "100", "--steps", "1")
    fails(result, "dev pair 'a b a a", "max_tokens 100")
    assert not (tmp_path / "r").exists()
    (tmp_path / "d.tsv").write_text("a b\tx y\na b" + " a" * 5000 + "\tx\n")
    done = run("train", "--data", "p.tsv", "--dev", "d.tsv", "--out", "r",
               "--max-tokens", "20000", "--steps", "1")
    assert done.exit_code == 0 and "dev: loss" in done.output


def test_training_pairs_that_fit_no_batch_are_left_out(run, tmp_path):
    long = "a b" + " a" * 500 + "\tx\n"
    (tmp_path / "p.tsv").write_text("a b\tx y\nb a\ty x\n" * 60 + 2 * long)
    (tmp_path / "d.tsv").write_text("a b\tx y\n")
    options = ["--dev", "d.tsv", "--steps", "1"]
    with pytest.warns(UserWarning, match="2 training pairs have more than"):
        result = run("train", "--data", "p.tsv", *options, "--out", "r",
                     "--max-tokens", "100")
    assert result.exit_code == 0, result.output
    assert read_json(tmp_path / "r" / "run.json")["too_long"] == 2
    (tmp_path / "long.tsv").write_text(long * 2)
    result = run("train", "--data", "long.tsv", *options, "--out", "s",
                 "--max-tokens", "100")
    fails(result, "2 training pairs", "max_tokens 100", "no others")
    assert not (tmp_path / "s").exists()


def test_a_stream_without_pairs(run, tmp_path):
    (tmp_path / "p.tsv").write_text("\n")
    result = run("train", "--data", "p.tsv", "--dev", "p.tsv", "--stream")
    fails(result, "no sentence pairs in p.tsv")


def test_an_error_of_another_process_is_told_in_one_line(run, monkeypatch):
    def lost(*args):
        raise RuntimeError("gloo/pair.cc:534 Connection closed by peer [::1]")

    monkeypatch.setattr(cli, "task_of", lost)
    fails(run("train"), "another process of the team has ended")


@pytest.mark.parametrize(
    "option", [["--seed", "9" * 20], ["--threads", "9" * 9], ["--steps", "0"]]
)
def test_numbers_out_of_range(run, option):
    result = run("train", *option)
    assert result.exit_code == 2 and option[0] in result.stderr


def test_a_reader_that_has_had_enough(tmp_path):
    (tmp_path / "many.txt").write_text("the cat sleeps\n" * 9000)
    done = subprocess.run(
        f"{sys.executable} -m transformer18 translate --file many.txt"
        f" --model {shlex.quote(str(MINI))} | head -1",
        shell=True, cwd=tmp_path, capture_output=True, text=True,
    )
    assert done.stdout == "die Katze schläft\n"
    assert "Broken" not in done.stderr and "Traceback" not in done.stderr


def rows(n):
    return [{"translation": {"en": f"a b {i % 7}", "de": f"x y {i % 7}"}} for i in range(n)]


@pytest.fixture
def wmt14(tmp_path, monkeypatch):
    """A folder with the schema of WMT14 on the hub, and its name."""
    (tmp_path / "home" / "wmt14").mkdir(parents=True)
    for name, n in (("train", 90), ("validation", 9), ("test", 12)):
        lines = [json.dumps(row) + "\n" for row in rows(n)]
        (tmp_path / "home" / "wmt14" / f"{name}.jsonl").write_text("".join(lines))
    monkeypatch.setenv("TRANSFORMER18_DATA", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return "wmt14"


@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_a_named_corpus(run, wmt14, stream):
    """Train, dev and test are its own; streamed or not, it is learnt."""
    done = run("train", "--data", wmt14, "--vocab-size", "275", "--steps", "30",
               "--max-tokens", "200", "--out", "r", *stream)
    assert done.exit_code == 0, done.output
    assert ("a stream of pairs" if stream else "90 pairs") in done.output
    story = read_json("r/run.json")
    assert story["settings"]["data"] == ["wmt14"]
    result = run("evaluate", "--data", wmt14, "--model", "r")
    assert "sentences: 12" in result.stdout
    again = run("train", "--resume", "--out", "r", "--steps", "40")
    assert again.exit_code == 0, again.output
    assert read_metrics("r")[-1]["step"] == 40


def test_a_stream_of_files_needs_dev_pairs(run, tmp_path):
    (tmp_path / "p.tsv").write_text("a b\tx y\nb a\ty x\n" * 60)
    fails(run("train", "--data", "p.tsv", "--stream"), "--stream needs dev pairs")
    done = run("train", "--data", "p.tsv", "--stream", "--dev", "p.tsv", "--steps", "2",
               "--vocab-size", "268", "--out", "r")
    assert done.exit_code == 0, done.output
    fails(run("train", "--data", "nowhere"), "nowhere")


def test_a_vocabulary_for_each_language(run, tmp_path):
    (tmp_path / "p.tsv").write_text("a b\tx y\nb a\ty x\n" * 60)
    done = run("train", "--data", "p.tsv", "--separate", "--steps", "2",
               "--vocab-size", "264", "--out", "r")
    assert done.exit_code == 0, done.output
    assert {"source_tokenizer.model", "target_tokenizer.model"} <= {
        path.name for path in (tmp_path / "r").iterdir()
    }
    translator = Translator.load(tmp_path / "r")
    assert translator.model.config.tgt_vocab_size == 264
    assert len(translator.translate(["a b", "b"])) == 2
    source, target, weights = translation_map(translator, "a b")
    assert weights.shape[2:] == (len(target), len(source))
    (tmp_path / "r" / "target_tokenizer.model").unlink()
    fails(run("translate", "--model", "r", "a"), "target_vocabulary.json")


def test_evaluate_knows_what_a_run_has_not_seen(run, own_run):
    fails(run("evaluate"), "other text than mini German", "--data")
    assert run("train", "--seed", "3", "--steps", "1", "--out", "r").exit_code == 0
    sources = {source for source, _ in mini_german_task(3)[0].train}
    seen = cli.unseen_pairs((), Path("r"))
    assert len(seen) == 1000 and not sources & {source for source, _ in seen}


def test_lines_end_at_newlines_only(run):
    text = "the cat sleeps\x0c\u2028the cat sleeps\nthe dog sleeps\n"
    assert run("translate", stdin=text).stdout.count("\n") == 2


def test_output_goes_through_links_and_pipes(run, own_run, tmp_path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    for name in ("link.txt", "/dev/null"):
        done = run("evaluate", "--data", "p.tsv", "--output", name)
        assert done.exit_code == 0, done.output
    assert (tmp_path / "link.txt").is_symlink()
    assert len((tmp_path / "real.txt").read_text().splitlines()) == 60
    assert Path("/dev/null").is_char_device()


def test_pairs_that_are_left_out_are_told(run, own_run, tmp_path):
    (tmp_path / "p.tsv").write_text("a b\tx y\n\tx\nb\ty\n")
    done = run("evaluate", "--data", "p.tsv")
    assert "sentences: 2" in done.stdout and "left out 1 pairs: 1 empty" in done.stderr


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory"),
              RuntimeError("CUDA out of memory. Tried to allocate")],
)
def test_too_little_memory(run, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(cli, "load", fail)
    fails(run("translate", "a"), "out of memory", "--max-tokens")


def test_our_own_faults_are_not_hidden(run, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(cli, "load", fail)
    assert isinstance(run("translate", "a").exception, RuntimeError)
