"""What a reader should know before believing a result set, by cause, with the remedy.

The rules on timed windows are in window_warnings.py. Needs no torch.
"""

from collections.abc import Iterator

from scripts.results.caused_warning import CausedWarning, warning_per_strategy
from scripts.results.device_use import device_use
from scripts.results.formatting import format_setting, plural
from scripts.results.intervals import MIN_ROUNDS
from scripts.results.result_set import ResultSet
from scripts.results.sessions import measured_in_other_sessions
from scripts.results.step_breakdown import step_parts
from scripts.results.used_gpus import drop_unused_gpus
from scripts.results.window_warnings import OTHERS_PCT, outliers, slow_first_window, unsteady

BUSY_SHARE = 0.1  # of the runs
PILLOW_SHARE = 0.01  # of the images that a run read
WAITING_SHARE = 0.05  # of a step: as in scripts/studies/loaders/limit.py
SLOW_GOVERNORS = {"powersave", "ondemand", "conservative", "schedutil"}


def find_warnings(results: ResultSet) -> list[str]:
    """Every warning that applies to the set's ok runs, a sentence for each strategy."""
    return [sentence for warning in warnings_by_cause(results) for sentence in warning.sentences]


def warnings_by_cause(results: ResultSet) -> list[CausedWarning]:
    """The same warnings, one for each cause."""
    if results.ok_runs.empty:
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
        decoded_by_pillow(results),
        waiting_for_images(results),
        low_peak(results),
    )
    return [warning for rule in rules for warning in rule]


def one_round(results: ResultSet) -> Iterator[CausedWarning]:
    """One run says nothing about the spread between runs."""
    names = [group.label for group in results.groups if len(group.windows_of_runs) == 1]
    if names:
        every = len(names) == len(results.timed_groups) > 1
        yield CausedWarning(
            f"{'every strategy' if every else _list(names)}: one round, so no interval and no verdict; run again, with "
            f"{MIN_ROUNDS} rounds or more."
        )


def several_sessions(results: ResultSet) -> Iterator[CausedWarning]:
    """Strategies that were added, or run again, over an hour before or after the others."""
    runs = {group.label: [*zip(group.round_numbers, group.sessions, strict=True)] for group in results.timed_groups}
    if names := measured_in_other_sessions(runs):
        yield CausedWarning(
            f"{_list(names)}: runs of another session than the others', over an hour apart: the day's effect is "
            "unknown, so their ratios are not comparable; measure all in one session, in a new set."
        )


def shared_gpus(results: ResultSet) -> Iterator[CausedWarning]:
    """Another suite, or anything else, on the same GPUs."""
    found = {
        group.label: f"other processes were on its GPUs in {number} of {plural(len(group.ok_runs), 'run')}"
        for group in results.groups
        if (number := int((group.ok_runs.other_gpu_processes > 0).sum()))
    }
    remedy = "nvidia-smi names them: end them, or choose free GPUs (CUDA_VISIBLE_DEVICES), and run again"
    yield from warning_per_strategy(results, "other processes on the GPUs", found, remedy)


def oversubscribed(results: ResultSet) -> Iterator[CausedWarning]:
    """More ranks than cores measure the scheduler."""
    names = [group.label for group in results.groups if (group.ok_runs.oversubscribed == "yes").any()]
    if names:
        yield CausedWarning(
            f"{_list(names)}: oversubscribed: more ranks than cores, which says nothing of scaling; start fewer."
        )


def busy(results: ResultSet) -> Iterator[CausedWarning]:
    """What other programs took of the cores during the runs. One disturbed run is in the spread; many make the level
    itself doubtful."""
    others = results.ok_runs.other_cpu_pct.dropna()
    disturbed = others[others >= OTHERS_PCT]
    if len(disturbed) > BUSY_SHARE * len(others):
        yield CausedWarning(
            f"the machine was busy: other programs took {OTHERS_PCT} % of its cores' time or more in "
            f"{len(disturbed)} of {plural(len(others), 'run')}, up to {others.max():.0f} %; close them, and run again."
        )


def governor(results: ResultSet) -> Iterator[CausedWarning]:
    """A governor that changes the clock with the load makes short windows unsteady."""
    found = sorted(set(results.ok_runs.governor) & SLOW_GOVERNORS)
    if found:
        yield CausedWarning(
            f"the CPU frequency governor was {_list(found)}: clocks follow the load; "
            "for steady clocks: sudo cpupower frequency-set -g performance"
        )


def throttled(results: ResultSet) -> Iterator[CausedWarning]:
    """Samples in which a GPU lowered its clocks, by cause."""
    remedies = {
        "thermal": "improve the cooling, or lower the room's temperature",
        "power": "raise the power limit, or compare at the same limit only",
    }
    telemetry = drop_unused_gpus(results.table("telemetry"), results.ok_runs)
    gpus = telemetry[telemetry.device.str.startswith("gpu")]
    for cause, remedy in remedies.items():
        held = gpus.assign(share=gpus.throttle == cause)
        shares = {group.label: held.share[gpus.run_id.isin(group.ok_runs.run_id)].mean() for group in results.groups}
        shares = {label: share for label, share in shares.items() if share > 0}
        what = f"GPU clocks held down ({cause})"
        found = {label: f"{what} in {100 * share:.0f} % of the samples" for label, share in shares.items()}
        most = f"in up to {100 * max(shares.values(), default=0):.0f} % of the samples"
        yield from warning_per_strategy(results, what, found, remedy, most)


def unclean(results: ResultSet) -> Iterator[CausedWarning]:
    """Code that no commit holds, or code of several commits."""
    changes = {format_setting(group.identity.resolved.get("local_changes", "")) for group in results.timed_groups}
    if (results.ok_runs.dirty == "yes").any() or changes - {"unknown"}:
        yield CausedWarning("made with local changes, which no commit has; commit them, and measure again.")
    commits = sorted(set(results.ok_runs.commit) - {""})
    if len(commits) > 1:
        yield CausedWarning(
            f"made by {len(commits)} commits ({_list(commits)}): the runs of each are groups of their own."
        )


def bad_files(results: ResultSet) -> Iterator[CausedWarning]:
    """Images that could not be decoded and were replaced."""
    found = {
        group.label: f"up to {plural(int(most), 'file')} a run could not be read"
        for group in results.groups
        if (most := group.ok_runs.skipped_files.max()) > 0
    }
    yield from warning_per_strategy(results, "files that could not be read", found, "fix the data set")


def decoded_by_pillow(results: ResultSet) -> Iterator[CausedWarning]:
    """Images that a faster decoder left to Pillow: the run's speed is neither's."""
    epochs, found = results.table("epochs"), {}
    for group in results.groups:
        runs = group.ok_runs
        num_images = epochs.images[epochs.run_id.isin(runs.run_id)].sum()
        share = runs.num_by_pillow.sum() / max(1, num_images)
        if share > PILLOW_SHARE:
            found[group.label] = f"Pillow decoded {100 * share:.1f} % of its images, which its own decoder cannot"
    remedy = "Pillow is slower: pack the images (./bench data pack)"
    yield from warning_per_strategy(results, "images decoded by Pillow", found, remedy)


def waiting_for_images(results: ResultSet) -> Iterator[CausedWarning]:
    """On GPUs: a step that waits for images is the loader's, and a speed-up may be that of more loader workers."""
    steps, found = results.table("steps"), {}
    for group in results.groups:
        if not (group.ok_runs.device == "cuda").any():
            continue
        ms = step_parts(group, steps).drop(columns="run_id").sum()
        if ms.data_ms > WAITING_SHARE * ms.sum():
            found[group.label] = f"its steps wait for images in {100 * ms.data_ms / ms.sum():.0f} % of their time"
    remedy = "pack the images (./bench data pack) or raise --workers; --loader synthetic times steps without images"
    yield from warning_per_strategy(results, "steps that wait for images", found, remedy)


def low_peak(results: ResultSet) -> Iterator[CausedWarning]:
    """A measured peak that training exceeds was measured while something else used the machine."""
    uses = {group.label: device_use(group, results.environment) for group in results.groups}
    names = [label for label, use in uses.items() if use and use.mfu and use.mfu > 1]
    if names:
        yield CausedWarning(
            f"{_list(names)}: MFU over 100 %: perhaps the peak was measured on a busy machine; measure again on a "
            "quiet one"
        )


def _list(names: list[str]) -> str:
    return ("; " if any(", " in name for name in names) else ", ").join(names)
