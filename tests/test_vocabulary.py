"""Words to ids and back, batches, and a file that is whole or refused."""

import json

import pytest
import torch

from transformer18.vocabulary import (
    BEGIN,
    END,
    PAD,
    SPECIAL,
    UNKNOWN,
    Vocabulary,
    load_vocabulary,
    pad,
    read_bytes,
    save_vocabulary,
)

SENTENCES = ["die Katze sieht die Frau", "die Frau sieht", "Äpfel isst er"]
WORDS = ["die", "Frau", "sieht", "Katze", "er", "isst", "Äpfel"]


@pytest.fixture
def vocabulary():
    return Vocabulary.build(SENTENCES)


def test_round_trip(vocabulary):
    for sentence in SENTENCES:
        ids = vocabulary.encode(sentence)
        assert len(ids) == len(vocabulary.tokens(sentence))
        assert min(ids) >= len(SPECIAL) and max(ids) < len(vocabulary)
        assert vocabulary.decode(ids) == sentence
        assert vocabulary.unknown_words(sentence) == []
    assert len(vocabulary) == len(SPECIAL) + len(WORDS)


def test_special_ids_come_first_and_have_no_spelling(vocabulary):
    assert (PAD, BEGIN, END, UNKNOWN) == (0, 1, 2, 3)
    assert vocabulary.words[: len(SPECIAL)] == list(SPECIAL)
    assert vocabulary.encode(" ".join(SPECIAL)) == [UNKNOWN] * len(SPECIAL)
    written = Vocabulary.build(["<end> <pad>"])  # in the text itself
    ids = written.encode("<end> <pad>")
    assert min(ids) >= len(SPECIAL)
    assert written.decode(ids) == "<end> <pad>"


def test_order_is_by_count_then_alphabet():
    vocabulary = Vocabulary.build(SENTENCES)
    assert vocabulary.words[len(SPECIAL) :] == WORDS
    assert Vocabulary.build(reversed(SENTENCES)) == vocabulary
    assert Vocabulary.build(iter(SENTENCES)) == vocabulary


def test_min_count():
    assert Vocabulary.build(SENTENCES, min_count=2).words[len(SPECIAL) :] == WORDS[:3]
    assert len(Vocabulary.build(SENTENCES, min_count=9)) == len(SPECIAL)
    assert len(Vocabulary.build([])) == len(SPECIAL)


def test_unknown_words(vocabulary):
    ids = vocabulary.encode("die Giraffe sieht die Giraffe")
    assert ids.count(UNKNOWN) == 2 and ids[1] == UNKNOWN
    assert vocabulary.unknown_words("die Giraffe sieht") == ["Giraffe"]
    assert "Katze" in vocabulary and "Giraffe" not in vocabulary
    assert vocabulary.decode([UNKNOWN]) == SPECIAL[UNKNOWN]


def test_blanks_do_not_count(vocabulary):
    assert vocabulary.encode("  die \t Frau\n") == vocabulary.encode("die Frau")
    assert vocabulary.encode("") == vocabulary.encode("   ") == []


def test_decode_stops_at_end_and_skips_what_is_no_word(vocabulary):
    die, frau = vocabulary.encode("die Frau")
    assert vocabulary.decode([BEGIN, die, PAD, frau, END, die, 10**6]) == "die Frau"
    assert vocabulary.decode(torch.tensor([BEGIN, die, END])) == "die"
    assert vocabulary.decode([]) == vocabulary.decode([END]) == ""


@pytest.mark.parametrize("i", [-1, 11, 10**6])
def test_decode_refuses_what_is_no_id(vocabulary, i):
    with pytest.raises(ValueError, match=rf"no word has id {i}: ids are 0 to 10"):
        vocabulary.decode([4, i])


def test_words_that_make_no_vocabulary():
    with pytest.raises(ValueError, match="'a' stands twice"):
        Vocabulary(["b", "a", "c", "a"])
    with pytest.raises(ValueError, match="one string: give a list"):
        Vocabulary.build("die Katze")


def test_equality(vocabulary):
    assert vocabulary != Vocabulary.build(SENTENCES[:1])
    assert vocabulary != list(vocabulary.words)


def test_pad():
    batch = pad([[5, 6], [], [7, 8, 9]])
    assert batch.tolist() == [[5, 6, PAD], [PAD] * 3, [7, 8, 9]]
    assert batch.dtype == torch.long
    assert pad([torch.tensor([5, 6]), torch.tensor([7])]).tolist() == [[5, 6], [7, PAD]]
    assert pad([[]]).shape == (1, 0)
    with pytest.raises(ValueError, match="no sequences to pad"):
        pad([])


def test_save_and_load(vocabulary, tmp_path):
    path = tmp_path / "new" / "words.json"
    save_vocabulary(vocabulary, path)
    assert load_vocabulary(path) == load_vocabulary(str(path)) == vocabulary
    assert load_vocabulary(path).encode(SENTENCES[2]) == vocabulary.encode(SENTENCES[2])
    assert "Äpfel" in path.read_text(encoding="utf-8")  # readable, not escaped
    empty = Vocabulary([])
    save_vocabulary(empty, path)
    assert load_vocabulary(path) == empty


def test_a_failed_save_leaves_the_old_file(vocabulary, tmp_path, monkeypatch):
    path = tmp_path / "words.json"
    save_vocabulary(vocabulary, path)

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        save_vocabulary(Vocabulary(["other"]), path)
    monkeypatch.undo()
    assert load_vocabulary(path) == vocabulary
    assert list(tmp_path.iterdir()) == [path]


def test_missing_file_is_named(tmp_path):
    for path in (tmp_path / "nowhere.json", tmp_path):  # a folder is no file
        with pytest.raises(FileNotFoundError, match=f"no file .*{path.name}: check"):
            load_vocabulary(path)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json"):
        read_bytes(tmp_path / "nowhere.json")


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.99])
def test_truncated_file(vocabulary, tmp_path, share):
    path = tmp_path / "words.json"
    save_vocabulary(vocabulary, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=r"words\.json is no vocabulary, or is cut off"):
        load_vocabulary(path)


@pytest.mark.parametrize(
    "content",
    [
        b"\x00\xff\xfe binary",
        "Katze".encode("latin1") + b"\xe4",
        b"just text",
        b"null",
        b"[]",
        b'["a", "b"]',
        b"{}",
        *(json.dumps({"words": words}).encode() for words in (None, 3, "abc", {"a": 1})),
        *(json.dumps({"words": words}).encode() for words in (["a", 3], [["a"]], ["a", "a"])),
    ],
)
def test_foreign_file(tmp_path, content):
    path = tmp_path / "words.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"words\.json is no vocabulary.*restore the file"):
        load_vocabulary(path)
