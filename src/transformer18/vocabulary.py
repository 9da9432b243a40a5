import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

# ---
PAD, BEGIN, END, UNKNOWN = 0, 1, 2, 3
SPECIAL = ("<pad>", "<begin>", "<end>", "<unknown>")


# ---
def pad(sequences: Sequence[Sequence[int]]) -> Tensor:
    """Lists of ids -> (B, T), filled up with padding on the right.

    T is the length of the longest. Raises ValueError for no lists.
    """
    if not len(sequences):
        raise ValueError("no sequences to pad: give at least one")
    T = max(len(ids) for ids in sequences)
    ids = torch.full((len(sequences), T), PAD)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence, dtype=torch.long)
    return ids


# ---
def write_atomically(path: str | Path, data: bytes) -> None:
    """Write a file so that it is never seen half-written.

    The bytes go to a new file in the same folder, which then takes the
    name. If anything fails, what stood there before still stands there.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, new = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(new, 0o644)
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise


# ---
def read_bytes(path: str | Path) -> bytes:
    """The bytes of a file; FileNotFoundError that names it if missing."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}: check the path")
    return path.read_bytes()


# ---
class Vocabulary:
    """Words and their ids, learned from sentences split at blanks.

    Ids 0 to 3 are special (see `SPECIAL`); then come the words. A word
    that was never seen has the id UNKNOWN.
    """

    def __init__(self, words: Sequence[str]):
        self.words = [*SPECIAL, *words]
        self.ids = {word: i for i, word in enumerate(self.words)}

    @classmethod
    def build(cls, sentences: Iterable[str], min_count: int = 1):
        """The words of sentences (training data only), most common first.

        Words seen fewer than min_count times are left out.
        """
        counts = Counter(word for s in sentences for word in s.split())
        order = sorted(counts, key=lambda word: (-counts[word], word))
        return cls([word for word in order if counts[word] >= min_count])

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self.ids

    def __eq__(self, other) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words

    def encode(self, sentence: str) -> list[int]:
        """The ids of a sentence, without begin and end."""
        return [self.ids.get(word, UNKNOWN) for word in sentence.split()]

    def decode(self, ids: Iterable[int]) -> str:
        """The words of ids up to `end`; begin and padding are left out."""
        words = []
        for i in map(int, ids):
            if i == END:
                break
            if i not in (PAD, BEGIN):
                words.append(self.words[i])
        return " ".join(words)

    def tokens(self, sentence: str) -> list[str]:
        """The words of a sentence, one for each id."""
        return sentence.split()

    def unknown_words(self, sentence: str) -> list[str]:
        """The words of a sentence that have no id of their own."""
        return [word for word in sentence.split() if word not in self]


# ---
def save_vocabulary(vocabulary: Vocabulary, path: str | Path) -> None:
    """Write the words as JSON, all of them or nothing."""
    words = vocabulary.words[len(SPECIAL) :]
    text = json.dumps({"words": words}, ensure_ascii=False, indent=0)
    write_atomically(path, text.encode("utf-8"))


def load_vocabulary(path: str | Path) -> Vocabulary:
    """Read what `save_vocabulary` wrote.

    Raises FileNotFoundError or ValueError naming the file.
    """
    data = read_bytes(path)
    try:
        words = json.loads(data)["words"]
        assert all(isinstance(word, str) for word in words)
    except (ValueError, KeyError, TypeError, AssertionError):
        raise ValueError(
            f"{path} is no vocabulary, or is cut off: train the model "
            "again, or restore the file"
        ) from None
    return Vocabulary(words)
