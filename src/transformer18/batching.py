import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from transformer18.decoder import shift_right
from transformer18.vocabulary import END, PAD, pad

Pair = tuple[list[int], list[int]]


# ---
@dataclass(frozen=True)
class Batch:
    """Sentence pairs as padded ids, each ending in `end`.

    src_ids (B, S), labels (B, T); tgt_ids (B, T) is what the decoder
    reads: begin, then the labels but for the last.
    """

    src_ids: Tensor
    labels: Tensor

    @property
    def tgt_ids(self) -> Tensor:
        return shift_right(self.labels)

    @property
    def n_tokens(self) -> int:
        """Labels that are not padding."""
        return int((self.labels != PAD).sum())

    def to(self, device) -> "Batch":
        return Batch(self.src_ids.to(device), self.labels.to(device))


# ---
def make_batch(pairs: Sequence[Pair]) -> Batch:
    """Id lists without begin and end -> one padded batch."""
    return Batch(
        pad([src + [END] for src, _ in pairs]),
        pad([tgt + [END] for _, tgt in pairs]),
    )


# ---
def token_batches(
    pairs: Sequence[Pair], *, max_tokens: int, seed: int, epoch: int = 0
) -> Iterator[Batch]:
    """All pairs once, in batches of like length (5.1).

    A batch holds at most `max_tokens` source and `max_tokens` target
    tokens, padding and `end` counted. The order is random but settled by
    (seed, epoch). Raises ValueError, naming the pair, for one that no
    batch can hold.
    """
    rng = random.Random(f"{seed} {epoch}")
    size = [max(len(src), len(tgt)) + 1 for src, tgt in pairs]
    if size and max(size) > max_tokens:
        raise ValueError(
            f"pair {size.index(max(size))} has {max(size)} tokens, more "
            f"than max_tokens {max_tokens}: drop it or raise max_tokens"
        )
    order = list(range(len(pairs)))
    rng.shuffle(order)  # so that equals come in another order each time
    order.sort(key=lambda i: size[i])
    groups: list[list[int]] = [[]]
    for i in order:  # sizes only grow: the newest is the longest
        if (len(groups[-1]) + 1) * size[i] > max_tokens:
            groups.append([])
        groups[-1].append(i)
    rng.shuffle(groups)
    for group in groups:
        if group:
            yield make_batch([pairs[i] for i in group])
