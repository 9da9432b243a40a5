from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from transformer18.batching import make_batch
from transformer18.build import make_transformer
from transformer18.checkpoint import load_weights, read_checkpoint
from transformer18.config import TransformerConfig
from transformer18.decoder import shift_right
from transformer18.incremental import greedy_search
from transformer18.runs import load_words, translate_all
from transformer18.tokenizer import Tokenizer
from transformer18.transformer import Transformer, attention_maps
from transformer18.vocabulary import Vocabulary


# ---
@dataclass
class Translator:
    """A trained model and its tokenizer: sentences in, sentences out.

    `Translator.load(run).translate(["the old man sleeps"])`
    """

    model: Transformer
    tokenizer: Vocabulary | Tokenizer
    notes: dict = field(default_factory=dict)  # of the checkpoint

    @classmethod
    def load(cls, run: str | Path, device="cpu"):
        """From the folder of a run, as `train` leaves it.

        Raises FileNotFoundError or ValueError naming the file that is
        missing, cut off or does not fit the others.
        """
        path = Path(run) / "model.safetensors"
        config = TransformerConfig(**read_checkpoint(path)[1])
        tokenizer = load_words(run)
        if len(tokenizer) != config.src_vocab_size:
            raise ValueError(
                f"{run}: the vocabulary has {len(tokenizer)} entries but "
                f"the model {config.src_vocab_size}: put back the files "
                "of one run"
            )
        model = make_transformer(config)
        notes = load_weights(model, path)
        return cls(model.to(device).eval(), tokenizer, notes)

    def translate(self, sentences: Sequence[str]) -> list[str]:
        """One translation for each sentence, by greedy search.

        Raises TypeError for a single string, ValueError for a sentence
        that is empty or has words the model does not know.
        """
        check_sentences(sentences, self.tokenizer)
        return translate_all(self.model, self.tokenizer, sentences)


# ---
def check_sentences(sentences: Sequence[str], tokenizer) -> None:
    """Raise for sentences that cannot be translated, naming the first."""
    if isinstance(sentences, str):
        raise TypeError(
            "give a list of sentences, not one string: translate([text])"
        )
    for number, sentence in enumerate(sentences, start=1):
        if not sentence.strip():
            raise ValueError(
                f"sentence {number} is empty: write some words"
            )
        unknown = tokenizer.unknown_words(sentence)
        if unknown:
            words = ", ".join(repr(word) for word in unknown)
            raise ValueError(
                f"sentence {number} has words that the model never saw: "
                f"{words}; use words of its vocabulary, or train a model "
                "on text that has them"
            )


# ---
@torch.inference_mode()
def translation_map(translator: Translator, sentence: str):
    """A translation, and what each of its tokens looked at.

    Returns (source tokens, target tokens, weights (N, H, T, S)): the
    cross-attention of every decoder block in the one pass that scores
    the translation. The last token of each side is `end`.
    """
    check_sentences([sentence], translator.tokenizer)
    model, tokenizer = translator.model, translator.tokenizer
    device = next(model.parameters()).device
    src_ids = make_batch([(tokenizer.encode(sentence), [])]).src_ids
    src_ids = src_ids.to(device)
    labels = greedy_search(model, src_ids)
    with attention_maps(model) as maps:
        model.features(src_ids, shift_right(labels))
    weights = [w for name, w in maps.items() if "cross" in name]
    source = [*tokenizer.tokens(sentence), "<end>"]
    target = tokenizer.tokens(tokenizer.decode(labels[0]))
    weights = torch.cat(weights)  # (N, H, T, S), as B is 1
    return source, [*target, "<end>"][: weights.size(2)], weights
