"""Parallel text, batches, tokenizers: what goes in comes out, and bad
input is told by file and line."""

import gzip

import pytest
import torch

from transformer18.batching import make_batch, token_batches
from transformer18.corpus import read_corpus, read_lines
from transformer18.decoder import shift_right
from transformer18.tokenizer import (
    Tokenizer,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from transformer18.vocabulary import BEGIN, END, PAD


def test_tsv_and_two_files_give_the_same(tmp_path):
    english, german = "a cat\nthe dog \n", "eine Katze\nder Hund\n"
    (tmp_path / "p.tsv").write_text(
        "a cat\teine Katze\tsource: x\nthe dog \tder Hund\n"
    )
    (tmp_path / "p.en").write_text(english)
    with gzip.open(tmp_path / "p.de.gz", "wt", encoding="utf-8") as file:
        file.write(german)
    one = read_corpus(tmp_path / "p.tsv")
    two = read_corpus(tmp_path / "p.en", tmp_path / "p.de.gz")
    assert one == two
    assert one.pairs == [("a cat", "eine Katze"), ("the dog", "der Hund")]


def test_pairs_with_an_empty_side_are_dropped_and_counted(tmp_path):
    (tmp_path / "p.tsv").write_text("a\tb\n \tc\nd\t\ne\tf\n")
    corpus = read_corpus(tmp_path / "p.tsv")
    assert corpus.pairs == [("a", "b"), ("e", "f")] and corpus.dropped == 2


def test_lines_with_other_separators_stay_whole(tmp_path):
    """Only newlines end a line; U+2028 and form feeds do not."""
    text = "one\u2028still one\x0cstill one\r\ntwo\nthree"
    (tmp_path / "x").write_bytes(text.encode())
    assert len(list(read_lines(tmp_path / "x"))) == 3


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("p.tsv", b"a\tb\nb\xe4\tc\n", r"p.tsv, line 2 is not UTF-8.*0xe4"),
        ("p.tsv", b"a\tb\nno tab\n", "p.tsv, line 2 has no TAB"),
        ("p.tsv", b"", "no sentence pairs in .*p.tsv"),
        ("p.tsv", b"\t\n", "no sentence pairs"),
        ("p.gz", b"not gzip", "p.gz is no whole gzip file"),
        ("p.gz", gzip.compress(b"a\tb\n" * 9, mtime=0)[:-9], "no whole gzip file"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_corpus(tmp_path / name)


def test_missing_and_unequal_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.tsv"):
        read_corpus(tmp_path / "nowhere.tsv")
    (tmp_path / "a").write_text("x\ny\n")
    (tmp_path / "b").write_text("x\n")
    with pytest.raises(ValueError, match="a has 2 lines but .*b has 1"):
        read_corpus(tmp_path / "a", tmp_path / "b")


def pairs(n=200):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 30, (n, 2), generator=generator).tolist()
    return [([4 + i % 9] * s, [5 + i % 7] * t) for i, (s, t) in
            enumerate(lengths)]


def test_every_pair_once_within_the_budget():
    data = pairs()
    seen = []
    for batch in token_batches(data, max_tokens=128, seed=3):
        assert batch.src_ids.numel() <= 128 >= batch.labels.numel()
        for src, tgt in zip(batch.src_ids.tolist(), batch.labels.tolist()):
            src, tgt = src[: src.index(END)], tgt[: tgt.index(END)]
            seen.append((src, tgt))
    assert sorted(seen) == sorted(data)


def test_order_is_settled_by_seed_and_epoch():
    def order(**settled):
        batches = token_batches(pairs(), max_tokens=128, **settled)
        return [batch.labels.tolist() for batch in batches]

    assert order(seed=1, epoch=2) == order(seed=1, epoch=2)
    assert order(seed=1, epoch=2) != order(seed=1, epoch=3)
    assert order(seed=1, epoch=2) != order(seed=2, epoch=2)


def test_a_pair_too_long_for_any_batch():
    with pytest.raises(ValueError, match="pair 1 has 9 tokens.*max_tokens 8"):
        list(token_batches([([5], [5]), ([5], [5] * 8)], max_tokens=8, seed=0))


def test_no_pairs_make_no_batches():
    assert list(token_batches([], max_tokens=8, seed=0)) == []


def test_batch_and_shift_right():
    batch = make_batch([([5, 6], [7]), ([], [8, 9])])
    assert batch.src_ids.tolist() == [[5, 6, END], [END, PAD, PAD]]
    assert batch.labels.tolist() == [[7, END, PAD], [8, 9, END]]
    assert batch.tgt_ids.tolist() == [[BEGIN, 7, END], [BEGIN, 8, 9]]
    assert batch.tgt_ids.equal(shift_right(batch.labels))
    assert batch.n_tokens == 5


TEXT = ["der alte Mann gibt dem Kind ein Buch", "die Katze schläft"] * 20


def test_tokenizer_round_trip_of_anything(tmp_path):
    tokenizer = train_tokenizer(TEXT, 300)
    assert len(tokenizer) == 300
    for text in [*TEXT[:2], "Ångström 日本 🙂", "ﬁ ½", "a\u00a0b"]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode([BEGIN, *ids, END, PAD, 9]) == text
        assert len(tokenizer.tokens(text)) == len(ids)
        assert min(ids) > 3
    save_tokenizer(tokenizer, tmp_path / "t.model")
    assert load_tokenizer(tmp_path / "t.model") == tokenizer


def test_tokenizer_errors(tmp_path):
    with pytest.raises(ValueError, match="vocabulary of 100: .*100"):
        train_tokenizer(TEXT, 100)
    with pytest.raises(ValueError, match="vocabulary of 300: no sentences"):
        train_tokenizer([], 300)
    with pytest.raises(ValueError, match="no sentencepiece model"):
        Tokenizer(b"something else")
    with pytest.raises(FileNotFoundError, match="t.model"):
        load_tokenizer(tmp_path / "t.model")
    (tmp_path / "t.model").write_bytes(b"cut")
    with pytest.raises(ValueError, match="t.model is no sentencepiece"):
        load_tokenizer(tmp_path / "t.model")
