"""Draws a chart: python3 chart.py sales.csv --kind line --x month --y revenue --title "It doubled" --out chart.png.

Kinds: line, bar, barh, stacked, scatter, hist, box, heatmap. `--by` splits into series, `--agg` condenses rows.
Prints the numbers that it drew, so that they can be checked.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tables import Problem, column, pd, read

try:
    import matplotlib

    matplotlib.use("Agg")
    import fonts
    import matplotlib.pyplot as plt
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font
    from matplotlib.ticker import FuncFormatter
except ModuleNotFoundError as error:
    print(f"missing Python package {error.name}. Fix: pip install matplotlib", file=sys.stderr)
    sys.exit(3)

KINDS = ("line", "bar", "barh", "stacked", "scatter", "hist", "box", "heatmap")
AGGREGATES = ("sum", "mean", "median", "count", "min", "max")
# Apart for people who do not see all colours, also in grey.
PALETTE = ("#1F4E79", "#D9822B", "#2E8B7A", "#A23B72", "#6B7280", "#C9A227")
MAX_SERIES, MAX_BARS, MAX_PRINTED = 6, 30, 40
GREY = "#4B5563"


def shaped(table: pd.DataFrame, options: argparse.Namespace) -> pd.DataFrame:
    """Returns the numbers to draw: one row per place on the axis, one column per series."""
    x, y = column(table, options.x), column(table, options.y)
    by = column(table, options.by) if options.by else None
    _numeric(table, y, options)
    keys = [x, *([by] if by else [])]
    if table.duplicated(keys).any() and not options.agg:
        raise Problem(
            f"several rows for one {' and '.join(keys)}: say how to condense them (--agg {', '.join(AGGREGATES)})"
        )
    grouped = table.groupby(keys, sort=True, dropna=False)[y].agg(options.agg or "first")
    wide = grouped.unstack(by) if by else grouped.to_frame(y)
    if wide.shape[1] > MAX_SERIES and options.kind != "heatmap":
        raise Problem(
            f"{wide.shape[1]} series cannot be told apart (at most {MAX_SERIES}); filter them or use a heatmap"
        )
    return _ordered(wide, options)


def _ordered(wide: pd.DataFrame, options: argparse.Namespace) -> pd.DataFrame:
    is_time = pd.api.types.is_datetime64_any_dtype(wide.index) or pd.api.types.is_numeric_dtype(wide.index)
    if options.kind in ("bar", "barh", "stacked") and not is_time and not options.keep_order:
        wide = wide.loc[wide.sum(axis=1).sort_values(ascending=False).index]
    if options.top and len(wide) > options.top:
        rest = wide.iloc[options.top :].sum().to_frame("other").T
        additive = (options.agg or "sum") in ("sum", "count")
        wide = pd.concat([wide.iloc[: options.top], rest]) if additive else wide.iloc[: options.top]
    if options.kind in ("bar", "barh", "stacked") and len(wide) > MAX_BARS:
        raise Problem(f"{len(wide)} bars cannot be read (at most {MAX_BARS}); use --top 10, or a line for time")
    return wide


def _numeric(table: pd.DataFrame, name: str, options: argparse.Namespace) -> None:
    if not pd.api.types.is_numeric_dtype(table[name]) and options.agg != "count":
        raise Problem(f"{name!r} is not numeric (profile.py shows why); clean it, or use --agg count")


def draw(table: pd.DataFrame, options: argparse.Namespace, axes: plt.Axes) -> pd.DataFrame:
    match options.kind:
        case "scatter":
            return _scatter(table, options, axes)
        case "hist" | "box":
            return _distribution(table, options, axes)
    wide = shaped(table, options)
    match options.kind:
        case "line":
            _lines(wide, axes)
        case "heatmap":
            _heatmap(wide, axes)
        case kind:
            _bars(wide, axes, kind)
    return wide


def _lines(wide: pd.DataFrame, axes: plt.Axes) -> None:
    index = wide.index if _continuous(wide) else range(len(wide))
    ends = []
    for (name, values), colour in zip(wide.items(), PALETTE, strict=False):
        axes.plot(index, values, color=colour, linewidth=2.2, marker="o" if len(wide) <= 24 else "", markersize=4)
        if not (present := values.dropna()).empty and wide.shape[1] > 1:
            ends.append((float(present.iloc[-1]), str(name), colour))
    if not _continuous(wide):
        axes.set_xticks(range(len(wide)), [_name(label) for label in wide.index])
    if wide.min().min() >= 0:
        axes.set_ylim(bottom=0)
    _labels_at_ends(ends, axes)


def _labels_at_ends(ends: list[tuple[float, str, str]], axes: plt.Axes) -> None:
    """Writes the names beside the lines instead of a legend, pushed apart where they would overlap."""
    low, high = axes.get_ylim()
    gap, last = (high - low) * 0.055, float("-inf")
    for value, name, colour in sorted(ends):
        last = max(value, last + gap)
        axes.text(
            1.01, (last - low) / (high - low), name, transform=axes.transAxes, color=colour, va="center", weight="bold"
        )


def _bars(wide: pd.DataFrame, axes: plt.Axes, kind: str) -> None:
    names = [_name(label) for label in wide.index]
    colours = list(PALETTE[: wide.shape[1]])
    plotted = wide.set_axis(names)
    if kind == "barh":
        plotted.iloc[::-1].plot.barh(ax=axes, color=colours, width=0.75, legend=False)
    else:
        plotted.plot.bar(ax=axes, color=colours, width=0.75, legend=False, stacked=kind == "stacked", rot=0)
        if sum(map(len, names)) > 90:
            axes.tick_params(axis="x", rotation=40)
            plt.setp(axes.get_xticklabels(), ha="right", rotation_mode="anchor")
    if wide.shape[1] > 1:
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=wide.shape[1], borderaxespad=0)
    elif len(wide) <= 15:
        for bars in axes.containers:
            axes.bar_label(bars, fmt=lambda value: _number(value), padding=3, color=GREY, fontsize=9)


def _heatmap(wide: pd.DataFrame, axes: plt.Axes) -> None:
    image = axes.imshow(wide.to_numpy(dtype=float), aspect="auto", cmap="cividis")
    axes.set_xticks(range(wide.shape[1]), [_name(name) for name in wide.columns], rotation=30, ha="right")
    axes.set_yticks(range(len(wide)), [_name(label) for label in wide.index])
    axes.figure.colorbar(image, ax=axes, format=FuncFormatter(lambda value, _: _number(value)), shrink=0.8)
    axes.grid(visible=False)


def _scatter(table: pd.DataFrame, options: argparse.Namespace, axes: plt.Axes) -> pd.DataFrame:
    x, y = column(table, options.x), column(table, options.y)
    for name in (x, y):
        _numeric(table, name, argparse.Namespace(agg=None))
    groups = table.groupby(column(table, options.by)) if options.by else [("", table)]
    if len(groups) > MAX_SERIES:
        raise Problem(f"{len(groups)} groups cannot be told apart (at most {MAX_SERIES})")
    for (name, rows), colour in zip(groups, PALETTE, strict=False):
        axes.scatter(rows[x], rows[y], s=26, alpha=0.65, color=colour, label=str(name), linewidths=0)
    if options.by:
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(groups), borderaxespad=0)
    pairs = table[[x, y]].dropna()
    print(f"{len(pairs):,} points; correlation (Pearson) {pairs[x].corr(pairs[y]):.3f}")
    return pairs.describe()


def _distribution(table: pd.DataFrame, options: argparse.Namespace, axes: plt.Axes) -> pd.DataFrame:
    y = column(table, options.y)
    _numeric(table, y, argparse.Namespace(agg=None))
    if options.kind == "hist":
        axes.hist(table[y].dropna(), bins="auto", color=PALETTE[0], edgecolor="white")
        axes.axvline(table[y].median(), color=PALETTE[1], linewidth=2)
        axes.text(
            table[y].median(),
            0.98,
            f" median {_number(table[y].median())}",
            color=PALETTE[1],
            va="top",
            transform=axes.get_xaxis_transform(),
        )
        return table[[y]].describe()
    by = column(table, options.x) if options.x else None
    groups = {str(name): rows[y].dropna() for name, rows in table.groupby(by)} if by else {y: table[y].dropna()}
    axes.boxplot(list(groups.values()), tick_labels=list(groups), medianprops={"color": PALETTE[1], "linewidth": 2})
    return pd.DataFrame({name: values.describe() for name, values in groups.items()})


def _continuous(wide: pd.DataFrame) -> bool:
    return pd.api.types.is_datetime64_any_dtype(wide.index) or pd.api.types.is_numeric_dtype(wide.index)


def _name(label: object) -> str:
    if isinstance(label, pd.Timestamp):
        return f"{label:%b %Y}" if label.day == 1 else f"{label:%Y-%m-%d}"
    text = "(none)" if label is None or label != label else f"{label:g}" if isinstance(label, float) else str(label)
    return text if len(text) <= 28 else text[:27] + "…"


def _number(value: float, largest: float | None = None) -> str:
    """Returns a short number. `largest` is that of its axis, so that all of an axis have the same unit."""
    size = abs(value if largest is None else largest)
    for limit, factor, unit in ((1e9, 1e9, " bn"), (1e6, 1e6, " m"), (1e5, 1e3, " k")):
        if size >= limit:
            return f"{value / factor:,.3g}{unit}" if value else "0"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:,.3g}"


def more_fonts(table: pd.DataFrame, options: argparse.Namespace) -> list[str]:
    """Returns families that have the letters which the chart's own font lacks. Boxes instead of letters are refused."""
    names = [column(table, name) for name in (options.x, options.by) if name]
    texts = [str(text) for name in names for text in table[name].dropna().unique()]
    texts += [str(value) for value in vars(options).values() if isinstance(value, str)]
    usual = FT2Font(font_manager.findfont("DejaVu Sans")).get_charmap()
    lacking = {char for char in fonts.visible("".join(texts)) if ord(char) not in usual}
    if shaped := fonts.shaped("".join(lacking)):
        joined = " ".join(sorted(shaped)[:20])
        raise Problem(f"the letters {joined} must be joined, which no chart here does: spell them in Latin")
    families: dict[str, None] = {}
    for path in _letters(lacking):
        font_manager.fontManager.addfont(path)
        families[font_manager.FontProperties(fname=str(path)).get_name()] = None
    return list(families)


def _letters(lacking: set[str]) -> list[Path]:
    """Returns fonts with these letters, thin and bold."""
    paths: list[Path] = []
    for bold in (False, True) if lacking else ():
        made, missing = fonts.made_for(lacking, Path(tempfile.mkdtemp(prefix="letters")), bold)
        if missing:
            raise Problem(f"no font here has {' '.join(sorted(missing)[:20])}: {fonts.FIX}")
        paths += [path for path, _ in made]
    return paths


def finish(figure: plt.Figure, axes: plt.Axes, options: argparse.Namespace) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#9CA3AF")
    axes.tick_params(colors=GREY, length=0)
    value_axis = axes.xaxis if options.kind in ("barh", "hist") else axes.yaxis
    if options.kind != "heatmap":
        largest = max(map(abs, value_axis.get_view_interval()))
        value_axis.set_major_formatter(FuncFormatter(lambda value, _: _number(value, largest)))
        axes.grid(axis="x" if options.kind == "barh" else "y", color="#E5E7EB")
        axes.set_axisbelow(True)
    across, along = (options.ylabel or options.y), (options.xlabel or (options.x or ""))
    if options.kind in ("barh", "hist"):
        across, along = ("number of rows" if options.kind == "hist" else along), across
    axes.set_xlabel(along if options.kind in ("scatter", "hist", "barh") else options.xlabel or "", color=GREY)
    axes.set_ylabel("" if options.kind in ("barh", "heatmap") else across, color=GREY)
    figure.suptitle(options.title, x=0.015, ha="left", fontsize=15, weight="bold", color="#111827")
    if options.subtitle:
        axes.set_title(options.subtitle, loc="left", fontsize=10.5, color=GREY, pad=24)
    if options.source:
        figure.text(0.015, -0.03, f"Source: {options.source}", fontsize=8.5, color="#6B7280")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--y", required=True, help="the column with the numbers")
    for name in ("x", "by", "subtitle", "source", "xlabel", "ylabel", "sheet"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--agg", choices=AGGREGATES)
    parser.add_argument("--top", type=int, help="only so many, the rest as `other`")
    parser.add_argument("--keep-order", action="store_true", help="bars in the order of their names, not of their size")
    parser.add_argument("--title", required=True)
    parser.add_argument("--out", type=Path, required=True, help=".png, .svg or .pdf")
    options = parser.parse_args()
    try:
        if options.kind not in ("hist", "box") and not options.x:
            raise Problem(f"--x is missing for {options.kind}")
        if options.out.suffix.lower() not in (".png", ".svg", ".pdf"):
            raise Problem(f"--out: {options.out.suffix or 'no ending'} is not .png, .svg or .pdf")
        table, _ = read(options.file, options.sheet)
        families = ["DejaVu Sans", *more_fonts(table, options)]
        plt.rcParams.update({"font.family": families, "font.size": 10, "figure.constrained_layout.use": True})
        figure, axes = plt.subplots(figsize=(9.6, 5.4))
        numbers = draw(table, options, axes)
    except (Problem, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    finish(figure, axes, options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=160, bbox_inches="tight", pad_inches=0.2, facecolor="white")
    print(numbers.head(MAX_PRINTED).to_string())
    if len(numbers) > MAX_PRINTED:
        print(f"({MAX_PRINTED} of {len(numbers)} rows)")
    print(f"wrote {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
