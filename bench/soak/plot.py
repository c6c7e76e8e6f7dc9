"""A soak's samples as SVG, one figure with a panel for each question."""

from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from bench.soak.watch import Sample

PANELS = (
    ("memory, MB", ("rss", "anonymous")),
    ("files and threads", ("files", "threads")),
    ("journal on disk, MB", ("journal",)),
    ("delay from send to consumer, ms", ("p50", "p99")),
    ("loop: longest delay of a minute; waiting for a processor, ms a second", ("loop_delay", "starved")),
    ("messages consumed a second", ("consumed",)),
    ("processor, part of a core", ("processor",)),
)


def plot(samples: list[Sample], path: Path) -> None:
    """Write the figure to *path*."""
    mpl.rcParams["svg.hashsalt"] = "metaq"  # the same samples make the same bytes
    figure, axes = plt.subplots(len(PANELS), 1, figsize=(9, 2 * len(PANELS)), sharex=True, layout="constrained")
    minutes = [sample.at_s / 60 for sample in samples]
    for axis, (title, names) in zip(axes, PANELS, strict=True):
        for name in names:
            axis.plot(minutes, [getattr(sample, name) for sample in samples], label=name, linewidth=0.8)
        axis.set_title(title, loc="left", fontsize=9)
        axis.set_ylim(bottom=0)
        axis.legend(loc="upper right", fontsize=7)
        axis.grid(visible=True, alpha=0.3)
    axes[3].set_yscale("symlog", linthresh=1)
    axes[-1].set_xlabel("minutes")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
