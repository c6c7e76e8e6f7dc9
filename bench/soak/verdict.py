"""Conditions to meet after a soak. Pure."""

import statistics

from bench.soak.watch import Sample

WARM_UP = 0.25  # of the run: caches fill, retention has not begun
GROWTH_MB_MAX = 15.0  # of anonymous memory, from the end of the warm-up to the end of the run
GROWTH_FILES_MAX = 4.0
LOOP_DELAY_MS_MAX = 50.0
JOURNAL_MB_MAX = 1.6  # times what retention keeps: whole segments go, and one is made ahead


def judge(samples: list[Sample], *, kept_mb: float, segment_mb: float) -> list[str]:
    """Return the conditions that are not met."""
    settled = samples[int(len(samples) * WARM_UP) :]
    found = []
    for name, limit in (("anonymous", GROWTH_MB_MAX), ("files", GROWTH_FILES_MAX), ("threads", GROWTH_FILES_MAX)):
        grown = growth(settled, name)
        if grown > limit:
            found.append(
                f"{name} grew by {grown:.1f} in {settled[-1].at_s - settled[0].at_s:.0f} s, {limit:g} is allowed"
            )
    worst = max(settled, key=lambda sample: sample.loop_delay)
    if worst.loop_delay > LOOP_DELAY_MS_MAX:
        found.append(
            f"the loop kept everybody waiting for {worst.loop_delay:.0f} ms in the minute before second "
            f"{worst.at_s:.0f}, {LOOP_DELAY_MS_MAX:g} are allowed"
        )
    journal_max = kept_mb * JOURNAL_MB_MAX + 4 * segment_mb
    if settled[-1].journal > journal_max:
        found.append(f"the journal takes {settled[-1].journal:.0f} MB, {journal_max:.0f} are allowed")
    return found


def growth(samples: list[Sample], name: str) -> float:
    """Return the rise of the regression line through the field *name* of *samples*, from the first to the last."""
    times = [sample.at_s for sample in samples]
    slope, _ = statistics.linear_regression(times, [getattr(sample, name) for sample in samples])
    return slope * (times[-1] - times[0])
