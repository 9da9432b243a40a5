"""The architecture of the Transformer as one drawing in which any part
can be lit (figure 1 of Vaswani et al., 2017, in our own design; chapter
0)."""

# ---
from dataclasses import dataclass
from textwrap import fill

from matplotlib import colors as mcolors
from matplotlib.patches import Circle, FancyBboxPatch

from transformer18.figures import (COLOURS, UNLIT, Box, arrow, box, mix,
                                   sketch, tint)

# ---
PARTS = {  # name: (its words in the drawing, its colour)
    "source embedding": ("embedding", "embedding"),
    "source position": ("position", "position"),
    "encoder self-attention": ("self-attention", "attention"),
    "encoder add": ("add", "add"),
    "encoder norm": ("norm", "norm"),
    "encoder feed-forward": ("feed-forward", "feed_forward"),
    "encoder output": ("K, V", "source"),
    "target embedding": ("embedding", "embedding"),
    "target position": ("position", "position"),
    "decoder self-attention": ("masked self-attention", "attention"),
    "cross-attention": ("cross-attention", "attention"),
    "decoder add": ("add", "add"),
    "decoder norm": ("norm", "norm"),
    "decoder feed-forward": ("feed-forward", "feed_forward"),
    "linear": ("linear", "output"),
    "softmax": ("softmax", "output")}


# ---
def _with(*words):
    return [name for name in PARTS if any(w in name for w in words)]


GROUPS = {
    "encoder": _with("source", "encoder"),
    "decoder": _with("target", "decoder", "cross", "linear", "softmax"),
    "encoder block": _with("encoder ")[:-1],
    "decoder block": _with("decoder ", "cross"),
    "encoder add & norm": ["encoder add", "encoder norm"],
    "decoder add & norm": ["decoder add", "decoder norm"],
    "add & norm": _with(" add", " norm"),
    "embedding": _with("embedding"), "position": _with("position"),
    "attention": _with("attention"),
    "multi-head attention": _with("attention"),
    "self-attention": _with("self-attention"),
    "mask": ["decoder self-attention"],
    "add": _with(" add"), "norm": _with(" norm"),
    "feed-forward": _with("feed-forward"),
    "output": ["linear", "softmax"],
    "connection": ["encoder output", "cross-attention"]}


# ---
def parts():
    """All names that can be lit: the parts, then the groups of parts."""
    return (*PARTS, *GROUPS)


def lit_parts(lit=None):
    """Names of the parts that a name, a group or a list of them lights,
    in the order of drawing; None lights all.

    Raises ValueError with the valid names for an unknown one."""
    names = [lit] if isinstance(lit, str) else lit
    names = list(PARTS if names is None else names)
    for name in names:
        if name not in parts():
            raise ValueError(f"no part {name!r} in the architecture; "
                             f"choose from {', '.join(parts())}")
    chosen = {part for n in names for part in GROUPS.get(n, [n])}
    return [part for part in PARTS if part in chosen]


def shown(ax):
    """Names of the parts that are drawn lit in these Axes, read off
    their patches."""
    dull = mcolors.to_rgba(UNLIT)
    lit = {p.get_gid() for p in ax.patches if p.get_edgecolor() != dull}
    return [part for part in PARTS if part in lit]


# ---
@dataclass
class Column:
    """One side of the drawing, from the bottom up; y is where it is."""
    ax: object
    side: str  # "source" or "target"
    lit: set   # names of the lit parts
    scale: float
    size: float
    y: float = 0.08

    def __post_init__(self):
        self.name, self.x, self.out = (
            ("encoder", 2.2, -1) if self.side == "source"
            else ("decoder", 4.8, 1))  # out: where its outer side is

    def climb(self, gap, lit=True):
        """Arrow upwards, to the foot of what comes next."""
        foot, self.y = self.y, self.y + gap * self.scale
        arrow(self.ax, (self.x, foot), (self.x, self.y),
              role="#52606D", lit=lit)

    def part(self, name, gap, height=0.34, words=None, role=None):
        """A box for a part of the architecture; returns its place."""
        known = PARTS.get(name, (words, role))
        lit, height = name in self.lit, height * self.scale
        self.climb(gap, lit)
        self.y += height
        return box(self.ax, self.x, self.y - height / 2, known[0],
                   width=1.9, height=height, role=known[1], lit=lit,
                   size=self.size, name=name)

    def write(self, text, y, lit=True):
        """A word beside the arrow, on its inner side."""
        self.ax.text(self.x - self.out * 0.15, y, text, va="center",
                     ha="left" if self.out < 0 else "right",
                     size=self.size - 1,
                     color=mix("muted", "ink", 1 if lit else 0.1))


# ---
class Side(Column):
    """A column that knows residual connections."""
    def plus(self, name, gap=0.15):
        """A circled plus; returns the point of its outer side."""
        lit, radius = name in self.lit, 0.1 * self.scale ** 0.6
        role = PARTS[name][1] if lit else "muted"
        self.climb(gap, lit)
        y = self.y + radius
        self.ax.add_patch(Circle(
            (self.x, y), radius, gid=name, zorder=3, linewidth=1.2,
            edgecolor=mix(role, "ink", 0.15) if lit else UNLIT,
            facecolor=tint(role, 0.65 if lit else 0.9)))
        self.ax.plot(self.x, y, "+", zorder=4, markersize=85 * radius,
                     color=COLOURS["ink"] if lit else UNLIT)
        self.y += 2 * radius
        return self.x + self.out * radius, y

    def sublayer(self, name, gap=0.36):
        """A part with a residual connection around it, then its norm;
        returns the place of the part."""
        add, far = f"{self.name} add", self.x + self.out * 1.1
        fork = self.y + (gap - 0.17) * self.scale
        place = self.part(name, gap)
        end = self.plus(add)
        arrow(self.ax, (self.x, fork), end, role="add", name=add,
              via=[(far, fork), (far, end[1])], lit=add in self.lit)
        self.write("add", end[1], add in self.lit)
        self.part(f"{self.name} norm", gap=0.12, height=0.3)
        return place


# ---
def _columns(ax, lit, scale=1.0, size=9.5):
    """The two columns, grown up to the foot of their first block."""
    columns = [Side(ax, side, lit, scale, size)
               for side in ("source", "target")]
    for column, words in zip(columns, ("source sentence",
                                       "target sentence, shifted right")):
        ax.text(column.x, column.y, words, size=size, ha="center",
                va="bottom")
        column.y += size / 50
        column.part(f"{column.side} embedding", gap=0.2)
        name = f"{column.side} position"
        end = column.plus(name)
        place = box(ax, column.x + column.out * 1.6, end[1], "position",
                    width=0.8, height=0.34 * scale, role="position",
                    lit=name in lit, size=size, name=name)
        arrow(ax, place, end, role="position", lit=name in lit)
    return columns


# ---
def _panel(column, floor, words):
    """Sheet behind a stack of blocks, from `floor` to where we are."""
    lit = column.lit.intersection(GROUPS[f"{column.name} block"])
    role = column.side if lit else "muted"
    top = column.y + 0.13 * column.scale
    x = column.x + column.out * 0.06
    column.ax.add_patch(FancyBboxPatch(
        (x - 1.2, floor), 2.4, top - floor, zorder=0, linewidth=1,
        boxstyle="round,pad=0,rounding_size=0.1",
        facecolor=tint(role, 0.93), edgecolor=tint(role, 0.6)))
    for text, size, va in zip(words, (5, 0), ("bottom", "top")):
        column.ax.text(x + column.out * 1.64, (floor + top) / 2, text,
                       ha="center", va=va, size=column.size + size,
                       weight="bold", color=mix(role, "ink", 0.25))


# ---
def _bridge(encoder, places):
    """Keys and values, from the last encoder block into each place."""
    lit = "encoder output" in encoder.lit
    turn = encoder.y + 0.46 * encoder.scale
    for place in places:
        arrow(encoder.ax, (encoder.x, encoder.y), place.left,
              via=[(encoder.x, turn), (3.5, turn), (3.5, place.y)],
              role="source", lit=lit, name="encoder output")
    encoder.ax.text(2.85, turn, "K, V", ha="center", va="center",
                    size=encoder.size - 1, bbox=dict(
                        facecolor="white", edgecolor="none", pad=1),
                    color=COLOURS["source" if lit else "muted"])


def _head(decoder):
    """Linear and softmax on top of the decoder."""
    decoder.part("linear", gap=0.36)
    decoder.part("softmax", gap=0.22)
    decoder.climb(0.2, "softmax" in decoder.lit)
    decoder.ax.text(decoder.x, decoder.y + 0.03, size=decoder.size,
                    s="next-token probabilities", ha="center")


# ---
def _everything(ax, lit, n_layers, scale=1.0, size=9.5):
    """Level 4: every part."""
    encoder, decoder = _columns(ax, lit, scale, size)
    floor = encoder.y + 0.1 * scale
    encoder.sublayer("encoder self-attention", gap=0.46)
    encoder.sublayer("encoder feed-forward")
    decoder.sublayer("decoder self-attention", gap=0.46)
    cross = decoder.sublayer("cross-attention")
    decoder.sublayer("decoder feed-forward")
    if scale > 0.8:  # else there is no room for details
        decoder.write("Q", cross.y - 0.28, "cross-attention" in lit)
        for column, letter in ((encoder, "S"), (decoder, "T")):
            for y in (floor + 0.1, column.y + 0.24):
                column.write(f"(B, {letter}, D)", y, lit=False)
    for column in (encoder, decoder):
        _panel(column, floor, (f"{n_layers} ×", f"{column.name}\nblock"))
    _bridge(encoder, [cross])
    _head(decoder)


# ---
def _stacks(ax, lit, n_layers):
    """Level 3: embedding and position, the stacks of blocks, the head."""
    encoder, decoder = _columns(ax, lit)
    floor, places = encoder.y + 0.1, []
    for column in (encoder, decoder):
        block = f"{column.name} block"
        column.lit = column.lit | ({block} if column.lit.intersection(
            GROUPS[block]) else set())
        for i in ((1, 2, "⋮", n_layers) if n_layers not in (1, 2, 3)
                  else range(1, n_layers + 1)):
            if i == "⋮":
                ax.text(column.x, column.y + 0.13, i, va="center",
                        ha="center", size=12)
                column.y += 0.22
            else:
                places.append(column.part(
                    block, 0.3 if i == 1 else 0.22,
                    words=f"{block} {i}", role=column.side))
        _panel(column, floor, (f"{n_layers} ×", "blocks"))
    _bridge(encoder, places[len(places) // 2:])
    _head(decoder)


# ---
def _outline(ax, lit, source, target, *names):
    """Levels 1 and 2: a sentence, one box or two, a sentence."""
    y = ax.get_ylim()[0] + (0.45 if len(names) == 1 else 0.95)
    row = [Box(0.9, y, 1.4, 0.3)]
    for i, name in enumerate(names):
        role = {"encoder": "source"}.get(name, "target")
        row.append(box(
            ax, 3.5 + (i - len(names) / 2 + 0.5) * 1.85, y, name,
            height=0.6, width=1.4, size=11, role=role if names[1:]
            else "attention", lit=bool(lit.intersection(
                GROUPS.get(name, PARTS)))))
    row.append(Box(6.1, y, 1.4, 0.3))
    for place, words in ((row[0], source), (row[-1], target)):
        ax.text(place.x, y, words, ha="center", va="center")
    for start, end in zip(row, row[1:]):
        arrow(ax, start, end)
    if names[1:]:  # what is written so far goes back in
        arrow(ax, row[-1].bottom, row[-2].bottom, text="the words so far",
              via=[(row[-1].x, y - 0.65), (row[-2].x, y - 0.65)])


# ---
def architecture(lit=None, *, ax=None, n_layers="N", title=None, level=4,
                 source="source sentence", target="target sentence"):
    """The Transformer of the paper's figure 1, with the parts of `lit`
    (a name, a list of names; None: all) in colour and the rest grey.

    `level`: 1 one box, 2 encoder and decoder, 3 stacks of `n_layers`
    blocks, 4 everything. `source`, `target`: what levels 1 and 2 write
    at the ends. Returns the Axes. Raises ValueError for an unknown part
    or level."""
    if level not in (1, 2, 3, 4):
        raise ValueError(f"level is 1, 2, 3 or 4, not {level!r}")
    lit, height = set(lit_parts(lit)), (0.9, 1.5, 4.85, 6.95)[level - 1]
    height += 0.3 if title and level < 3 else 0
    ax = sketch(height, ax=ax)
    if title:
        ax.text(0.2, height - 0.15, title, va="top", size=12,
                weight="bold")
    if level == 4:
        _everything(ax, lit, n_layers, scale=0.94)
    elif level == 3:
        _stacks(ax, lit, n_layers)
    else:
        _outline(ax, lit, source, target, *(
            ["Transformer"] if level == 1 else ["encoder", "decoder"]))
    return ax


# ---
def you_are_here(lit=None, *, title=None):
    """Small map of the architecture for the top of a chapter, with the
    parts of `lit` in colour and `title` (else their names) beside it.
    Returns the Axes. Raises ValueError for an unknown part."""
    names = ["the whole model"] if lit is None else lit
    names = [names] if isinstance(names, str) else names
    ax = sketch(3.7)
    ax.text(0.2, 3.52, "you are here", va="top", size=9,
            color=mix("muted", "ink", 0.3))
    ax.text(0.2, 3.32, fill(title or ", ".join(names), 28), va="top",
            size=13, weight="bold")
    _everything(ax, set(lit_parts(lit)), "N", scale=0.46, size=8)
    return ax
