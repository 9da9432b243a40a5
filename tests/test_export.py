"""The exports for other runtimes: the same translations, whole folders, clear errors."""

import json
import os
import random
import re
import sys
import warnings
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from transformer18 import cli, export
from transformer18.build import book_parts, make_transformer
from transformer18.checkpoint import save_checkpoint
from transformer18.config import TransformerConfig, count_parameters
from transformer18.decoder import shift_right
from transformer18.decoding import search_all
from transformer18.evaluation import scores
from transformer18.export import (
    DecoderGraph,
    EncoderGraph,
    OnnxTranslator,
    export_run,
    new_folder,
    quantize,
    to_ctranslate2,
    to_onnx,
    token_names,
    two_lists,
)
from transformer18.mini_german import split
from transformer18.packing import pack
from transformer18.position import LearnedPosition
from transformer18.runs import TwoTokenizers, save_words, source_side, target_side
from transformer18.tokenizer import train_tokenizer
from transformer18.transformer import attention_maps
from transformer18.translator import MINI, SHIPPED, Translator
from transformer18.vocabulary import BEGIN, END, PAD, Vocabulary, pad

NEEDED = ("ctranslate2", "onnx", "onnxruntime", "onnxscript")
MISSING = [name for name in NEEDED if find_spec(name) is None]
if MISSING and not os.environ.get("CI"):
    told = f'EXPORTS NOT TESTED, no {", ".join(MISSING)}: pip install "transformer18[export]"'
    warnings.warn(told, stacklevel=1)
    pytest.skip(told, allow_module_level=True)

TIE = 1e-4  # natural logarithms of probabilities nearer than this: a tie
RUNS = {"mini": MINI, "tiny": SHIPPED}


# ---- what is translated, and by what ------------------------------------------------


def everyday(n: int = 500, seed: int = 0) -> list[str]:
    """n different English sentences, from a small grammar."""
    who = ["I", "You", "We", "They", "My brother", "The old woman", "Tom", "The children",
           "Our neighbour", "A friend of mine", "The teacher", "Mary"]  # fmt: skip
    did = "bought found lost wanted saw needed forgot sold liked brought".split()
    what = ["a book", "the red car", "some bread", "two tickets", "a cup of coffee", "the keys",
            "a new house", "an apple", "the letter", "my umbrella", "your bag"]  # fmt: skip
    where = ["at the station", "in the kitchen", "in Berlin", "on the street", "near the river",
             "at school", "behind the house", "at home"]  # fmt: skip
    when = ["yesterday", "last week", "this morning", "on Monday", "two years ago", "after dinner"]
    rng, found = random.Random(seed), {}
    while len(found) < n:
        words = [rng.choice(part) for part in (who, did, what, where, when)]
        found[" ".join(words[: rng.choice([3, 4, 5])]) + rng.choice(".!?")] = None
    return list(found)


SENTENCES = {
    "mini": [german_pair[0] for german_pair in split(12_000, 1000, 1000, 0)[2]][:500],
    "tiny": everyday(),
}


class Shipped:
    """A model of the package, its sentences, and our own search's translations."""

    def __init__(self, name: str):
        self.translator = Translator.load(RUNS[name])
        self.model, self.words = self.translator.model, self.translator.tokenizer
        self.sentences = SENTENCES[name]
        self.ids = [self.words.encode(text) for text in self.sentences]
        found = search_all(self.model, self.ids, beam=1)
        self.greedy = [list(best.ids) for best, *_ in found]
        assert all(best.finished for best, *_ in found)

    def decoded(self, rows) -> list[str]:
        return [self.words.decode(row) for row in rows]


@pytest.fixture(scope="module")
def shipped():
    """name -> Shipped, each made once."""
    torch.set_num_threads(1)
    made = {}

    def get(name):
        if name not in made:
            made[name] = Shipped(name)
        return made[name]

    return get


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(name, to, int8) -> the folder of a shipped model's export, each made once.

    What torch traces in many seconds, it traces once: 8 bits start from the same files.
    """
    made, root = {}, tmp_path_factory.mktemp("exports")

    def get(name, to, int8=False):
        if (name, to, int8) not in made:
            folder = root / f"{name}-{to}-{int8}"
            with pytest.MonkeyPatch.context() as patch:
                if int8 and to == "onnx":
                    patch.setattr(export, "trace_halves", halves_of(get(name, to)))
                export_run(RUNS[name], folder, to, int8)
            made[name, to, int8] = folder
        return made[name, to, int8]

    return get


def halves_of(folder: Path):
    """A `trace_halves` that takes the files of an export instead."""
    import onnx

    def halves(model):
        for half in ("encoder", "decoder"):
            yield half, onnx.load(folder / f"{half}.onnx")

    return halves


def by_ctranslate2(folder: Path, words, ids, **options):
    """(target ids with `end`, score) of each row of source ids, by CTranslate2."""
    import ctranslate2

    translator = ctranslate2.Translator(str(folder), intra_threads=1, inter_threads=1)
    source, target = two_lists(words)
    back = {name: i for i, name in enumerate(target)}
    options = dict(min_decoding_length=0, max_batch_size=64, return_scores=True) | options
    found = translator.translate_batch([[source[i] for i in row] for row in ids], **options)
    return [([*(back[name] for name in one.hypotheses[0]), END], one.scores[0]) for one in found]


@torch.inference_mode()
def log_probs(model, source, target) -> torch.Tensor:
    """Natural logarithms of each next token's probabilities: (T, V)."""
    labels = torch.tensor([target])
    logits = model(torch.tensor([[*source, END]]), shift_right(labels))
    return logits[0].log_softmax(dim=-1)


def sum_of(model, source, target) -> float:
    """Natural logarithm of the probability of a whole translation."""
    return log_probs(model, source, target)[range(len(target)), target].sum().item()


def ties(model, ids, ours, theirs, greedy: bool = True) -> int:
    """How many translations differ, all of them by a tie; AssertionError for one that is none.

    Greedily the first different tokens are as probable as each other, else the whole
    translations.
    """
    n = 0
    for source, own, other in zip(ids, ours, theirs, strict=True):
        if own == other:
            continue
        if greedy:
            at = next(i for i, (a, b) in enumerate(zip(own, other)) if a != b)
            found = log_probs(model, source, own)[at]
            apart = found[own[at]] - found[other[at]]
        else:
            apart = sum_of(model, source, own) - sum_of(model, source, other)
        assert abs(apart) < TIE, (source, own, other)
        n += 1
    return n


# ---- the shipped models --------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_ctranslate2_writes_the_same_tokens_greedily(shipped, exported, name):
    own = shipped(name)
    found = by_ctranslate2(exported(name, "ctranslate2"), own.words, own.ids, beam_size=1)
    assert ties(own.model, own.ids, own.greedy, [ids for ids, _ in found]) <= len(own.ids) // 100


@pytest.mark.parametrize("name, n", [("mini", 500), ("tiny", 100)])
def test_ctranslate2_finds_the_same_by_beam_search(shipped, exported, name, n):
    own = shipped(name)
    ours = [best for best, *_ in search_all(own.model, own.ids[:n], beam=4, alpha=0.0)]
    found = by_ctranslate2(
        exported(name, "ctranslate2"), own.words, own.ids[:n], beam_size=4, length_penalty=0
    )
    theirs = [ids for ids, _ in found]
    rows = [list(best.ids) for best in ours]
    assert ties(own.model, own.ids[:n], rows, theirs, greedy=False) <= n // 100
    for best, (_, score) in zip(ours, found):  # it leaves out padding and begin before
        assert score == pytest.approx(best.log_prob, abs=0.02)  # the softmax, we after it


@pytest.mark.parametrize("name", RUNS)
def test_onnx_writes_the_same_tokens_greedily(shipped, exported, name):
    own = shipped(name)
    runtime = OnnxTranslator(exported(name, "onnx"))
    order = sorted(range(len(own.ids)), key=lambda i: len(own.ids[i]))
    found = {}
    for first in range(0, len(order), 100):
        rows = order[first : first + 100]
        found |= zip(rows, runtime.search([[*own.ids[i], END] for i in rows]))
    theirs = [found[i] for i in range(len(own.ids))]
    assert ties(own.model, own.ids, own.greedy, theirs) <= len(own.ids) // 100
    few = own.sentences[:7]
    assert runtime.translate(few) == own.decoded(theirs[:7])
    assert runtime.translate(few[:1]) == own.decoded(theirs[:1])  # a batch of one
    assert runtime.translate([]) == []
    assert runtime.search([[*own.ids[0], END]], max_length=2) == [own.greedy[0][:2]]
    with pytest.raises(ValueError, match="max_length 0: give 1 or more"):
        runtime.translate(few, max_length=0)
    with pytest.raises(TypeError, match="give a list"):
        runtime.translate(few[0])


@pytest.mark.parametrize("to", export.FORMATS)
@pytest.mark.parametrize("name, exact, bleu", [("mini", 0.97, 97), ("tiny", 0.6, 80)])
def test_8_bits_translate_nearly_the_same(shipped, exported, name, to, exact, bleu):
    own, folder = shipped(name), exported(name, to, True)
    if to == "onnx":
        theirs = OnnxTranslator(folder).translate(own.sentences)
    else:
        theirs = own.decoded(x for x, _ in by_ctranslate2(folder, own.words, own.ids, beam_size=1))
    found = scores(theirs, own.decoded(own.greedy))
    assert found["exact_match"] >= exact and found["bleu"] >= bleu, found


def test_8_bits_are_small(shipped, exported):
    def size(folder):
        ends = ".onnx", ".bin"
        return sum(p.stat().st_size for p in folder.iterdir() if p.suffix in ends)

    n = count_parameters(shipped("tiny").model)
    places = 1024 * 128
    both = 8000 * 128 + 2 * places  # tables that both halves need
    assert size(exported("tiny", "onnx")) < 4 * (n + both) * 1.01
    assert size(exported("tiny", "onnx", True)) < (n + both) * 1.06
    assert size(exported("tiny", "ctranslate2")) < 4 * (n + places) * 1.01
    assert size(exported("tiny", "ctranslate2", True)) < 1.06 * (n + 4 * places)


def test_onnx_files_are_plain(exported):
    import onnx

    for half in ("encoder", "decoder"):
        path = exported("tiny", "onnx") / f"{half}.onnx"
        made = onnx.load(path)
        assert [(o.domain, o.version) for o in made.opset_import] == [("", 20)]
        assert not made.functions and {node.domain for node in made.graph.node} == {""}
        for word in (b"transformer18", b".py", os.getcwd().encode()):
            assert word not in path.read_bytes()
        types = {tensor.data_type for tensor in made.graph.initializer}
        assert types <= {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64}  # no double
        sizes = [tuple(tensor.dims) for tensor in made.graph.initializer]
        assert sizes.count((8000, 128)) == 1 and (128, 8000) not in sizes


# ---- models of every kind --------------------------------------------------------------


def random_model(seed: int = 0, **sizes):
    """An untrained model of odd sizes whose norms and biases aren't 1 and 0."""
    torch.manual_seed(seed)
    odd = dict(src_vocab_size=23, d_model=15, n_heads=3, n_layers=1, d_ff=9)
    model = make_transformer(TransformerConfig(**(odd | sizes))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


KINDS = [
    dict(norm_first=first, tie_embeddings=tied, tgt_vocab_size=vocab)
    for first, tied, vocab in product((False, True), (True, False), (None, 31))
]


def words_for(model):
    """Vocabularies of the model's sizes."""
    config = model.config
    source = Vocabulary([f"s{i}" for i in range(config.src_vocab_size - 4)])
    if config.tgt_vocab_size is None:
        return source
    return TwoTokenizers(source, Vocabulary([f"t{i}" for i in range(config.output_size - 4)]))


def random_pairs(model, n=6):
    """Source ids without `end`, and target ids with it, of many lengths."""
    rng, config = random.Random(1), model.config
    return [
        ([rng.randrange(3, config.src_vocab_size) for _ in range(rng.randint(1, 9))],
         [*(rng.randrange(3, config.output_size) for _ in range(rng.randint(1, 9))), END])
        for _ in range(n)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_ctranslate2_scores_as_the_model_does(tmp_path, kind):
    import ctranslate2

    model = random_model(n_layers=2, **kind)
    words = words_for(model)
    to_ctranslate2(model, words, tmp_path)
    one = kind["tgt_vocab_size"] is None
    names = {path.name for path in tmp_path.glob("*_vocabulary.json")}
    assert names == {f"{x}_vocabulary.json" for x in (["shared"] if one else ["source", "target"])}
    translator = ctranslate2.Translator(str(tmp_path), intra_threads=1)
    source, target = two_lists(words)
    pairs = random_pairs(model)
    found = translator.score_batch(
        [[source[i] for i in ids] for ids, _ in pairs],
        [[target[i] for i in ids[:-1]] for _, ids in pairs],
    )
    for (src, tgt), result in zip(pairs, found):
        logits = log_probs(model, src, tgt).clone()
        logits[:, [PAD, BEGIN]] = -torch.inf
        own = logits.log_softmax(dim=-1)[range(len(tgt)), tgt]
        np.testing.assert_allclose(result.log_probs, own, atol=1e-4, rtol=0)
    # what a random model likes to write never is padding or begin
    ours = [list(best.ids) for best, *_ in search_all(
        model, [ids for ids, _ in pairs], beam=1, max_length=20)]  # fmt: skip
    theirs = by_ctranslate2(tmp_path, words, [ids for ids, _ in pairs], beam_size=1,
                            max_decoding_length=20, return_scores=True)  # fmt: skip
    for own, (other, _) in zip(ours, theirs):
        assert own == (other if own[-1] == END else other[:-1])


def step_by_step(encoder, decoder, src_ids, tgt_ids):
    """Logits (B, T, V) and weights (N, B, H, T, S), a token at a time."""
    cross, mask = encoder(src_ids)
    past, logits, weights = cross[..., :0, :], [], []
    for t in range(tgt_ids.size(1)):
        scored, past, looked = decoder(tgt_ids[:, t : t + 1], past, cross, mask)
        logits.append(scored)
        weights.append(looked)
    return torch.stack(logits, 1), torch.stack(weights, 3)


def assert_the_same_step_by_step(model, encoder, decoder, pairs):
    src_ids = pad([[*source, END] for source, _ in pairs])
    tgt_ids = shift_right(pad([target for _, target in pairs]))
    with torch.no_grad(), attention_maps(model) as maps:
        whole = model(src_ids, tgt_ids)
    maps = torch.stack([w for name, w in maps.items() if "cross" in name])
    logits, weights = step_by_step(encoder, decoder, src_ids, tgt_ids)
    torch.testing.assert_close(logits, whole, atol=1e-4, rtol=0)
    torch.testing.assert_close(weights, maps, atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_graphs_compute_what_the_model_does(kind):
    model = random_model(n_layers=2, **kind)
    halves = EncoderGraph(model), DecoderGraph(model)
    assert_the_same_step_by_step(model, *halves, random_pairs(model))


@pytest.fixture(scope="module")
def odd_run(tmp_path_factory):
    """(model, tokenizer, run) of odd sizes and two languages, exported to run/onnx.

    What the shipped models are not: pre-norm, untied, pieces for the source, words for
    the target.
    """
    model = random_model(
        norm_first=True, tie_embeddings=False, src_vocab_size=300, tgt_vocab_size=31
    )
    pieces = train_tokenizer(everyday(200), 300)
    words = TwoTokenizers(pieces, words_for(model).target)
    run = tmp_path_factory.mktemp("run")
    save_checkpoint(model, run / "model.safetensors")
    save_words(words, run)
    export_run(run, run / "onnx", "onnx")
    return model, words, run


def runtime_half(runtime, name: str):
    """A half of an OnnxTranslator as a function of tensors."""
    session = getattr(runtime, name)
    names = [given.name for given in session.get_inputs()]

    def call(*tensors):
        given = {n: x.numpy() for n, x in zip(names, tensors, strict=True)}
        return [torch.from_numpy(x) for x in session.run(None, given)]

    return call


def test_onnx_computes_what_the_model_does(odd_run):
    model, words, run = odd_run
    runtime = OnnxTranslator(run / "onnx")
    halves = [runtime_half(runtime, name) for name in ("encoder", "decoder")]
    pairs = random_pairs(model)
    assert_the_same_step_by_step(model, *halves, pairs)
    assert_the_same_step_by_step(model, *halves, pairs[:1])
    assert_the_same_step_by_step(model, *halves, [([], [END])])  # S = 1, T = 1
    long = [5] * 299  # past the 256 rows that the book's table starts with
    assert_the_same_step_by_step(model, *halves, [(long, [*long[:3], END])])
    with pytest.raises(ValueError, match="1025 tokens is longer than the 1024"):
        runtime.search([[5] * 1024 + [END]])
    ours = [list(best.ids) for best, *_ in search_all(
        model, [ids for ids, _ in pairs], beam=1)]  # fmt: skip
    theirs = runtime.search([[*ids, END] for ids, _ in pairs])
    assert ties(model, [ids for ids, _ in pairs], ours, theirs) == 0


def test_8_bits_of_odd_sizes(odd_run):
    model, words, run = odd_run
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    export_dir = run / "int8"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "trace_halves", halves_of(run / "onnx"))
        export_run(run, export_dir, "onnx", int8=True)
    halves = [runtime_half(OnnxTranslator(export_dir), name) for name in ("encoder", "decoder")]
    pairs = random_pairs(model)
    src_ids = pad([[*source, END] for source, _ in pairs])
    tgt_ids = shift_right(pad([target for _, target in pairs]))
    with torch.no_grad():
        whole = model(src_ids, tgt_ids)
    logits, _ = step_by_step(*halves, src_ids, tgt_ids)
    assert (logits - whole).abs().mean() < 0.05 * whole.std()
    to_ctranslate2(model, words, run / "ct2", int8=True)
    assert by_ctranslate2(run / "ct2", words, [ids for ids, _ in pairs], max_decoding_length=9)
    for name, tensor in model.state_dict().items():  # the model itself was not rounded
        assert torch.equal(tensor, before[name])


def test_a_table_of_zeros_stays_zeros():
    whole, scale = export.eight_bits(np.zeros((3, 4), np.float32), 1)
    assert (whole == 128).all() and (scale == 1).all()
    weight = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    for axis in (0, 1):
        whole, scale = export.eight_bits(weight, axis)
        back = (whole - np.float32(128)) * np.expand_dims(scale, axis)
        assert (abs(back - weight) <= np.expand_dims(scale, axis) * 0.501).all()


def test_quantize_leaves_no_large_weight_in_32_bits(exported):
    import onnx

    for half in ("encoder", "decoder"):
        made = onnx.load(exported("mini", "onnx") / f"{half}.onnx")
        quantize(made)
        onnx.checker.check_model(made, full_check=True)
        large = [t for t in made.graph.initializer if t.data_type == t.FLOAT and len(t.dims) > 1]
        assert not large


# ---- tokens and folders ------------------------------------------------------------------


def test_words_that_are_called_like_special_tokens():
    source, target = two_lists(Vocabulary(["<pad>", "a", "<end>", "<<end>>"]))
    assert source == target == [
        "<<pad>>", "<begin>", "<<<end>>>", "<unknown>", "<pad>", "a", "<end>", "<<end>>",
    ]  # fmt: skip
    pieces = train_tokenizer(everyday(50), 300)
    source, target = two_lists(TwoTokenizers(Vocabulary(["a"]), pieces))
    assert source == ["<pad>", "<s>", "</s>", "<unk>", "a"] and target == token_names(pieces)


def run_readme(folder: Path, monkeypatch, capsys, sentence: str = "Good morning!") -> str:
    """What the Python in its README.md prints of a sentence, run in the folder."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), flags=re.S)
    code, n = re.subn(r"(sentences? = \[?)'.*?'(\]?\n)", rf"\1{sentence!r}\2", code)
    assert n == 1
    monkeypatch.chdir(folder)
    capsys.readouterr()
    exec(compile(code, "README.md", "exec"), {})
    return capsys.readouterr().out


@pytest.mark.parametrize("to", export.FORMATS)
@pytest.mark.parametrize("name", RUNS)
def test_the_readme_of_an_export_runs(shipped, exported, name, to, monkeypatch, capsys):
    own, folder = shipped(name), exported(name, to)
    example = {"mini": "the old man gives the child a book", "tiny": "Good morning!"}[name]
    expected = own.translator.translate([example], beam=4 if to == "ctranslate2" else 1)
    assert run_readme(folder, monkeypatch, capsys, example) == expected[0] + "\n"
    if name == "mini":  # the example that is written there
        assert " ".join(own.words.words[4:7]) in (folder / "README.md").read_text()


def test_the_readme_of_two_languages_runs(odd_run, monkeypatch, capsys):
    model, words, run = odd_run
    assert "'Good morning!'" in (run / "onnx" / "README.md").read_text()
    onnx_says = run_readme(run / "onnx", monkeypatch, capsys)
    source = source_side(words)
    best = search_all(model, [source.encode("Good morning!")], beam=1)[0][0]
    assert onnx_says == target_side(words).decode(best.ids) + "\n"
    export_run(run, run / "c", "ctranslate2")
    assert run_readme(run / "c", monkeypatch, capsys).count("\n") == 1


def test_what_is_in_a_folder(exported):
    for to, more in (
        ("ctranslate2", {"model.bin", "config.json", "shared_vocabulary.json"}),
        ("onnx", {"encoder.onnx", "decoder.onnx"}),
    ):
        folder = exported("tiny", to)
        names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
        both = {"README.md", "export.json", "model_card.md", "tokenizer/tokenizer.model"}
        assert names == more | both
        about = json.loads((folder / "export.json").read_text())
        assert set(about["files"]) == names and about["to"] == to and about["int8"] is False
        assert about["config"]["d_model"] == 128 and about["special"]["<end>"] == END
        assert (folder / "model_card.md").read_bytes() == (SHIPPED / "README.md").read_bytes()
        tokenizer = SHIPPED / "tokenizer.model"
        assert (folder / "tokenizer/tokenizer.model").read_bytes() == tokenizer.read_bytes()


def test_only_an_older_export_gives_way(tmp_path):
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)
    export_run(MINI, out, "ctranslate2")  # an empty folder is none to lose
    size = (out / "model.bin").stat().st_size
    export_run(MINI, out, "ctranslate2", int8=True)
    assert (out / "model.bin").stat().st_size < size / 2
    assert [p.name for p in out.parent.iterdir()] == ["out"]
    (out / "mine.txt").write_text("dear to me")
    with pytest.raises(ValueError, match="out has mine.txt, which is of no export"):
        export_run(MINI, out, "ctranslate2")
    assert (out / "mine.txt").read_text() == "dear to me"
    (out / "mine.txt").unlink()
    (out / "export.json").write_text('{"to"')
    with pytest.raises(ValueError, match="export.json is cut off"):
        export_run(MINI, out, "ctranslate2")
    (out / "export.json").unlink()
    with pytest.raises(ValueError, match="of no export"):
        export_run(MINI, out, "ctranslate2")
    with pytest.raises(ValueError, match="model.bin is no folder"):
        export_run(MINI, out / "model.bin", "ctranslate2")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_of_an_export_that_fails(tmp_path, monkeypatch, error):
    def half_way(model, tokenizer, folder, int8):
        (folder / "model.bin").write_text("half")
        raise error

    out = tmp_path / "out"
    export_run(MINI, out, "ctranslate2")
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    monkeypatch.setitem(export.FORMATS, "ctranslate2", half_way)
    for folder in (out, tmp_path / "new"):
        with pytest.raises(error):
            export_run(MINI, folder, "ctranslate2")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_the_older_export_comes_back_if_the_new_one_cannot_take_its_place(tmp_path):
    out = tmp_path / "out"
    export_run(MINI, out, "ctranslate2")
    before = {p.name for p in out.iterdir()}
    with pytest.raises(FileNotFoundError), new_folder(out) as folder:
        folder.rmdir()  # so that it cannot be renamed
    assert {p.name for p in out.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


# ---- what cannot be exported ----------------------------------------------------------------


@pytest.mark.parametrize("worker", [to_ctranslate2, to_onnx])
def test_other_parts_are_named(tmp_path, worker):
    config = TransformerConfig(9, d_model=8, n_heads=2, n_layers=1, d_ff=8)
    for told, changes in {
        "position is LearnedPosition, not SinusoidalPosition": dict(
            position=lambda c: LearnedPosition(c.max_length, c.d_model)
        ),
        "encoder.blocks.0.feed_forward is Identity, not FeedForward": dict(
            feed_forward=lambda c: torch.nn.Identity()
        ),
        "the part source_mask is .*lambda.*, not padding_mask": dict(source_mask=lambda ids: None),
    }.items():
        model = make_transformer(config, replace(book_parts(), **changes))
        with pytest.raises(ValueError, match=told):
            worker(model, Vocabulary(list("abcde")), tmp_path / "out")
    for model in (torch.nn.Linear(1, 1), pack(make_transformer(config))):
        told = f"{type(model).__name__}: only models of .* not their packed copies"
        with pytest.raises(ValueError, match=told):
            worker(model, Vocabulary(list("abcde")), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_unknown_formats_and_missing_runs(tmp_path):
    with pytest.raises(ValueError, match="no format 'tflite': choose from ctranslate2, onnx"):
        export_run(MINI, tmp_path / "out", "tflite")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        export_run(tmp_path / "none", tmp_path / "out", "onnx")
    with pytest.raises(FileNotFoundError, match="no file"):
        OnnxTranslator(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Runs `transformer18 export` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def invoke(*args):
        return CliRunner().invoke(cli.main, ["export", *args])

    return invoke


def test_the_command_line(command, exported, monkeypatch):
    done = command("--model", "mini", "--to", "ctranslate2", "--out", "a", "--int8")
    assert done.exit_code == 0 and str(MINI) in done.stderr
    size = Path("a/model.bin").stat().st_size
    assert f"{size:,} bytes  a{os.sep}model.bin\n" in done.stdout
    monkeypatch.setattr(export, "trace_halves", halves_of(exported("mini", "onnx")))
    done = command("--model", "mini", "--to", "onnx", "--out", "b")
    assert done.exit_code == 0
    assert OnnxTranslator("b").translate(["the cat sleeps"]) == ["die Katze schläft"]


@pytest.mark.parametrize("to, name", [
    ("ctranslate2", "ctranslate2.specs"), ("onnx", "onnx"), ("onnx", "onnxscript.optimizer"),
])  # fmt: skip
def test_errors_of_the_command_line(command, monkeypatch, to, name):
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    failed = command("--model", "mini", "--to", to, "--out", "full")
    assert failed.exit_code == 1 and "Error: full has notes.txt" in failed.stderr
    failed = command("--model", "nowhere", "--to", to, "--out", "x")
    assert failed.exit_code == 1 and "no checkpoint nowhere" in failed.stderr
    assert command("--model", "mini", "--to", "tflite", "--out", "x").exit_code == 2
    monkeypatch.setitem(sys.modules, name, None)  # as if it weren't installed
    failed = command("--model", "mini", "--to", to, "--out", "x")
    assert failed.exit_code == 1 and "Traceback" not in failed.output
    last = failed.stderr.splitlines()[-1]
    assert last.startswith(f"Error: an export needs {name.partition('.')[0]} (")
    assert 'pip install "transformer18[export]"' in last
    assert [path.name for path in Path().iterdir()] == ["full"]
