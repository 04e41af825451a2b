"""What a reader should know before believing a set: at most one line a kind of warning, with one remedy."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy
import pandas

from scripts.results.device_use import drop_unused_gpus
from scripts.results.formatting import plural
from scripts.results.intervals import INTERVAL_ROUNDS, SENTENCE_ROUNDS
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup

DRIFT = 0.05  # of the mean log speed over strategies, between the first and the last third of the rounds
OTHERS_PCT, STEAL_PCT = 5, 1  # of the cores' time; less comes from kernel threads and from rounding
BUSY_SHARE = 0.1  # of the runs: one disturbed run is in the spread, many make the level doubtful
SLOW_GOVERNORS = {"powersave", "ondemand", "conservative", "schedutil"}
MOST_NAMES = 3


@dataclasses.dataclass(frozen=True)
class SetWarning:
    """text: what was seen, of which strategies, and how much."""

    kind: str
    text: str
    remedy: str

    @property
    def line(self) -> str:
        return f"{self.kind}: {self.text}; {self.remedy}"


def find_warnings(results: ResultSet) -> list[SetWarning]:
    return [*_of_set(results), *_of_groups(results)] if results.timed_groups else []


def drift_fraction(results: ResultSet) -> float:
    """By how much the last third of the rounds is faster than the first, in the mean of logs over strategies; NaN below
    three rounds."""
    logs = pandas.DataFrame({group.label: group.log_by_round for group in results.timed_groups}).sort_index()
    third = len(logs) // 3
    return float(numpy.expm1((logs[len(logs) - third :].mean() - logs[:third].mean()).mean()))


def _of_set(results: ResultSet) -> Iterator[SetWarning]:
    runs, fraction = results.ok_runs, drift_fraction(results)
    if abs(fraction) > DRIFT:
        way = "faster" if fraction > 0 else "slower"
        text = f"the last third of the rounds was {100 * abs(fraction):.0f} % {way} than the first"
        yield SetWarning("drift", text, "compare ratios, where a shared drift cancels, and not images/s")
    for column, kind, who, least, remedy in (
        ("other_cpu_pct", "busy neighbour", "other programs", OTHERS_PCT, "close them (top names them), measure again"),
        ("steal_pct", "steal", "other guests of the host", STEAL_PCT, "use a machine with cores of its own"),
    ):
        disturbed = runs[runs[column] >= least]
        if len(disturbed) > BUSY_SHARE * len(runs):
            many = f"{len(disturbed)} of {plural(len(runs), 'run')}"
            text = f"{who} took {least} % of the cores' time or more in {many}, up to {runs[column].max():.0f} %"
            yield SetWarning(kind, text, remedy)
    for group in results.timed_groups:
        ratio = results.speedups.get(group.label)
        if group.is_aa_copy and ratio and ratio.verdict in ("faster", "slower"):
            text = f"{group.label} is {ratio.text()} x the same runs under another name"
            yield SetWarning("A/A", text, "take other differences as small for chance or an effect of the order")
    if governors := sorted(set(runs.governor) & SLOW_GOVERNORS):
        text = f"clocks of the cores follow the load ({', '.join(governors)})"
        yield SetWarning("frequency governor", text, "sudo cpupower frequency-set -g performance")
    if (runs.dirty == "yes").any():
        yield SetWarning("local changes", "no commit has the code that ran", "commit it, and measure again")


def _of_groups(results: ResultSet) -> Iterator[SetWarning]:
    groups = results.timed_groups
    gpus = drop_unused_gpus(results.table("telemetry"), results.ok_runs)
    gpus = gpus[gpus.device.str.startswith("gpu")]
    apart = {label for label, ratio in results.speedups.items() if not ratio.num_rounds}
    held = gpus[gpus.throttle != ""]
    # {names}, and {most}, the largest that the function finds, where it is over 0
    checks: list[tuple[str, str, str, Callable[[RunGroup], float]]] = [
        (
            "few rounds",
            f"{{names}} ran in fewer than {INTERVAL_ROUNDS}, so that there is no interval",
            f"the same command again, with --results and this set, and --repeats {SENTENCE_ROUNDS}",
            lambda group: len(group.windows_of_runs) < INTERVAL_ROUNDS,
        ),
        (
            "another session",
            "{names} ran over an hour before or after what they are compared with",
            "measure all in one new set",
            lambda group: group.label in apart,
        ),
        (
            "busy GPUs",
            "other processes were on the GPUs of {names}",
            "end them (nvidia-smi names them), or choose free GPUs by CUDA_VISIBLE_DEVICES",
            lambda group: (group.ok_runs.other_gpu_processes > 0).sum(),
        ),
        (
            "GPU clocks held down",
            f"in up to {{most:.0%}} of the samples of {{names}} ({' and '.join(sorted(set(held.throttle)))})",
            "see to cooling and the power limit",
            lambda group: (
                held.run_id.isin(group.ok_runs.run_id).sum() / max(1, gpus.run_id.isin(group.ok_runs.run_id).sum())
            ),
        ),
        (
            "oversubscribed",
            "{names} had more ranks than cores, which says nothing of scaling",
            "start fewer: --nproc",
            lambda group: (group.ok_runs.oversubscribed == "yes").sum(),
        ),
    ]
    for kind, text, remedy, measure in checks:
        worst = {group.label: value for group in groups if (value := measure(group)) > 0}
        if worst:
            names = ", ".join(worst) if len(worst) <= MOST_NAMES else f"{len(worst)} of {len(groups)} configurations"
            yield SetWarning(kind, text.format(names=names, most=max(worst.values())), remedy)
