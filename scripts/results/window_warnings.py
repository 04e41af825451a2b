"""Warnings of timed windows: unsteady ones, slow first ones and outliers.

After pyperf's rule (a spread over 10 % of the mean is unsteady) and hyperfine's (a modified z-score over 10
standard deviations is an outlier; a slow first sample is named by itself). Needs no torch.
"""

import dataclasses
import math
from collections.abc import Iterator

import numpy

from scripts.results.caused_warning import CausedWarning, warning_per_strategy
from scripts.results.formatting import plural
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup

UNSTEADY = 0.10  # pyperf: standard deviation over mean
OUTLIER_Z = 14.826  # hyperfine: distance from the median over the median absolute deviation; 10 sigma of
# many normal windows; of few windows a run, some are as far by chance
OUTLIER_LEAST = 0.05  # and at least this far from the median: windows can agree to a part in a thousand
STEAL_PCT, OTHERS_PCT = 1, 5  # of the cores' time; smaller values come from kernel threads and from rounding
LOW_CLOCK = 0.9  # of the fastest run's mean


@dataclasses.dataclass(frozen=True)
class UnsteadyCause:
    """What the counters say of a strategy's unsteady windows."""

    name: str
    sentence: str
    remedy: str
    share_pct: float | None = None
    """Of its cores' time, the most of any run."""


def unsteady(results: ResultSet) -> Iterator[CausedWarning]:
    """pyperf's rule, over all windows of a strategy."""
    found, seen = {}, []
    for group in results.groups:
        rates = _rates(group.windows_of_runs)
        spread = rates.std(ddof=1) / rates.mean() if len(rates) > 1 else 0.0
        if spread > UNSTEADY:
            seen.append(causes := unsteady_causes(results, group))
            why = "; ".join(": ".join(filter(None, [each.sentence, each.remedy])) for each in causes)
            variances = [_rates([run]).var(ddof=1) for run in group.windows_of_runs if len(run) > 1]
            within = numpy.sqrt(numpy.mean(variances)) / rates.mean() if variances else 0.0
            inside = f", within a run {100 * within:.0f} %" if variances else ""
            text = f"unsteady: the windows' standard deviation is {100 * spread:.0f} % of their mean{inside}; {why}"
            found[group.label] = text
    remedy = "where runs differ, take more rounds; where windows of a run do, longer ones (--window-steps)"
    yield from warning_per_strategy(results, "unsteady windows", found, remedy, _count_causes(seen))


def _count_causes(seen: list[list[UnsteadyCause]]) -> str:
    found: dict[str, list[UnsteadyCause]] = {}
    for cause in (cause for causes in seen for cause in causes):
        found.setdefault(cause.name, []).append(cause)
    parts = []
    for name, causes in sorted(found.items(), key=lambda entry: -len(entry[1])):
        shares = [cause.share_pct for cause in causes if cause.share_pct is not None]
        up_to = f", up to {max(shares):.0f} % of the cores' time" if shares else ""
        many = f"in {len(causes)} of them" if len(causes) < len(seen) else "in all of them"
        parts.append(f"{name} {many}{up_to}: {causes[0].remedy}")
    return "; ".join(parts)


def unsteady_causes(results: ResultSet, group: RunGroup) -> list[UnsteadyCause]:
    """What the counters say: steal, other programs, a lower clock; or that none shows the cause."""
    causes = []
    steal, others = group.ok_runs.steal_pct.max(), group.ok_runs.other_cpu_pct.max()
    if steal >= STEAL_PCT:
        text = f"its host gave up to {steal:.0f} % of its cores' time to other guests (steal)"
        causes.append(UnsteadyCause("steal", text, "use cores of your own", steal))
    if others >= OTHERS_PCT:
        text = f"other programs took up to {others:.0f} % of its cores' time"
        causes.append(UnsteadyCause("other programs", text, "close them", others))
    telemetry = results.table("telemetry")
    clocks = telemetry[telemetry.device == "cpu"].groupby("run_id").clock_mhz.mean()
    slowest, fastest = clocks[clocks.index.isin(group.ok_runs.run_id)].min(), clocks.max()
    if slowest < LOW_CLOCK * fastest:
        text = f"a run's cores had {slowest:.0f} MHz, another's {fastest:.0f}"
        causes.append(UnsteadyCause("a lower clock", text, "see to cooling and power limits"))
    if causes:
        return causes
    remedy = "close other programs" if math.isnan(others) else "try a machine of your own"
    return [UnsteadyCause("an unknown cause", "no counter shows the cause", remedy)]


def slow_first_window(results: ResultSet) -> Iterator[CausedWarning]:
    """hyperfine's rule for the first sample, window 0 of each run."""
    found = {}
    for group in results.groups:
        slow = [run for run in group.windows_of_runs if len(run) > 2 and _z_scores(run)[0] > OUTLIER_Z]
        if slow:
            times = max(seconds[0] / numpy.median(seconds) for seconds in (run[:, 1] / run[:, 0] for run in slow))
            many = f"in {len(slow)} of {plural(len(group.windows_of_runs), 'run')}"
            found[group.label] = f"the first window is slow {many}, up to {times:.1f} times the median"
    remedy = "the cause is unknown; if it comes again, perhaps runs still warm up: raise --warmup-steps"
    yield from warning_per_strategy(results, "slow first windows", found, remedy)


def outliers(results: ResultSet) -> Iterator[CausedWarning]:
    """hyperfine's rule for all samples but a slow first one."""
    found, in_all = {}, 0
    for group in results.groups:
        scores = [_z_scores(run) for run in group.windows_of_runs if len(run) > 2]
        number = sum(int((abs(score[1:]) > OUTLIER_Z).sum() + (score[0] < -OUTLIER_Z)) for score in scores)
        if number:
            in_all += number
            total = plural(sum(map(len, group.windows_of_runs)), "window")
            found[group.label] = f"{number} of {total} far from the median of its run"
    cause = "windows far from the median of their run"
    remedy = "perhaps by chance, since runs have few windows, or something else used the machine for a moment"
    in_all_words = f"{plural(in_all, 'window')} in all, without slow first ones"
    yield from warning_per_strategy(results, cause, found, remedy, in_all_words)


def _rates(runs: list[numpy.ndarray]) -> numpy.ndarray:
    windows = numpy.concatenate(runs) if runs else numpy.empty((0, 2))
    return windows[:, 0] / windows[:, 1]


def _z_scores(windows: numpy.ndarray) -> numpy.ndarray:
    """Modified z-scores of the seconds an image took in each window; 0 within OUTLIER_LEAST of the median."""
    seconds = windows[:, 1] / windows[:, 0]
    distance = seconds - numpy.median(seconds)
    deviation = max(numpy.median(abs(distance)), 1e-12 * numpy.median(seconds))
    return numpy.where(abs(distance) > OUTLIER_LEAST * numpy.median(seconds), distance / deviation, 0.0)
