"""Chapter 0: the figure style, the helpers and the architecture drawing."""

from io import BytesIO
from itertools import pairwise

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib import colors as mcolors
from PIL import Image

from transformer18 import diagram, figures
from transformer18.diagram import GROUPS, PARTS, architecture, lit_parts, parts, shown, you_are_here
from transformer18.figures import (
    COLOURS,
    DIVERGING,
    SEQUENTIAL,
    Box,
    arrow,
    attention_map,
    bars,
    box,
    canvas,
    curves,
    heads_grid,
    heatmap,
    mask_picture,
    matrix,
    mix,
    png,
    sketch,
    tint,
    to_array,
    use_style,
)


@pytest.fixture(autouse=True)
def style():
    with plt.rc_context():
        use_style()
        yield
    plt.close("all")


def pixels(figure):
    return np.asarray(Image.open(BytesIO(png(figure))).convert("RGB"))


def drawn(ax):
    """Axes after layout, for what depends on it."""
    ax.figure.canvas.draw()
    return ax


def words(ax):
    return [text.get_text() for text in ax.texts]


# --- colours -----------------------------------------------------------

TO_LMS = np.array([[0.4122214708, 0.5363325363, 0.0514459929],
                   [0.2119034982, 0.6806995451, 0.1073969566],
                   [0.0883024619, 0.2817188376, 0.6299787005]])
TO_LAB = np.array([[0.2104542553, 0.7936177850, -0.0040720468],
                   [1.9779984951, -2.4285922050, 0.4505937099],
                   [0.0259040371, 0.7827717662, -0.8086757660]])
# How red, green and blue look to one without green or red cones
# (Machado, Oliveira and Fernandes, 2009, severity 1, linear RGB).
BLIND = {
    "none": np.eye(3),
    "green": np.array([[0.367322, 0.860646, -0.227968],
                       [0.280085, 0.672501, 0.047413],
                       [-0.011820, 0.042940, 0.968881]]),
    "red": np.array([[0.152286, 1.052583, -0.204868],
                     [0.114503, 0.786281, 0.099216],
                     [-0.003882, -0.048116, 1.051998]])}


def linear(colours):
    rgb = mcolors.to_rgba_array(colours)[:, :3]
    return np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4,
                    rgb / 12.92)


def oklab(colours, sight="none"):
    rgb = np.clip(linear(colours) @ BLIND[sight].T, 0, 1)
    return np.cbrt(rgb @ TO_LMS.T) @ TO_LAB.T


def contrast(a, b):
    light, dark = sorted((linear([c])[0] @ (0.2126, 0.7152, 0.0722)
                          for c in (a, b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("sight", BLIND)
def test_roles_differ_for_every_eye(sight):
    roles = [r for r in COLOURS if r not in ("encoder", "decoder")]
    lab = oklab([COLOURS[r] for r in roles], sight)
    apart = np.linalg.norm(lab[:, None] - lab[None], axis=-1)
    apart[np.diag_indices(len(roles))] = 1
    i, j = np.unravel_index(apart.argmin(), apart.shape)
    assert apart[i, j] > 0.08, (roles[i], roles[j], apart[i, j])


@pytest.mark.parametrize("role", sorted(set(COLOURS) - {"ink"}))
def test_ink_is_readable_on_every_box(role):
    assert contrast(COLOURS["ink"], tint(role, 0.65)) > 4.5


@pytest.mark.parametrize("scale", [SEQUENTIAL, DIVERGING])
def test_colour_scales_are_even(scale):
    lab = oklab(scale(np.linspace(0, 1, 49)))
    steps = np.linalg.norm(np.diff(lab, axis=0), axis=1)
    assert steps.min() > 0.7 * steps.mean()
    assert steps.max() < 1.3 * steps.mean()
    turns = np.diff(np.sign(np.diff(lab[:, 0])))
    assert np.count_nonzero(turns) == (scale is DIVERGING)


def test_diverging_is_lightest_at_zero():
    light = oklab(DIVERGING(np.linspace(0, 1, 257)))[:, 0]
    assert abs(light.argmax() - 128) <= 1
    assert light[0] == pytest.approx(light[-1], abs=0.03)


def test_mix_and_tint():
    assert tint("source", 0) == COLOURS["source"].lower()
    assert tint("source", 1) == "#ffffff"
    assert mix("black", "white", 0.2) == "#333333"
    with pytest.raises(ValueError, match="no-colour"):
        tint("no-colour")


# --- style -------------------------------------------------------------

def test_png_is_wide_opaque_small_and_the_same_twice():
    def draw():
        ax = heatmap(torch.arange(35.0).reshape(5, 7), title="t")
        return png(ax.figure)
    first = draw()
    image = Image.open(BytesIO(first))
    assert image.width == 1400 and "transparency" not in image.info
    assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert len(first) < 120_000
    assert draw() == first


def test_png_keeps_the_colours():
    values = torch.linspace(-1, 1, 800).reshape(20, 40)
    raw = BytesIO()
    heatmap(values).figure.savefig(raw, format="png")
    true = np.asarray(Image.open(raw).convert("RGB")).astype(int)
    off = np.abs(pixels(heatmap(values).figure) - true).max(axis=-1)
    assert off.mean() < 0.5 and np.percentile(off, 99) <= 6
    assert mcolors.to_hex(
        pixels(you_are_here("add").figure)[5, 5] / 255) == "#ffffff"


def test_style_takes_over_the_notebook():
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    new = nbformat.v4.new_code_cell
    book = nbformat.v4.new_notebook(cells=[
        new("import matplotlib.pyplot as plt\n"
            "from transformer18.figures import heatmap, use_style\n"
            "use_style()\nheatmap([[1, 2], [3, 4]])\nplt.show()"),
        new("use_style()\nheatmap([[1, 2], [3, 4]])\nplt.show()")])
    nbclient.NotebookClient(book, kernel_name="python3").execute()
    outputs = [out for cell in book.cells for out in cell.outputs]
    assert len(outputs) == 2
    first, second = (out.data["image/png"] for out in outputs)
    assert first == second
    assert outputs[0].data["text/plain"].startswith("<Figure size 1400x")


# --- helpers -----------------------------------------------------------

def test_to_array_takes_anything():
    x = torch.tensor([1.5, 2.5], requires_grad=True)
    assert to_array(x).tolist() == [1.5, 2.5]
    assert to_array(x.bfloat16()).tolist() == [1.5, 2.5]
    assert to_array(torch.tensor([True])).dtype == bool
    assert to_array([x, x * 2]).tolist() == [[1.5, 2.5], [3.0, 5.0]]
    assert to_array([x[0], 3]).tolist() == [1.5, 3.0]
    assert to_array(torch.tensor([3])).dtype == np.int64


def test_heatmap_shows_the_values():
    values = torch.rand(5, 7, requires_grad=True)
    ax = heatmap(values, title="t", x_label="x", y_label="y")
    image = ax.images[0]
    assert np.array_equal(image.get_array(), to_array(values))
    assert image.get_clim()[0] == 0
    assert image.get_cmap() == SEQUENTIAL
    assert words(ax)[:2] == [f"{v:.2f}" for v in values[0, :2].tolist()]
    assert len(ax.texts) == 35
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == (
        "t", "x", "y")
    assert ax.get_xlim() == (-0.5, 6.5) and ax.get_ylim() == (4.5, -0.5)
    assert not heatmap(values, annotate=False).texts
    assert not heatmap(torch.rand(9, 9)).texts
    assert len(heatmap(torch.rand(9, 9), annotate=".1f").texts) == 81


def test_heatmap_of_both_signs_is_centred():
    image = heatmap(torch.tensor([[-1.0, 0.0, 3.0]])).images[0]
    assert image.get_clim() == (-3, 3) and image.get_cmap() == DIVERGING
    image = heatmap([[1.0, 2.0]], limits=(-2, 2)).images[0]
    assert image.get_clim() == (-2, 2) and image.get_cmap() == DIVERGING
    image = heatmap(torch.zeros(2, 2)).images[0]
    assert image.get_clim() == (0, 1)
    assert heatmap(-torch.ones(2, 2)).images[0].get_clim() == (-1, 0)


def test_heatmap_of_infinite_scores():
    scores = torch.tensor([[1.0, -torch.inf], [torch.nan, 2.0]])
    ax = heatmap(scores)
    assert ax.images[0].get_array().mask.tolist() == [
        [False, True], [True, False]]
    assert words(ax) == ["1.00", "−∞", "nan", "2.00"]
    drawn(heatmap(torch.full((2, 2), -torch.inf)))


def test_heatmap_numbers_are_readable_on_their_cells():
    ax = heatmap(torch.linspace(-1, 1, 64).reshape(8, 8))
    fills = ax.images[0].to_rgba(ax.images[0].get_array()).reshape(64, 4)
    for text, fill in zip(ax.texts, fills, strict=True):
        assert contrast(text.get_color(), fill) > 3.5


def test_heatmap_names_its_input_when_it_is_wrong():
    with pytest.raises(ValueError, match=r"\(rows, columns\).*\(3,\)"):
        heatmap(torch.rand(3))
    with pytest.raises(ValueError, match="3 for 2"):
        heatmap(torch.rand(2, 2), rows=["a", "b", "c"])


def test_long_words_are_turned_and_short_ones_not():
    short = heatmap(torch.rand(3, 3), columns=["a", "b", "c"])
    long = heatmap(torch.rand(3, 3), columns=["Gesellschaften"] * 3)
    assert drawn(short).get_xticklabels()[0].get_rotation() == 0
    assert drawn(long).get_xticklabels()[0].get_rotation() == 40


def test_mask_picture():
    mask = torch.ones(4, 6, dtype=torch.bool).tril()
    ax = mask_picture(mask)
    assert np.array_equal(ax.images[0].get_array(), mask)
    assert [t.get_text() for t in ax.get_legend().get_texts()] == [
        "may attend", "may not"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    assert mask_picture(mask, legend=False).get_legend() is None
    with pytest.raises(ValueError, match="boolean.*float64"):
        mask_picture(mask.float())
    with pytest.raises(ValueError, match="T_query, T_key"):
        mask_picture(mask[None])


def test_attention_map_names_rows_and_columns():
    weights = torch.rand(3, 4).softmax(-1)
    source = ["the", "dog", "sees", "it"]
    target = ["der", "Hund", "sieht"]
    ax = drawn(attention_map(weights, source, target))
    assert [t.get_text() for t in ax.get_xticklabels()] == source
    assert [t.get_text() for t in ax.get_yticklabels()] == target
    assert ax.images[0].get_clim() == (0, 1)
    with pytest.raises(ValueError, match="3 for 4"):
        attention_map(weights, target, source)


def test_heads_grid():
    weights = torch.rand(6, 3, 4).softmax(-1)
    axes = heads_grid(weights, list("abcd"), list("xyz"), per_row=4)
    assert len(axes) == 6
    for head, ax in zip(weights, axes):
        assert np.array_equal(ax.images[0].get_array(), to_array(head))
        assert ax.images[0].get_clim() == (0, 1)
    assert axes[5].get_title() == "head 5"
    lowest = [bool(ax.xaxis.get_tick_params()["labelbottom"])
              for ax in axes]
    assert lowest == [False, False, True, True, True, True]
    with pytest.raises(ValueError, match="H, T, S"):
        heads_grid(weights[0])


def test_curves():
    x = torch.arange(1, 11)
    ax = curves(x, {"a": x * 2.0, "b": (x, x - 1, x + 1)}, log_x=True,
                colours={"b": "target"}, x_label="step")
    assert ax.lines[0].get_ydata().tolist() == (x * 2.0).tolist()
    assert ax.lines[1].get_color() == COLOURS["target"]
    assert len(ax.collections) == 1
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "linear")
    assert sorted(words(ax)) == ["a", "b"] and ax.get_legend() is None
    legend = curves(x, {"a": x}, at_ends=False).get_legend()
    assert legend.get_texts()[0].get_text() == "a"
    own = curves({"a": [1, 2], "b": [1, 2, 3]},
                 {"a": [1, 2], "b": [3, 2, 1]})
    assert [len(line.get_xdata()) for line in own.lines] == [2, 3]
    with pytest.raises(ValueError, match="'a'.*3.*10"):
        curves(x, {"a": x[:3]})


def test_names_at_line_ends_do_not_touch():
    x = np.arange(20)
    ax = drawn(curves(x, {f"line {i}": x + i / 50 for i in range(6)}))
    boxes = sorted((text.get_window_extent() for text in ax.texts),
                   key=lambda b: b.y0)
    assert len(boxes) == 6
    assert all(a.y1 <= b.y0 + 2 for a, b in pairwise(boxes))
    page = ax.figure.bbox
    assert all(page.contains(b.x1, b.y1) for b in boxes)


def test_bars():
    ax = bars(["a", "b"], torch.tensor([1.0, 2.0]), spread=[0.1, 0.2],
              colours=["source", "target"])
    heights = [bar.get_height() for bar in ax.patches]
    assert heights == [1, 2] and words(ax) == ["1.00", "2.00"]
    assert mcolors.to_hex(ax.patches[1].get_facecolor()) == (
        COLOURS["target"].lower())
    ax = bars(["a", "b"], {"x": [1, 2], "y": [3, 4]}, form=None,
              spread={"y": [[0.1, 0.1], [0.2, 0.3]]})
    assert [len(c) for c in ax.containers if hasattr(c, "patches")] == [
        2, 2]
    assert not ax.texts and len(ax.get_legend().get_texts()) == 2
    with pytest.raises(ValueError, match="one for each"):
        bars(["a", "b"], [1, 2, 3])


# --- drawings ----------------------------------------------------------

def test_one_unit_of_a_sketch_is_one_inch():
    ax = drawn(sketch(2.5))
    (x0, y0), (x1, y1) = ax.transData.transform([(0, 0), (1, 1)])
    assert (x1 - x0, y1 - y0) == pytest.approx((200, 200))
    assert ax.get_ylim() == (0, 2.5)


def test_box_knows_its_sides():
    place = Box(2, 1, 1, 0.5)
    assert place.top == (2, 1.25) and place.bottom == (2, 0.75)
    assert place.left == (1.5, 1) and place.right == (2.5, 1)
    assert place.at(0, 0) == (1.5, 0.75)
    assert place.facing((9, 1)) == place.right
    assert place.facing((2, -3)) == place.bottom


def ends(patch, tip):
    """Where an arrow starts, and how far from `tip` it ends."""
    way = patch.get_path().vertices
    return (*way[0], np.hypot(*(way - tip).T).min())


def test_arrow_runs_between_facing_sides():
    ax = sketch()
    a, b = box(ax, 1, 1, "a"), box(ax, 4, 1, "b", name="end", shape="(B,)")
    assert ends(arrow(ax, a, b, text="x"), b.left) == pytest.approx(
        (*a.right, 0), abs=0.02)
    over = arrow(ax, a, b, via=[(1, 2), (4, 2)])
    assert ends(over, b.top) == pytest.approx((*a.top, 0), abs=0.02)
    bent = arrow(ax, a, b, bend=0.3)
    assert ends(bent, b.left) == pytest.approx((*a.right, 0), abs=0.02)
    assert {"a", "b", "x", "(B,)"} == set(words(ax))
    assert "end" in [patch.get_gid() for patch in ax.patches]


def test_matrix():
    ax = sketch()
    values = torch.tensor([[1.0, -torch.inf, 3.0], [4.0, 5.0, 6.0]])
    place = matrix(ax, 2, 1, values, cell=0.5, title="Q", shape="(T, K)",
                   annotate=".0f")
    assert (place.width, place.height) == (1.5, 1.0)
    shown_values = ax.collections[0].get_array()
    assert shown_values.compressed().tolist() == [1, 3, 4, 5, 6]
    assert words(ax) == ["1", "−∞", "3", "4", "5", "6", "Q", "(T, K)"]
    assert matrix(ax, 5, 1, (3, 2)).height == pytest.approx(0.66)
    assert ax.get_xlim() == (0, figures.WIDTH)


# --- architecture ------------------------------------------------------

def test_names():
    assert parts() == (*PARTS, *GROUPS)
    assert set(GROUPS["encoder"]).isdisjoint(GROUPS["decoder"])
    assert {*GROUPS["encoder"], *GROUPS["decoder"]} == set(PARTS)
    assert set(GROUPS["encoder block"]) == {
        "encoder self-attention", "encoder add", "encoder norm",
        "encoder feed-forward"}
    assert set(GROUPS["decoder block"]) == {
        "decoder self-attention", "cross-attention", "decoder add",
        "decoder norm", "decoder feed-forward"}
    assert lit_parts("multi-head attention") == [
        "encoder self-attention", "decoder self-attention",
        "cross-attention"]
    assert lit_parts() == list(PARTS) and lit_parts([]) == []
    assert lit_parts(["softmax", "add"]) == [
        "encoder add", "decoder add", "softmax"]
    with pytest.raises(ValueError, match="'attn'.*cross-attention.*mask"):
        lit_parts(["add", "attn"])


@pytest.mark.parametrize("lit", [None, [], *parts()])
def test_what_is_lit_is_what_was_asked_for(lit):
    assert shown(architecture(lit)) == lit_parts(lit)
    assert shown(you_are_here(lit)) == lit_parts(lit)


def test_architecture_has_every_sublayer():
    count = [patch.get_gid() for patch in architecture().patches].count
    assert count("encoder norm") == 2 and count("decoder norm") == 3
    assert count("encoder add") == 2 * 2 and count("decoder add") == 3 * 2
    for name in PARTS:
        assert count(name) >= 1


def test_levels():
    assert "Transformer" in words(architecture(level=1))
    two = words(architecture(level=2, source="dog", target="Hund"))
    assert {"encoder", "decoder", "dog", "Hund"} <= set(two)
    three = words(architecture(level=3, n_layers=6))
    assert {"encoder block 1", "decoder block 6", "⋮", "6 ×"} <= set(three)
    assert "encoder block 3" in words(architecture(level=3, n_layers=3))
    with pytest.raises(ValueError, match="level.*5"):
        architecture(level=5)
    for level in (1, 2, 3, 4):
        with pytest.raises(ValueError, match="nothing"):
            architecture("nothing", level=level)


DRAWINGS = {
    **{f"level {n}": lambda n=n: architecture(level=n, title="Title")
       for n in (1, 2, 3, 4)},
    "3 blocks": lambda: architecture(level=3, n_layers=3),
    "map": lambda: you_are_here("encoder add & norm")}


def crossings(ax):
    """Names of the arrows that run through a box."""
    boxes = [p.get_window_extent().padded(-3) for p in ax.patches
             if type(p).__name__ == "FancyBboxPatch" and p.get_zorder() > 1]
    assert boxes
    found = []
    for patch in ax.patches:
        if type(patch).__name__ == "FancyArrowPatch":
            way = patch.get_path().to_polygons(closed_only=False)[0]
            way = np.concatenate([np.linspace(a, b, 50)
                                  for a, b in pairwise(way)])
            way = ax.transData.transform(way)
            found += [patch.get_gid() for b in boxes
                      if any(b.contains(*point) for point in way)]
    return found


@pytest.mark.parametrize("name", DRAWINGS)
def test_no_arrow_crosses_a_box(name):
    ax = DRAWINGS[name]()
    assert crossings(ax) == []
    middle = ax.get_xlim()[1] / 2
    box(ax, middle, 0.5)
    arrow(ax, (middle, 0), (middle, 1), name="planted")
    assert "planted" in crossings(ax)


@pytest.mark.parametrize("name", DRAWINGS)
def test_text_is_on_the_page_in_its_box_and_clear_of_other_text(name):
    ax = drawn(DRAWINGS[name]())
    page = ax.figure.bbox.padded(-4)
    extents = {t: t.get_window_extent() for t in ax.texts}
    for text, place in extents.items():
        assert page.contains(*place.min) and page.contains(*place.max), text
    listed = list(extents.items())
    for i, (text, place) in enumerate(listed):
        for other, there in listed[i + 1:]:
            assert not place.padded(-1).overlaps(there), (text, other)
    for patch in ax.patches:
        if type(patch).__name__ == "FancyBboxPatch" and patch.get_gid():
            around = patch.get_window_extent()
            inside = [p for p in extents.values()
                      if around.contains(p.x0 + p.width / 2,
                                         p.y0 + p.height / 2)]
            assert len(inside) == 1
            assert around.contains(*inside[0].min)
            assert around.contains(*inside[0].max)


def test_small_maps_are_small():
    for lit in (None, "decoder", "connection", "softmax"):
        data = png(you_are_here(lit).figure)
        assert len(data) <= 40_000
        assert Image.open(BytesIO(data)).size == (1400, 740)
        plt.close("all")
    assert len(png(architecture().figure)) < 120_000


def test_architecture_in_given_axes():
    _, axes = canvas(4, 2)
    assert architecture("linear", ax=axes[1]) is axes[1]
    assert shown(axes[1]) == ["linear"]
    assert diagram.shown(axes[0]) == []
