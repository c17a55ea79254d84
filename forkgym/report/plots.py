"""Learning curves as PNG. Matplotlib is imported when a picture is drawn, never before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forkgym.core import ForkgymError
from forkgym.report.runs import Curve, read_curve

__all__ = ["MissingPlotLibrary", "PlotError", "draw_curves", "plot_learning_curves"]


class PlotError(ForkgymError):
    """A picture cannot be made."""


class MissingPlotLibrary(PlotError):
    """Matplotlib is not installed."""


def plot_learning_curves(directories: Sequence[Path], path: Path, *, mode: str = "sampled", title: str = "") -> Path:
    """Draw runs into one picture: success against training tokens, seeds of one algorithm as mean and band.

    Args:
        directories: Directories of runs.
        path: The PNG file; its directory is made if needed.
        mode: Which evaluation: ``sampled`` or ``greedy``.
        title: Above the picture.

    Returns:
        ``path``.

    Raises:
        MissingPlotLibrary: Matplotlib is not installed; the text names the extra.
        PlotError: The file cannot be written.
        StoreError: A directory holds no run.
    """
    return draw_curves([read_curve(directory, mode=mode) for directory in directories], path, title=title)


def draw_curves(curves: Sequence[Curve], path: Path, *, title: str = "") -> Path:
    """Draw curves; see :func:`plot_learning_curves`."""
    figure_class, canvas_class = _matplotlib()
    figure = figure_class(figsize=(7.0, 4.5), dpi=130, layout="constrained")
    canvas_class(figure)
    axes = figure.add_subplot()
    for index, label in enumerate(dict.fromkeys(curve.label for curve in curves)):
        _draw(axes, label, [curve for curve in curves if curve.label == label and curve.tokens], f"C{index % 10}")
    axes.set_xlabel("training tokens (on policy and counterfactual)")
    axes.set_ylabel("success" + _sources(curves))
    axes.set_ylim(0.0, 1.0)
    axes.set_xlim(left=0.0)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", frameon=False)
    if title:
        axes.set_title(title)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written beside and renamed: a crash leaves the old picture or the new one, never half a file.
        partial = path.with_name(f".{path.name}.partial")
        try:
            figure.savefig(partial, format="png", metadata={"Software": None})
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise PlotError(f"the picture {path} cannot be written ({error.strerror}); choose another place.") from error
    return path


def band(curves: Sequence[Curve]) -> tuple[list[float], list[float], list[float]]:
    """Mean and standard error over seeds at common token counts.

    Returns:
        Tokens, mean, standard error. Tokens are those of all curves, within the range that every curve covers;
        values in between are interpolated linearly.
    """
    low = max(curve.tokens[0] for curve in curves)
    high = min(curve.tokens[-1] for curve in curves)
    grid = sorted({tokens for curve in curves for tokens in curve.tokens if low <= tokens <= high} | {low, high})
    values = np.array([np.interp(grid, curve.tokens, curve.success) for curve in curves])
    spread = values.std(axis=0, ddof=1) / np.sqrt(len(curves))
    return grid, values.mean(axis=0).tolist(), spread.tolist()


def _draw(axes: Any, label: str, curves: list[Curve], colour: str) -> None:
    if not curves:
        return
    apart = max(curve.tokens[0] for curve in curves) > min(curve.tokens[-1] for curve in curves)
    if len(curves) == 1 or apart:
        for curve in curves:
            name = f"{label} (seed {curve.seed})" if len(curves) > 1 else label
            _line(axes, name, curve.tokens, curve.success, curve.standard_error, colour)
        return
    for curve in curves:
        axes.plot(curve.tokens, curve.success, linewidth=0.6, alpha=0.35, color=colour)
    tokens, mean, error = band(curves)
    _line(axes, f"{label} ({len(curves)} seeds, ± s.e.)", tokens, mean, error, colour)


def _line(axes: Any, label: str, tokens: list[float], mean: list[float], error: list[float], colour: str) -> None:
    axes.plot(tokens, mean, marker="o", markersize=3, label=label, color=colour)
    if not np.isnan(error).all():
        low, high = np.subtract(mean, error), np.add(mean, error)
        axes.fill_between(tokens, low, high, color=colour, alpha=0.15, linewidth=0)


def _sources(curves: Sequence[Curve]) -> str:
    sources = list(dict.fromkeys(curve.source for curve in curves))
    return f" ({sources[0]})" if len(sources) == 1 else ""


def _matplotlib() -> tuple[Any, Any]:
    """Figure and Agg canvas, without pyplot: no global state, no display, no backend to choose."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPlotLibrary(
            "drawing needs matplotlib, which is not installed: pip install 'forkgym[report]'."
        ) from error
    return Figure, FigureCanvasAgg
