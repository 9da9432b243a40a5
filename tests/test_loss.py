"""The loss that never holds all logits equals the library's plain one."""

import pytest
import torch
import torch.nn.functional as F

from transformer18.loss import label_smoothed_loss
from transformer18.vocabulary import PAD

B, T, D, V = 3, 7, 5, 11


def example(dtype=torch.float64):
    torch.manual_seed(0)
    features = torch.randn(B, T, D, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, D, dtype=dtype, requires_grad=True)
    labels = torch.randint(1, V, (B, T))
    labels[0, 4:] = labels[2, 1:] = PAD
    return features, weight, labels


def plain(features, weight, labels, smoothing):
    return F.cross_entropy(
        (features @ weight.T).flatten(0, 1), labels.flatten(),
        label_smoothing=smoothing, ignore_index=PAD, reduction="sum",
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("chunk", [1, 4, 512])
def test_value_and_gradients(smoothing, chunk):
    features, weight, labels = example()
    loss, nll = label_smoothed_loss(
        features, weight, labels, smoothing=smoothing, chunk=chunk
    )
    expected = plain(features, weight, labels, smoothing)
    assert abs(loss - expected) < 1e-10
    assert abs(nll - plain(features, weight, labels, 0.0)) < 1e-10
    ours = torch.autograd.grad(3 * loss, (features, weight))
    theirs = torch.autograd.grad(3 * expected, (features, weight))
    for mine, other in zip(ours, theirs):
        assert (mine - other).abs().max() < 1e-10


def test_gradients_numerically():
    features, weight, labels = example()
    assert torch.autograd.gradcheck(
        lambda f, w: label_smoothed_loss(f, w, labels, chunk=4)[0],
        (features, weight),
    )


def test_only_the_smoothed_loss_has_a_gradient():
    features, weight, labels = example()
    loss, nll = label_smoothed_loss(features, weight, labels)
    assert loss.requires_grad and not nll.requires_grad


def test_padding_alone_costs_nothing():
    features, weight, labels = example()
    loss, nll = label_smoothed_loss(features, weight, labels * 0)
    loss.backward()
    assert loss == nll == 0
    assert (features.grad == 0).all() and (weight.grad == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    features, weight, labels = example(torch.float32)
    expected = plain(features, weight, labels, 0.1)
    with torch.autocast("cpu", dtype):
        loss, _ = label_smoothed_loss(features, weight, labels)
    assert loss.dtype == torch.float32
    assert abs(loss / expected - 1) < 0.01
    loss.backward()
    theirs = torch.autograd.grad(expected, (features, weight))
    for mine, other in zip((features.grad, weight.grad), theirs):
        assert mine.dtype == torch.float32
        assert (mine - other).abs().max() < 0.1


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_out_of_range(smoothing):
    with pytest.raises(ValueError, match=rf"\[0, 1\), not {smoothing}"):
        label_smoothed_loss(*example(), smoothing=smoothing)


def test_labels_and_shapes_that_do_not_fit():
    features, weight, labels = example()
    with pytest.raises(IndexError, match="id 11 is outside"):
        label_smoothed_loss(features, weight, labels.clamp(min=V))
    with pytest.raises(ValueError, match="do not fit labels"):
        label_smoothed_loss(features, weight, labels[:, 1:])
    with pytest.raises(ValueError, match="chunk must be at least 1, not -1"):
        label_smoothed_loss(features, weight, labels, chunk=-1)


def test_judging_makes_no_gradients():
    """Without gradients the products that make them are left out."""
    features, weight = torch.randn(2, 3, 5), torch.randn(9, 5)
    labels = torch.randint(1, 9, (2, 3))
    counts = {}
    for name, wanted in (("train", True), ("judge", False)):
        features.requires_grad_(wanted)
        with torch.profiler.profile() as profile:
            found = label_smoothed_loss(features, weight, labels)
        counts[name] = sum(e.count for e in profile.key_averages() if e.key == "aten::mm")
        if wanted:
            right = found
    assert counts["judge"] == 1 < counts["train"] == 3
    assert all(torch.equal(a, b) for a, b in zip(found, right))
