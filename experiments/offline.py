"""What experiments on recordings share: their options, and one look for their plots (small PNG files). No figures are
computed here."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import scripts
from PIL import Image

from autofuse.errors import UsageError
from autofuse.results.experiment import markdown, read

RECORDINGS = Path(__file__).resolve().parents[1] / "datasets" / "recordings"
COLOURS = {
    "model": "#1b5e9b", "compiled": "#5aa0d6", "family": "#5aa0d6", "backbone": "#d07f2c", "default": "#8a8a8a",
    "gp": "#2f8f5b", "tpe": "#d07f2c", "forest": "#8d5fb0", "random": "#b03a3a", "oracle": "#222222",
}  # fmt: skip
STYLE = {
    "font.size": 8, "axes.titlesize": 8, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#e6e6e6", "grid.linewidth": 0.6, "axes.axisbelow": True, "lines.linewidth": 1.4,
    "legend.frameon": False, "figure.constrained_layout.use": True,
}  # fmt: skip


def options(description: str | None, out: Path, **counts: int) -> argparse.Namespace:
    """Of the command line; counts: further options, with their defaults. `--table` prints the results and exits."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, default=RECORDINGS)
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--table", action="store_true", help="the results in --out as Markdown")
    for name, default in counts.items():
        parser.add_argument(f"--{name}", type=scripts.positive, default=default)
    found = parser.parse_args()
    if found.table:
        print(markdown(read(found.out / "results.parquet")), end="")
        parser.exit()
    if not any(found.recordings.glob("*.parquet")):
        raise UsageError(f"--recordings {found.recordings}: no recording (*.parquet) there")
    found.out.mkdir(parents=True, exist_ok=True)
    return found


@contextmanager
def panels(path: Path, rows: int, columns: int, size: tuple[float, float] = (2.6, 2.3)) -> Iterator[Any]:
    """Axes, rows x columns of them as a flat list, each of `size` inches; written to `path` at the end."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(rows, columns, figsize=(size[0] * columns, size[1] * rows), squeeze=False)
        yield list(axes.flat)
        figure.savefig(path, dpi=100, metadata={"Software": None})
        plt.close(figure)
    small(path)


def small(path: Path) -> None:
    """The picture in 64 colours: a third of the bytes."""
    with Image.open(path) as picture:
        fewer = picture.convert("RGB").quantize(64)
    fewer.save(path, optimize=True)


def legend_beside(axis: Any, names: Any) -> None:
    """The legend of other axes in this one, which holds nothing else."""
    axis.axis("off")
    axis.legend(*names.get_legend_handles_labels(), loc="center")
