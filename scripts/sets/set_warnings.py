"""What a reader should know before believing a result set: a sentence each, with the remedy.

    from scripts.sets.set_warnings import find_warnings

After pyperf's rule (a spread over 10 % of the mean is unsteady) and hyperfine's (a modified z-score over 10
standard deviations is an outlier; a slow first sample is named by itself). Needs no torch.
"""

from collections.abc import Iterator

import numpy

from benchmarks.common.system.commands import shell_word
from scripts.sets.device_use import device_use
from scripts.sets.result_set import ResultSet, RunGroup
from scripts.sets.sessions import measured_in_other_sessions
from scripts.stats.formatting import format_setting, plural
from scripts.stats.intervals import MIN_ROUNDS

UNSTEADY = 0.10  # pyperf: standard deviation over mean
OUTLIER_Z = 14.826  # hyperfine: distance from the median over the median absolute deviation; 10 sigma if normal
OUTLIER_LEAST = 0.05  # and at least this far from the median: windows can agree to a part in a thousand
BUSY_BEFORE, BUSY_BETWEEN = 0.75, 1.25  # load average over cores: before the first run, and after others of the set
BUSY_SHARE = 0.1  # of the runs
STEAL_PCT, OTHERS_PCT = 1, 5  # of the cores' time; smaller values come from kernel threads and from rounding
LOW_CLOCK = 0.9  # of the fastest run's mean
SLOW_GOVERNORS = {"powersave", "ondemand", "conservative", "schedutil"}


def find_warnings(results: ResultSet) -> list[str]:
    """Every warning that applies to the set's ok runs."""
    if results.ok.empty:
        return []
    rules = (
        one_round(results),
        several_sessions(results),
        unsteady(results),
        slow_first_window(results),
        outliers(results),
        oversubscribed(results),
        shared_gpus(results),
        busy(results),
        governor(results),
        throttled(results),
        unclean(results),
        bad_files(results),
        low_peak(results),
    )
    return [sentence for rule in rules for sentence in rule]


def one_round(results: ResultSet) -> Iterator[str]:
    """One run says nothing about the spread between runs."""
    names = [group.label for group in results.groups if len(group.run_windows) == 1]
    if names:
        yield f"{_list(names)}: one round, so no interval and no verdict; run again, with {MIN_ROUNDS} rounds or more."


def several_sessions(results: ResultSet) -> Iterator[str]:
    """Strategies that were added, or run again, over an hour before or after the others."""
    runs = {group.label: [*zip(group.rounds, group.sessions, strict=True)] for group in results.timed_groups}
    if names := measured_in_other_sessions(runs):
        yield (
            f"{_list(names)}: runs of another session than the others', over an hour apart: the day's effect is "
            "unknown, so their ratios are not comparable; measure all in one session, in a new set."
        )


def unsteady(results: ResultSet) -> Iterator[str]:
    """pyperf's rule, over all windows of a strategy."""
    for group in results.groups:
        rates = _rates(group.run_windows)
        spread = rates.std(ddof=1) / rates.mean() if len(rates) > 1 else 0.0
        if spread > UNSTEADY:
            yield (
                f"{group.label}: unsteady: the windows' standard deviation is {100 * spread:.0f} % of their mean; "
                f"{cause(results, group)}. Take longer windows (--window-steps) or more rounds."
            )


def cause(results: ResultSet, group: RunGroup) -> str:
    """What the counters say of unsteady windows: steal, other programs, a lower clock, or that they say nothing."""
    causes = []
    steal, others = group.ok.steal_pct.max(), group.ok.other_cpu_pct.max()
    if steal >= STEAL_PCT:
        causes.append(
            f"its host gave up to {steal:.0f} % of its cores' time to other guests (steal): use cores of its own"
        )
    if others >= OTHERS_PCT:
        causes.append(f"other programs took up to {others:.0f} % of its cores' time: close them")
    telemetry = results.table("telemetry")
    clocks = telemetry[telemetry.device == "cpu"].groupby("run_id").clock_mhz.mean()
    slowest, fastest = clocks[clocks.index.isin(group.ok.run_id)].min(), clocks.max()
    if slowest < LOW_CLOCK * fastest:
        causes.append(f"a run's cores had {slowest:.0f} MHz, another's {fastest:.0f}: see to cooling and power limits")
    if causes:
        return "; ".join(causes)
    if group.ok[["steal_pct", "other_cpu_pct"]].isna().all(axis=None):
        return "close other programs"  # an older suite, which did not look
    return (
        "no steal, other program or lower clock was seen, which leaves co-tenants on shared cores, caches and memory: "
        "use a machine of its own"
    )


def shared_gpus(results: ResultSet) -> Iterator[str]:
    """Another suite, or anything else, on the same GPUs."""
    for group in results.groups:
        found = int((group.ok.other_gpu_processes > 0).sum())
        if found:
            yield (
                f"{group.label}: other processes were on its GPUs in {found} of {plural(len(group.ok), 'run')}; "
                "nvidia-smi names them: end them, or choose free GPUs (CUDA_VISIBLE_DEVICES), and run again."
            )


def slow_first_window(results: ResultSet) -> Iterator[str]:
    """hyperfine's rule for the first sample, window 0 of each run."""
    for group in results.groups:
        slow = [run for run in group.run_windows if len(run) > 2 and _z_scores(run)[0] > OUTLIER_Z]
        if slow:
            num_runs = plural(len(group.run_windows), "run")
            yield (
                f"{group.label}: the first window is slow in {len(slow)} of {num_runs}: it still warms up; raise "
                "--warmup-steps."
            )


def outliers(results: ResultSet) -> Iterator[str]:
    """hyperfine's rule for all samples but a slow first one."""
    for group in results.groups:
        scores = [_z_scores(run) for run in group.run_windows if len(run) > 2]
        found = sum(int((abs(score[1:]) > OUTLIER_Z).sum() + (score[0] < -OUTLIER_Z)) for score in scores)
        if found:
            total = sum(map(len, group.run_windows))
            yield (
                f"{group.label}: {found} of {plural(total, 'window')} far from the median of its run; something else "
                "used the machine for a moment: run it on a quiet one."
            )


def oversubscribed(results: ResultSet) -> Iterator[str]:
    """More ranks than cores measure the scheduler."""
    names = [group.label for group in results.groups if (group.ok.oversubscribed == "yes").any()]
    if names:
        yield f"{_list(names)}: oversubscribed: more ranks than cores, which says nothing of scaling; start fewer."


def busy(results: ResultSet) -> Iterator[str]:
    """What other programs took of the cores during the runs; where nobody recorded that, the load average before them.

    The load average before the first run may be of this suite's own set-up, and before a later run it is that of the
    ranks before: after a Slurm job it reached 3.1 on 2 cores where other programs took 1 to 3 % of them. One disturbed
    run is in the spread, and `unsteady` names it; many make the level itself doubtful.
    """
    num_cores = results.environment.get("num_cores")
    loads, others = results.loads_before, results.ok.other_cpu_pct.dropna()
    if len(others):
        disturbed = others[others >= OTHERS_PCT]
        if len(disturbed) > BUSY_SHARE * len(others):
            yield (
                f"the machine was busy: other programs took {OTHERS_PCT} % of its cores' time or more in "
                f"{len(disturbed)} of {plural(len(others), 'run')}, up to {others.max():.0f} %; close them, and run "
                "again."
            )
        return
    if not isinstance(num_cores, int) or num_cores < 1 or loads.empty:
        return
    if loads.iloc[0] > BUSY_BEFORE * num_cores:
        yield (
            f"the machine was busy before the first run: load average {loads.iloc[0]:.1f} on "
            f"{plural(num_cores, 'core')}; close other programs, wait a minute, and run again."
        )
    later = loads.iloc[1:][loads.iloc[1:] > BUSY_BETWEEN * num_cores]
    if len(later):
        yield (
            f"the machine was busy before {plural(len(later), 'later run')}: load average up to {later.max():.1f} on "
            f"{plural(num_cores, 'core')}; something else was running, or the ranks have too many threads."
        )


def governor(results: ResultSet) -> Iterator[str]:
    """A governor that changes the clock with the load makes short windows unsteady."""
    found = sorted(set(results.ok.governor) & SLOW_GOVERNORS)
    if found:
        yield (
            f"the CPU frequency governor was {_list(found)}: clocks follow the load; "
            "for steady clocks: sudo cpupower frequency-set -g performance"
        )


def throttled(results: ResultSet) -> Iterator[str]:
    """Samples in which a GPU lowered its clocks, by cause."""
    remedies = {
        "thermal": "improve the cooling, or lower the room's temperature",
        "power": "raise the power limit, or compare at the same limit only",
    }
    telemetry = results.table("telemetry")
    gpus = telemetry[telemetry.device.str.startswith("gpu")]
    for group in results.groups:
        mine = gpus[gpus.run_id.isin(group.ok.run_id)]
        for cause, remedy in remedies.items():
            share = (mine.throttle == cause).mean() if len(mine) else 0.0
            if share > 0:
                yield f"{group.label}: GPU clocks held down ({cause}) in {100 * share:.0f} % of the samples; {remedy}."


def unclean(results: ResultSet) -> Iterator[str]:
    """Code that no commit holds, or code of several commits."""
    if (results.ok.dirty == "yes").any():
        yield "made with changes that are in no commit, so nobody can repeat it exactly; commit, and run again."
    commits = sorted(set(results.ok.commit) - {""})
    if len(commits) > 1:
        yield f"made by {len(commits)} commits ({_list(commits)}): differences may be the code's; use a set of its own."


def uncommitted_changes(results: ResultSet) -> Iterator[str]:
    """Whether files differed from the commit when the runs were made."""
    changes = {format_setting(group.identity.resolved.get("local_changes", "")) for group in results.timed_groups}
    if (results.ok.dirty == "yes").any() or changes - {"unknown"}:
        yield "made with local changes, which no commit has; commit them, and measure again"


def bad_files(results: ResultSet) -> Iterator[str]:
    """Images that could not be decoded and were replaced."""
    for group in results.groups:
        skipped = group.ok.skipped_files.max()
        if skipped > 0:
            yield f"{group.label}: up to {plural(int(skipped), 'file')} a run could not be read; mend the data set."


def low_peak(results: ResultSet) -> Iterator[str]:
    """A measured peak that training exceeds was measured while something else used the machine."""
    uses = {group.label: device_use(group, results.environment) for group in results.groups}
    names = [label for label, use in uses.items() if use and use.mfu and use.mfu > 1]
    if names:
        yield (
            f"{_list(names)}: MFU over 100 %: the peak was measured on a busy machine; on a quiet one: "
            f"python -m scripts.sets.device_use --results {shell_word(results.path)} --measure"
        )


def _rates(runs: list[numpy.ndarray]) -> numpy.ndarray:
    windows = numpy.concatenate(runs) if runs else numpy.empty((0, 2))
    return windows[:, 0] / windows[:, 1]


def _z_scores(windows: numpy.ndarray) -> numpy.ndarray:
    """Modified z-scores of the seconds an image took in each window; 0 within OUTLIER_LEAST of the median."""
    seconds = windows[:, 1] / windows[:, 0]
    distance = seconds - numpy.median(seconds)
    deviation = max(numpy.median(abs(distance)), 1e-12 * numpy.median(seconds))
    return numpy.where(abs(distance) > OUTLIER_LEAST * numpy.median(seconds), distance / deviation, 0.0)


def _list(names: list[str]) -> str:
    return ("; " if any(", " in name for name in names) else ", ").join(names)
