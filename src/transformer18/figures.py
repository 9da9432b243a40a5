"""One figure style for the whole book, and one helper for each kind of
picture (chapter 0). Every helper takes tensors and returns its Axes."""

# ---
import sys
from dataclasses import dataclass
from io import BytesIO

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import colors as mcolors
from matplotlib import get_backend
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator
from PIL import Image

# ---
WIDTH = 7.0  # inches; at 200 dots an inch 1400 px, shown at 700

COLOURS = {  # tell one from another without red or green cones, too
    "source": "#0072B2", "encoder": "#0072B2",
    "target": "#D55E00", "decoder": "#D55E00",
    "embedding": "#E089B6", "position": "#4F2F8A",
    "attention": "#E69F00", "feed_forward": "#56B4E9",
    "add": "#5E5414", "norm": "#E9D534", "output": "#00AA74",
    "highlight": "#AE1161", "muted": "#727F8E",
    "ink": "#1F2933", "paper": "#FFFFFF"}


def mix(role, other, amount):
    """Hex colour: `role` with the share `amount` (0 to 1) of `other`;
    both are roles of `COLOURS` or any colour matplotlib knows."""
    a, b = (np.array(mcolors.to_rgb(COLOURS.get(c, c)))
            for c in (role, other))
    return mcolors.to_hex(a + amount * (b - a))


def tint(role, amount=0.75):
    """Hex colour: `role` mixed with white (1 is white)."""
    return mix(role, "paper", amount)


def colour_scale(*stops):
    """Colour map through the stops; grey where there is no number."""
    return mcolors.LinearSegmentedColormap.from_list(
        "book", stops).with_extremes(bad="#CBD2D9")


# The stops are a nearly equal distance apart for the eye (in Oklab).
BLUES = "#F8FAFC #BED7ED #84B5DE #4592CC #2D6CA1 #1A4975 #08264A".split()
BROWNS = "#4A1A00 #75340A #A2511B #D26F2B #E49D74 #F1CAB4".split()
SEQUENTIAL = colour_scale(*BLUES)
DIVERGING = colour_scale(*BROWNS, *BLUES)

# ---
STYLE = {
    "figure.figsize": (WIDTH, 3.2), "figure.dpi": 200,
    "figure.facecolor": "white", "figure.constrained_layout.use": True,
    "savefig.dpi": "figure", "savefig.facecolor": "white",
    "savefig.bbox": None, "svg.hashsalt": "transformer18",
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.08,
    "font.family": "DejaVu Sans",  # the one that matplotlib brings along
    "font.size": 10, "axes.titlesize": 10.5, "axes.titleweight": "bold",
    "xtick.labelsize": 9, "ytick.labelsize": 9, "legend.fontsize": 9,
    "legend.frameon": False, "text.color": COLOURS["ink"],
    "axes.labelcolor": COLOURS["ink"], "axes.edgecolor": "#7B8794",
    "xtick.color": "#52606D", "ytick.color": "#52606D",
    "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#E4E7EB", "axes.axisbelow": True,
    "axes.linewidth": 0.8, "grid.linewidth": 0.8, "lines.linewidth": 2,
    "axes.prop_cycle": plt.cycler(color=[COLOURS[c] for c in (
        "source", "target", "output", "position", "attention",
        "embedding", "feed_forward", "muted")])}


# ---
def png(figure):
    """PNG bytes of a figure in 256 colours, a third of the usual size;
    never cropped, so that type has one size in the whole book."""
    raw, small = BytesIO(), BytesIO()
    figure.savefig(raw, format="png")
    image = Image.open(raw).convert("RGB")
    image = image.quantize(kmeans=1, dither=Image.Dither.NONE)
    image.save(small, "png", optimize=True)
    return small.getvalue()


def use_style():
    """Set the style of the book; call it once in every notebook, where
    it also makes figures appear as `png` draws them."""
    plt.rcParams.update(STYLE)
    shell = getattr(sys.modules.get("IPython"), "get_ipython", int)()
    if shell:
        plt.switch_backend(get_backend())  # it sets its own PNG first
        shell.display_formatter.formatters["image/png"].for_type(
            plt.Figure, png)


# ---
def to_array(values):
    """numpy array of a tensor (on any device, with or without gradient,
    bfloat16 too), an array, a number or a (nested) list of them."""
    if isinstance(values, (list, tuple)):
        return np.array([to_array(v) for v in values])
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
    return np.asarray(values)


def _of_shape(values, *axes):
    """`values` as an array with these axes, or an error naming them."""
    values = to_array(values)
    if values.ndim != len(axes) or values.size == 0:
        raise ValueError(
            f"needs values of shape ({', '.join(axes)}), not "
            f"{values.shape}: index or reshape them first")
    return values


def _one_each(what, got, need):
    if got != need:
        raise ValueError(f"{what}: {got} for {need}, give one for each")


# ---
def canvas(height=3.2, columns=1, rows=1, **kwargs):
    """(figure, axes) as by `plt.subplots`, as wide as the page and
    `height` inches high; the rest goes to `plt.subplots`."""
    return plt.subplots(rows, columns, figsize=(WIDTH, height),
                        **{"layout": "compressed", **kwargs})


def _shades(values, limits=None, chosen=None):
    """(colour map, low, high): both signs diverge from white at 0."""
    seen = values[np.isfinite(values)]
    low, high = (min(seen.min(), 0), seen.max()) if seen.size else (0, 1)
    if low < 0 < high:
        low, high = -max(-low, high), max(-low, high)
    low, high = limits or (low, high if high > low else low + 1)
    fitting = DIVERGING if low < 0 < high else SEQUENTIAL
    return chosen or fitting, low, high


# ---
def _names(axis, names, n, room, turn):
    """Words, or numbers from 0, along an axis of n cells of `room`
    inches; words that do not fit are turned where `turn` allows."""
    if names is None:
        axis.set_major_locator(MaxNLocator(
            min(n, 8 if n > 12 else 12, max(2, int(room * n / 0.2))),
            integer=True, steps=[1, 2, 5, 10]))
        return
    _one_each("names of the cells", len(names), n)
    names = [str(name) for name in names]
    axis.set_ticks(range(n), names)
    if turn and max(map(len, names)) * 0.085 > room:
        steep = room < 0.2  # there is just height for a line a cell
        plt.setp(axis.get_ticklabels(), rotation=90 if steep else 40,
                 va="center" if steep else "top", ha="right",
                 rotation_mode="anchor")


def _numbers(ax, values, form, x, y, mappable, cell):
    """Numbers in cells of `cell` inches: dark on light, white on dark."""
    longest = max(len(format(value, form)) for value in values.flat)
    size = min(9, 98 * cell / longest)
    for (i, j), value in np.ndenumerate(values):
        text = "−∞" if value == -np.inf else format(value, form)
        shade = mappable.to_rgba(np.ma.masked_invalid([value]))[0, :3]
        light = shade @ (0.3, 0.59, 0.11) > 0.5
        ax.text(x[j], y[i], text.replace("-", "−"), ha="center",
                va="center", size=size,
                color=COLOURS["ink" if light else "paper"])


# ---
def heatmap(values, *, rows=None, columns=None, title=None, x_label=None,
            y_label=None, annotate=None, ax=None, limits=None,
            colour_map=None, bar=True, bar_label=None):
    """Picture of a matrix (rows, columns), row 0 on top.

    `rows`, `columns`: names of the cells, else numbers from 0.
    `annotate`: write the numbers (None: when at most 8 by 8), or a format
    such as ".1f". `limits`: (low, high) of the colours. Both signs
    diverge from white at 0; NaN and infinity are grey. Returns the Axes.
    Raises ValueError for anything but a matrix."""
    values = _of_shape(values, "rows", "columns").astype(float)
    tall, wide = values.shape
    if ax is None:
        cell = min(4.8 / wide, 3.6 / tall, 0.7)
        ax = canvas(max(cell * tall, 0.5) + 0.9)[1]
    colour_map, low, high = _shades(values, limits, colour_map)
    image = ax.imshow(np.ma.masked_invalid(values), cmap=colour_map,
                      vmin=low, vmax=high, interpolation="nearest")
    place, page = ax.get_position(), ax.figure.get_size_inches()
    room = min(place.width * page[0] / wide,
               place.height * page[1] / tall)
    _names(ax.xaxis, columns, wide, room, turn=True)
    _names(ax.yaxis, rows, tall, room, turn=False)
    ax.set(title=title or "", xlabel=x_label or "", ylabel=y_label or "")
    ax.grid(False)
    ax.tick_params(length=0)
    ax.spines[:].set(visible=True, color="#CBD2D9")
    if max(tall, wide) <= 24:  # white lines between the cells
        ax.hlines(np.arange(0.5, tall - 1), -0.5, wide - 0.5, "w", lw=1)
        ax.vlines(np.arange(0.5, wide - 1), -0.5, tall - 0.5, "w", lw=1)
    if annotate or annotate is None and max(tall, wide) <= 8:
        form = annotate if isinstance(annotate, str) else ".2f"
        _numbers(ax, values, form, range(wide), range(tall), image, room)
    if bar:
        ax.figure.colorbar(image, ax=ax, shrink=0.8, aspect=22, pad=0.02,
                           label=bar_label).outline.set_visible(False)
    return ax


# ---
def mask_picture(mask, *, rows=None, columns=None, title=None,
                 x_label="key", y_label="query", ax=None, legend=True):
    """Picture of a boolean mask (T_query, T_key), True = may attend.

    Returns the Axes. Raises ValueError when the mask is not boolean."""
    mask = _of_shape(mask, "T_query", "T_key")
    if mask.dtype != bool:
        raise ValueError(f"a mask is boolean (True = may attend), not "
                         f"{mask.dtype}: compare first, as in mask != 0")
    two = mcolors.ListedColormap(["#E4E7EB", COLOURS["source"]])
    ax = heatmap(mask, rows=rows, columns=columns, title=title, ax=ax,
                 x_label=x_label, y_label=y_label, annotate=False,
                 limits=(0, 1), colour_map=two, bar=False)
    if legend:
        ax.legend(handles=[Patch(color=two(1), label="may attend"),
                           Patch(color=two(0), label="may not")],
                  loc="upper left", bbox_to_anchor=(1.01, 1.0),
                  handlelength=1, handleheight=1)
    return ax


def attention_map(weights, source_tokens, target_tokens, *, title=None,
                  x_label="source (keys)", y_label="target (queries)",
                  ax=None, limits=(0, 1), **kwargs):
    """Picture of attention weights (T, S): a row for each target token
    (query), a column for each source token (key); further arguments are
    those of `heatmap`. Returns the Axes."""
    return heatmap(weights, rows=target_tokens, columns=source_tokens,
                   title=title, x_label=x_label, y_label=y_label, ax=ax,
                   limits=limits, **{"bar_label": "weight", **kwargs})


# ---
def heads_grid(weights, source_tokens=None, target_tokens=None, *,
               titles=None, per_row=4, x_label="key", y_label="query"):
    """Attention weights (H, T, S), one small map a head, on one scale.

    `titles`: one a head. Returns the list of H Axes."""
    weights = _of_shape(weights, "H", "T", "S")
    n_heads, tall, wide = weights.shape
    across = min(per_row, n_heads)
    down = -(-n_heads // across)
    each = (4.9 if target_tokens else 5.7) / across * tall / wide + 0.25
    figure, axes = canvas(down * each + (0.9 if source_tokens else 0.5),
                          across, down, squeeze=False,
                          sharex=True, sharey=True)
    for ax in axes.flat[n_heads:]:
        ax.set_axis_off()
    axes = list(axes.flat[:n_heads])
    for h, ax in enumerate(axes):
        heatmap(weights[h], rows=target_tokens, columns=source_tokens,
                title=titles[h] if titles else f"head {h}", ax=ax,
                annotate=False, limits=(0, 1), bar=False)
        ax.tick_params(labelsize=8, labelbottom=h + across >= n_heads)
    figure.colorbar(axes[0].images[0], ax=axes, shrink=0.7, aspect=25,
                    pad=0.02, label="weight").outline.set_visible(False)
    figure.supxlabel(x_label, size=10)
    figure.supylabel(y_label, size=10)
    return axes


# ---
def _name_the_ends(ax, ends, gap=12):
    """Write names at line ends (x, y, name, colour), pushed at least
    `gap` points apart."""
    ax.get_ylim()  # settles the limits
    tall = ax.get_position().height * ax.figure.get_figheight() * 72
    place = ax.transScale + ax.transLimits
    ends = sorted(ends, key=lambda end: place.transform(end[:2])[1])
    true = np.array([place.transform(end[:2])[1] * tall for end in ends])
    moved = true.copy()
    for _ in range(200):
        short = np.clip(gap - np.diff(moved), 0, None) / 2
        moved[:-1] -= short
        moved[1:] += short
    for (x, y, name, colour), shift in zip(ends, moved - true):
        ax.annotate(name, (x, y), (6, shift), va="center", size=9,
                    textcoords="offset points", annotation_clip=False,
                    color=mix(colour, "ink", 0.35))


# ---
def curves(x, lines, *, x_label=None, y_label=None, title=None,
           log_x=False, log_y=False, ax=None, colours=None, marker=None,
           at_ends=True):
    """Lines with their names at their ends.

    `lines`: {name: y} or {name: (mean, low, high)}, drawn with a band.
    `x`: one sequence for all, or {name: x}. `colours`: {name: role}.
    `at_ends=False`: a legend instead. Returns the Axes."""
    ax = canvas()[1] if ax is None else ax
    ends = []
    for name, y in lines.items():
        y, *band = y if isinstance(y, tuple) and len(y) == 3 else (y,)
        at = to_array(x[name] if isinstance(x, dict) else x)
        y = to_array(y)
        _one_each(f"values of line {name!r}", y.shape, at.shape)
        role = (colours or {}).get(name)
        line, = ax.plot(at, y, marker=marker, label=name, markersize=5,
                        color=COLOURS.get(role, role))
        if band:
            ax.fill_between(at, *map(to_array, band), linewidth=0,
                            color=line.get_color(), alpha=0.18)
        ends.append((at[-1], y[-1], name, line.get_color()))
    ax.set(title=title or "", xlabel=x_label or "", ylabel=y_label or "",
           xscale="log" if log_x else "linear",
           yscale="log" if log_y else "linear")
    ax.margins(x=0.02)
    if at_ends:
        _name_the_ends(ax, ends)
    else:
        ax.legend()
    return ax


# ---
def bars(labels, values, *, spread=None, x_label=None, y_label=None,
         title=None, ax=None, colours=None, form="{:.2f}"):
    """Bars, one a label, with their numbers (`form=None`: without).

    `values`: numbers, or {series: numbers} for groups with a legend.
    `spread`: the same form, ± or two rows (below, above). `colours`: a
    role, a list (one a bar) or {series: role}. Returns the Axes."""
    ax = canvas()[1] if ax is None else ax
    several = isinstance(values, dict)
    groups = values if several else {None: values}
    at, width = np.arange(len(labels)), 0.78 / len(groups)
    for i, (series, heights) in enumerate(groups.items()):
        heights = to_array(heights)
        _one_each("bars", heights.shape, at.shape)
        error, role = (d.get(series) if isinstance(d, dict) else d
                       for d in (spread, colours))
        role = (COLOURS.get(role, role) if not isinstance(role, list)
                else [COLOURS.get(r, r) for r in role])
        drawn = ax.bar(at + (i - (len(groups) - 1) / 2) * width, heights,
                       0.94 * width, label=series, color=role,
                       yerr=None if error is None else to_array(error),
                       error_kw=dict(ecolor=COLOURS["ink"], capsize=3))
        if form:
            ax.bar_label(drawn, fmt=form, padding=2, size=8.5)
    ax.set_xticks(at, labels)
    ax.grid(False, axis="x")
    ax.margins(y=0.12)
    ax.set(title=title or "", xlabel=x_label or "", ylabel=y_label or "")
    if several:
        ax.legend()
    return ax


# ---
def sketch(height=3.0, *, width=WIDTH, ax=None):
    """Empty Axes for a drawing: 1 unit = 1 inch, origin bottom left."""
    if ax is None:
        figure = plt.figure(figsize=(WIDTH, height), layout="none")
        ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    ax.set_axis_off()
    return ax


@dataclass(frozen=True)
class Box:
    """Place of a box in a drawing: centre and size, in inches."""
    x: float
    y: float
    width: float
    height: float

    def at(self, fx, fy):
        """Point inside: (0, 0) is bottom left, (1, 1) top right."""
        return (self.x + (fx - 0.5) * self.width,
                self.y + (fy - 0.5) * self.height)

    top = property(lambda self: self.at(0.5, 1))
    bottom = property(lambda self: self.at(0.5, 0))
    left = property(lambda self: self.at(0, 0.5))
    right = property(lambda self: self.at(1, 0.5))

    def facing(self, point):
        """Middle of the side that looks at a point."""
        dx, dy = point[0] - self.x, point[1] - self.y
        if abs(dx) * self.height > abs(dy) * self.width:
            return self.right if dx > 0 else self.left
        return self.top if dy > 0 else self.bottom


# ---
UNLIT = tint("muted", 0.6)  # lines of what is not the subject


def _note(ax, x, y, text, va):
    ax.text(x, y, text, ha="center", va=va, size=8, zorder=4,
            family="DejaVu Sans Mono", color="#52606D")


def box(ax, x, y, text="", *, width=1.3, height=0.4, role="muted",
        shape=None, lit=True, size=None, name=None):
    """Rounded box centred on (x, y), its text inside, `shape` (as
    "(B, T, D)") below it; grey unless `lit`; `name` is the patch's gid.
    Returns its `Box`, for arrows to start from and end at."""
    role = role if lit else "muted"
    ax.add_patch(FancyBboxPatch(
        (x - width / 2, y - height / 2), width, height, gid=name,
        boxstyle=f"round,pad=0,rounding_size={min(0.08, height / 3)}",
        facecolor=tint(role, 0.65 if lit else 0.9), zorder=3,
        edgecolor=mix(role, "ink", 0.15) if lit else UNLIT,
        linewidth=1.2 if lit else 0.8))
    ax.text(x, y, text, ha="center", va="center", zorder=4, size=size,
            color=mix(role, "ink", 1 if lit else 0.1), linespacing=1.05)
    if shape:
        _note(ax, x, y - height / 2 - 0.04, shape, "top")
    return Box(x, y, width, height)


# ---
def _rounded(points, radius=0.09):
    """Path along the points, with round corners."""
    points = np.array(points, dtype=float)
    way, codes = [points[0]], [Path.MOVETO]
    for last, corner, following in zip(points, points[1:], points[2:]):
        a, b = (corner + leg * min(radius / np.hypot(*leg), 0.5)
                for leg in (last - corner, following - corner))
        way += [a, corner, b]
        codes += [Path.LINETO, Path.CURVE3, Path.CURVE3]
    return Path([*way, points[-1]], [*codes, Path.LINETO])


# ---
def arrow(ax, start, end, *, via=(), text=None, role="ink", bend=0.0,
          lit=True, name=None, head=True):
    """Arrow from `start` to `end`, each a point or a `Box` (then from
    the side that faces the way), over the corners `via` or with a `bend`
    (as a share of its length), with `text` at its middle. Returns the
    patch."""
    points = [start, *via, end]
    for i, near in ((0, 1), (-1, -2)):
        if isinstance(points[i], Box):
            other = points[near]
            points[i] = points[i].facing(
                other.at(0.5, 0.5) if isinstance(other, Box) else other)
    colour = COLOURS.get(role, role) if lit else UNLIT
    way = (dict(posA=points[0], posB=points[-1], shrinkA=0, shrinkB=0,
                connectionstyle=f"arc3,rad={bend}") if bend
           else dict(path=_rounded(points)))
    tip = "-|>,head_length=4,head_width=2" if head else "-"
    patch = ax.add_patch(FancyArrowPatch(
        **way, arrowstyle=tip, mutation_scale=1, color=colour, gid=name,
        linewidth=1.3 if lit else 0.9, zorder=2.2 if lit else 2))
    if text:
        i = 0 if bend else (len(points) - 1) // 2
        (ax1, ay1), (ax2, ay2) = points[i], points[-1 if bend else i + 1]
        ax.text((ax1 + ax2 + bend * (ay2 - ay1)) / 2,
                (ay1 + ay2 - bend * (ax2 - ax1)) / 2, text, size=8.5,
                ha="center", va="center", color=colour, zorder=5,
                bbox=dict(facecolor="white", edgecolor="none", pad=1))
    return patch


# ---
def matrix(ax, x, y, values, *, cell=0.22, role="muted", title=None,
           shape=None, annotate=None):
    """Small grid of cells centred on (x, y), `title` above and `shape`
    below. `values`: a matrix, shaded in the colour of `role`, or (rows,
    columns) for empty cells. `annotate`: write the numbers, in a format
    such as ".1f". Returns its `Box`."""
    empty = isinstance(values, tuple)
    values = (np.ones(values) if empty else _of_shape(
        values, "rows", "columns").astype(float))
    tall, wide = values.shape
    left = x + (np.arange(wide + 1) - wide / 2) * cell
    top = y - (np.arange(tall + 1) - tall / 2) * cell
    shades, low, high = _shades(values, (0, 3) if empty else None)
    if low >= 0:
        shades = colour_scale("#FAFAFA", COLOURS.get(role, role))
    mesh = ax.pcolormesh(left, top, np.ma.masked_invalid(values),
                         cmap=shades, vmin=low, vmax=high, zorder=3,
                         edgecolors=mix(role, "ink", 0.2), linewidth=0.8)
    if annotate:
        _numbers(ax, values, annotate, left[:-1] + cell / 2,
                 top[:-1] - cell / 2, mesh, cell)
    if title:
        ax.text(x, top[0] + 0.06, title, ha="center", va="bottom")
    if shape:
        _note(ax, x, top[-1] - 0.05, shape, "top")
    return Box(x, y, wide * cell, tall * cell)
