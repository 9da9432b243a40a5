"""What the package is compared with: what its user would pick instead.

An adapter a peer: a training step of the same sizes on the same ids, and
where a peer decodes, a decoder with the same weights.

    torch.nn             nn.Transformer, with all that it leaves to its user
    Hugging Face Marian  MarianMTModel, the translator of transformers
    x-transformers       XTransformer
    CTranslate2          decoding only: a C++ engine for trained models

A peer that is not installed is named (`missing`), never left out in silence.
"""

import importlib.metadata
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import nn

from transformer18.batching import Batch
from transformer18.build import make_transformer
from transformer18.config import TransformerConfig
from transformer18.decoding import search_all
from transformer18.embedding import TokenEmbedding
from transformer18.export import to_ctranslate2
from transformer18.masking import causal_mask
from transformer18.packing import pack
from transformer18.position import SinusoidalPosition, sinusoids
from transformer18.training import Recipe, Updater
from transformer18.vocabulary import BEGIN, END, PAD, UNKNOWN, Vocabulary, pad

NN, MARIAN, X, CT2 = "torch.nn", "Hugging Face Marian", "x-transformers", "CTranslate2"
DISTRIBUTIONS = {NN: "torch", MARIAN: "transformers", X: "x-transformers", CT2: "ctranslate2"}
RECIPE = Recipe()  # the paper's smoothing and constants of Adam
RATE = 1e-4  # learning rate


def versions() -> dict[str, str | None]:
    """The version of every peer's distribution; None: not installed."""
    found = {}
    for distribution in DISTRIBUTIONS.values():
        try:
            found[distribution] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            found[distribution] = None
    return found


def missing() -> dict[str, str]:
    """Peers that are not installed, and how to change that."""
    known = versions()
    return {
        peer: f'not installed: {name} (pip install -e ".[bench]")'
        for peer, name in DISTRIBUTIONS.items()
        if known[name] is None
    }


# -- sizes and data ------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """The sizes of a model and of the batch that it is trained on."""

    name: str
    d_model: int
    n_heads: int
    d_ff: int
    n_layers: int
    vocab_size: int
    sentences: int  # of a batch
    tokens: int  # of each sentence, on both sides

    def config(self, dropout: float) -> TransformerConfig:
        return TransformerConfig(
            self.vocab_size, d_model=self.d_model, n_heads=self.n_heads,
            d_ff=self.d_ff, n_layers=self.n_layers, dropout=dropout,
        )  # fmt: skip

    def ids(self, sentences: int | None = None, tokens: int | None = None) -> Batch:
        """Sentences of one length: random ids, then `end`."""
        shape = 2, sentences or self.sentences, tokens or self.tokens
        ids = torch.randint(UNKNOWN + 1, self.vocab_size, shape)
        ids[..., -1] = END
        return Batch(*ids)

    @property
    def flops(self) -> float:
        """Of all matrix products of a training step on `ids()`.

        Two for every weight and token that it is multiplied with, and as
        many for the products of attention; backward takes twice what
        forward takes. Look-ups in the embedding count as nothing.
        """
        D, N, B, T = self.d_model, self.n_layers, self.sentences, self.tokens
        attention, feed_forward = 4 * D * D, 2 * D * self.d_ff
        weights = N * (3 * attention + 2 * feed_forward) + self.vocab_size * D
        scores = 3 * N * 2 * T * D  # QKᵀ and AV: both need T D a token
        return 3 * 2.0 * B * T * (weights + scores)


SIZES = {
    "tiny": Size("tiny", 128, 4, 256, 4, vocab_size=8000, sentences=128, tokens=32),
    "base": Size("base", 512, 8, 2048, 6, vocab_size=37_000, sentences=32, tokens=32),
}
SMOKE = {  # in their stead, to see whether all runs
    "tiny": Size("tiny", 12, 2, 20, 1, vocab_size=43, sentences=3, tokens=7),
    "base": Size("base", 16, 4, 24, 2, vocab_size=53, sentences=2, tokens=6),
}


# -- training: models ----------------------------------------------------------


class TorchTransformer(nn.Module):
    """nn.Transformer with all that it leaves to its user.

    features(src_ids (B, S), tgt_ids (B, T)) -> (B, T, D) and
    `output_weight` (V, D), as the package's model has them. The same
    embedding (shared by source, target and output) and positions; its two
    final norms, which the paper does not have, are taken out. It keeps its
    biases in attention, and its dropout on attention weights and on inner
    features of the feed-forward network.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.embedding = TokenEmbedding(config.src_vocab_size, config.d_model)
        self.position = SinusoidalPosition(config.d_model, config.dropout)
        self.inner = nn.Transformer(
            config.d_model, config.n_heads, config.n_layers, config.n_layers,
            config.d_ff, config.dropout, batch_first=True,
        )  # fmt: skip
        self.inner.encoder.norm = self.inner.decoder.norm = None

    @property
    def output_weight(self) -> torch.Tensor:
        return self.embedding.weight

    def features(self, src_ids, tgt_ids):
        hidden = src_ids == PAD  # in torch.nn, True is hidden
        return self.inner(
            self.position(self.embedding(src_ids)),
            self.position(self.embedding(tgt_ids)),
            tgt_mask=~causal_mask(tgt_ids.size(1)),
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )

    def logits(self, src_ids, tgt_ids):
        return F.linear(self.features(src_ids, tgt_ids), self.output_weight)


def marian(config: TransformerConfig) -> nn.Module:
    """MarianMTModel of these sizes, with dropout where the paper has it."""
    from transformers import MarianConfig, MarianMTModel

    sizes = {
        f"{half}_{name}": value
        for half in ("encoder", "decoder")
        for name, value in (
            ("layers", config.n_layers),
            ("attention_heads", config.n_heads),
            ("ffn_dim", config.d_ff),
        )
    }
    settings = MarianConfig(
        vocab_size=config.src_vocab_size, d_model=config.d_model, **sizes,
        activation_function="relu", scale_embedding=True, dropout=config.dropout,
        attention_dropout=0.0, activation_dropout=0.0, max_position_embeddings=1024,
        pad_token_id=PAD, bos_token_id=BEGIN, eos_token_id=END,
        decoder_start_token_id=BEGIN, forced_eos_token_id=None,
    )  # fmt: skip
    return MarianMTModel(settings)


def x_transformer(config: TransformerConfig, tokens: int) -> nn.Module:
    """XTransformer of these sizes: its fused attention, dropout where the
    paper has it, norms after the sublayers, one embedding for all."""
    from x_transformers import XTransformer

    p = config.dropout
    half = dict(
        num_tokens=config.src_vocab_size, max_seq_len=tokens, depth=config.n_layers,
        heads=config.n_heads, attn_dim_head=config.d_head, attn_flash=True, pre_norm=False,
        ff_mult=config.d_ff / config.d_model, ff_custom_activation=nn.ReLU(), emb_dropout=p,
        attn_sublayer_dropout=p, ff_sublayer_dropout=p,
    )  # fmt: skip
    halves = {f"{side}_{name}": value for side in ("enc", "dec") for name, value in half.items()}
    model = XTransformer(dim=config.d_model, tie_token_emb=True, ignore_index=PAD, **halves)
    decoder = model.decoder.net
    decoder.to_logits.weight = decoder.token_emb.emb.weight  # the output layer, too
    return model


# -- training: steps -----------------------------------------------------------


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """As torch makes it, with the paper's constants."""
    return torch.optim.Adam(model.parameters(), lr=RATE, betas=RECIPE.betas, eps=RECIPE.eps)


def smoothed_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """As one would write it first: (B, T, V), (B, T) -> mean a label."""
    return F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(),
        ignore_index=PAD, label_smoothing=RECIPE.smoothing,
    )  # fmt: skip


def plain_step(
    model: nn.Module, loss: Callable[[Batch], torch.Tensor], optimizer=None
) -> Callable[[Batch], float]:
    """The loop as one would write it first; a step gives the loss."""
    optimizer = optimizer or adam(model)

    def step(batch: Batch) -> float:
        model.train()
        found = loss(batch)
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        return found.item()

    return step


def package_step(
    model: nn.Module, optimizer=None, precision: str = "float32", rate: float = RATE
) -> Callable[[Batch], float]:
    """A step of the package's loop; it gives the loss without smoothing."""
    factor = rate * model.config.d_model**0.5  # the schedule's first step
    updater = Updater(model, replace(RECIPE, warmup=1, factor=factor, precision=precision))
    updater.optimizer = optimizer or updater.optimizer
    return lambda batch: updater(1, [batch]).item() / batch.n_tokens


def nn_loss(model) -> Callable[[Batch], torch.Tensor]:
    """Of a model with `features` and `output_weight`."""

    def loss(batch: Batch) -> torch.Tensor:
        features = model.features(batch.src_ids, batch.tgt_ids)
        return smoothed_loss(F.linear(features, model.output_weight), batch.labels)

    return loss


def marian_loss(model) -> Callable[[Batch], torch.Tensor]:
    def loss(batch: Batch) -> torch.Tensor:
        logits = model(
            input_ids=batch.src_ids, attention_mask=batch.src_ids != PAD,
            decoder_input_ids=batch.tgt_ids, use_cache=False,
        ).logits  # fmt: skip
        return smoothed_loss(logits, batch.labels)

    return loss


def x_loss(model) -> Callable[[Batch], torch.Tensor]:
    """On its logits, as for the others: its own loss has no smoothing, and
    takes longer than F.cross_entropy."""

    def loss(batch: Batch) -> torch.Tensor:
        mask = batch.src_ids != PAD
        memory = model.encoder(batch.src_ids, mask=mask, return_embeddings=True)
        logits = model.decoder.net(batch.tgt_ids, context=memory, context_mask=mask)
        return smoothed_loss(logits, batch.labels)

    return loss


BF16 = "package, bfloat16"
OURS = "package, package's loop"
THEIRS = "torch.nn, plain loop"
TRAINERS = {  # contender: the peer that it needs
    THEIRS: NN,
    "torch.nn, package's loop": NN,
    "package, plain loop": NN,
    OURS: NN,
    BF16: NN,
    MARIAN: MARIAN,
    X: X,
}
TRAINERS_ARE = {
    THEIRS: "nn.Transformer; F.cross_entropy on all logits, Adam as torch makes it",
    "torch.nn, package's loop": "nn.Transformer; Updater: chunked loss, fused Adam",
    "package, plain loop": "make_transformer; F.cross_entropy, Adam as torch makes it",
    OURS: "make_transformer; Updater: chunked loss, fused Adam",
    BF16: "the same, products in bfloat16",
    MARIAN: "MarianMTModel; F.cross_entropy on all logits, Adam as torch makes it",
    X: "XTransformer; F.cross_entropy on all logits, Adam as torch makes it",
}


def make_model(kind: str, size: Size, dropout: float) -> nn.Module:
    """An untrained model, "torch.nn" or "package"."""
    config = size.config(dropout)
    return TorchTransformer(config) if kind == "torch.nn" else make_transformer(config)


def make_trainer(name: str, size: Size, dropout: float) -> Callable[[Batch], float]:
    """The contender, ready: each call is one training step on a batch."""
    torch.manual_seed(0)
    config = size.config(dropout)
    if name == MARIAN:
        model = marian(config)
        return plain_step(model, marian_loss(model))
    if name == X:
        model = x_transformer(config, 1024)
        return plain_step(model, x_loss(model))
    if name == BF16:
        return package_step(make_transformer(config), precision="bfloat16")
    kind, loop = name.split(", ")
    model = make_model(kind, size, dropout)
    return plain_step(model, nn_loss(model)) if loop == "plain loop" else package_step(model)


# -- decoding: one model for all -----------------------------------------------


@torch.no_grad()
def endless_model(size: Size, seed: int = 0) -> nn.Module:
    """A random model that never ends a sentence, whoever decodes with it.

    The bias u of the last norm (1 or -1 in each place) is part of every
    feature vector, and the special tokens' embeddings, -12 u / D, point away
    from it, so that their logits are about -12, and 0 at the very most, where
    others reach 4. No engine needs an option to write as
    many tokens as it may. The gain of that norm gets random signs: else a
    model as untrained as this says the token that it has just read, which
    shares its embedding, for ever.
    """
    torch.manual_seed(seed)
    model = make_transformer(size.config(0.0)).eval()
    last = model.decoder.blocks[-1].add_norm_3.norm
    last.weight.copy_(torch.randn_like(last.weight).sign())
    last.bias.copy_(torch.randn_like(last.bias).sign())
    model.output_weight[: UNKNOWN + 1] = -12 * last.bias / size.d_model
    return model


def random_sentences(size: Size, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Id lists, without `end`, of these lengths."""
    torch.manual_seed(seed)
    first, last = UNKNOWN + 1, size.vocab_size
    return [torch.randint(first, last, (length,)).tolist() for length in lengths]


class Decoder:
    """An engine with a model in it.

    job(sentences, beam, max_length) is what is timed: a call without
    arguments that translates id lists (without `end`) all at once. `ids` reads
    the tokens from what the call gives back.
    """

    def job(self, sentences, beam: int = 1, max_length: int = 64) -> Callable:
        raise NotImplementedError

    def ids(self, found) -> list[list[int]]:
        raise NotImplementedError

    def translate(self, sentences, beam: int = 1, max_length: int = 64) -> list[list[int]]:
        return self.ids(self.job(sentences, beam, max_length)())


class PackageDecoder(Decoder):
    """`search_all` with a packed model, as `Translator.translate` calls it:
    without the scores, which the others don't give unless asked, either."""

    def __init__(self, model: nn.Module, int8: bool = False):
        self.model = pack(model, int8=True) if int8 else pack(model)

    def job(self, sentences, beam=1, max_length=64):
        options = dict(beam=beam, alpha=0, max_length=max_length, scores=False)
        return lambda: search_all(self.model, sentences, **options)

    def ids(self, found):
        return [list(best[0].ids) for best in found]


class CTranslate2Decoder(Decoder):
    """ctranslate2.Translator on the exported model.

    It reads and writes words; those of the sentences are made beforehand.
    """

    def __init__(self, model: nn.Module, int8: bool = False, threads: int = 1):
        import ctranslate2

        size = model.config.src_vocab_size
        self.words = Vocabulary([f"w{i}" for i in range(UNKNOWN + 1, size)])
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            to_ctranslate2(model, self.words, path, int8=int8)
            self.translator = ctranslate2.Translator(
                str(path), device="cpu", inter_threads=1, intra_threads=threads,
                compute_type="int8" if int8 else "float32",
            )  # fmt: skip

    def job(self, sentences, beam=1, max_length=64):
        words = [[self.words.words[i] for i in sentence] for sentence in sentences]
        options = dict(beam_size=beam, max_decoding_length=max_length, length_penalty=0)
        return lambda: self.translator.translate_batch(words, **options)

    def ids(self, found):
        return [[self.words.ids.get(w, UNKNOWN) for w in one.hypotheses[0]] for one in found]


class MarianDecoder(Decoder):
    """`generate` of MarianMTModel with the same weights."""

    def __init__(self, model: nn.Module):
        self.model = marian(model.config).eval()
        copy_to_marian(model, self.model)

    def job(self, sentences, beam=1, max_length=64):
        ids = pad([[*sentence, END] for sentence in sentences])
        options = dict(
            input_ids=ids, attention_mask=(ids != PAD).long(), num_beams=beam,
            do_sample=False, max_new_tokens=max_length, use_cache=True,
        )  # fmt: skip

        def run():
            with torch.inference_mode(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self.model.generate(**options)

        return run

    def ids(self, found):
        return [[i for i in row if i != PAD] for row in found[:, 1:].tolist()]


@torch.no_grad()
def copy_to_marian(ours: nn.Module, theirs: nn.Module) -> None:
    """The same weights and sinusoids, and no bias in attention."""
    body = theirs.model
    body.shared.weight.copy_(ours.src_embedding.weight)
    table = sinusoids(body.config.max_position_embeddings, ours.config.d_model)
    for half, own in ((body.encoder, ours.encoder), (body.decoder, ours.decoder)):
        half.embed_positions.weight.copy_(table)
        for layer, block in zip(half.layers, own.blocks, strict=True):
            copy_block(block, layer)


def copy_block(ours: nn.Module, theirs: nn.Module) -> None:
    """A block of ours into a layer of Marian's."""
    parts = [(ours.self_attention, theirs.self_attn, theirs.self_attn_layer_norm)]
    norms = [ours.add_norm_1.norm, ours.add_norm_2.norm]
    if hasattr(ours, "cross_attention"):
        parts.append((ours.cross_attention, theirs.encoder_attn, theirs.encoder_attn_layer_norm))
        norms.append(ours.add_norm_3.norm)
    for (attention, other, other_norm), norm in zip(parts, norms):
        projections = (*attention.projections.weight, attention.output.weight)
        for name, weight in zip(("q_proj", "k_proj", "v_proj", "out_proj"), projections):
            linear = getattr(other, name)
            linear.weight.copy_(weight)
            linear.bias.zero_()
        copy_linear(norm, other_norm)
    copy_linear(ours.feed_forward.expand, theirs.fc1)
    copy_linear(ours.feed_forward.contract, theirs.fc2)
    copy_linear(norms[-1], theirs.final_layer_norm)


def copy_linear(ours: nn.Module, theirs: nn.Module) -> None:
    theirs.weight.copy_(ours.weight)
    theirs.bias.copy_(ours.bias)
