"""Is the loader the limit? From launches that time the loader alone, training alone, and both together, in turn.

Windows of one launch follow one another and share its luck, so that a launch is one number: its mean log throughput.
Ratios are of one launch; their intervals are Student's on logarithms, over launches. Needs no torch.
"""

import numpy
import pandas

from scripts.results.intervals import MIN_ROUNDS, Estimate, RatioEstimate, geometric_mean, ratio_of_rounds

ALONE, TRAINING, BOTH = WINDOW_KINDS = "loader alone", "training alone", "both together"
MAX_THROUGHPUT_LOSS = 0.05  # the fraction that loading may cost before the loader is called the limit


def throughput_by_kind(rows: pandas.DataFrame) -> dict[str, Estimate]:
    """Images/s of each kind of window in a loader.csv: geometric means over launches, which count as runs."""
    logs, counts = _logs(rows), rows.what.value_counts()
    # The rows have the order in which they were timed. Another suite's kinds come last.
    kinds = [kind for kind in dict.fromkeys([*WINDOW_KINDS, *map(str, rows.what)]) if kind in counts]
    return {kind: _throughput(logs[kind].dropna().to_numpy(float), int(counts[kind])) for kind in kinds}


def describe_limit(rows: pandas.DataFrame) -> str:
    """One sentence on all three. rows: of loader.csv, a row per window; a launch without all three is left out.

    The verdict depends on how much throughput training loses by loading. How fast the loader is by itself says why.
    """
    loader, training, both = _logs(rows).reindex(columns=list(WINDOW_KINDS)).dropna().to_numpy(float).T
    num_launches = len(training)
    if num_launches < MIN_ROUNDS:
        return f"no verdict: {num_launches} of at least {MIN_ROUNDS} launches; run ./bench study loader-limit"
    found = _sentence(rows, ratio_of_rounds(loader - training), ratio_of_rounds(both - training))
    over_what = "; [a, b]: 95 % interval over launches" if "[" in found else ""
    return f"{found}{over_what}; n = {num_launches} launches"


def _sentence(rows: pandas.DataFrame, loader: RatioEstimate, both: RatioEstimate) -> str:
    """loader, both: the images/s of the loader alone, and of training with the loader, over those of training alone."""
    if loader.low is None or loader.high is None or both.low is None or both.high is None:
        return f"no verdict: {loader.why or both.why}"
    alone = f"alone it is {loader.value:.2f} [{loader.low:.2f}, {loader.high:.2f}] times as fast as training"
    kept = f"with it training keeps {_percent(both.value, both.low, both.high)} of its throughput"
    if both.high < 1 - MAX_THROUGHPUT_LOSS and loader.low > 1:
        workers = rows.workers.iloc[0]
        why = "they take turns in one process: --workers 0" if not workers else "perhaps they share cores, or memory"
        loss = _percent(1 - both.value, 1 - both.high, 1 - both.low)
        return f"loading costs {loss} of training's throughput, though {alone} ({why})"
    if both.high < 1 - MAX_THROUGHPUT_LOSS and loader.high < 1:
        return f"the loader is the limit: {kept}; {alone}"
    if both.high < 1 - MAX_THROUGHPUT_LOSS:
        return f"loading limits training, whether or not the loader alone is slower: {kept}; {alone}"
    if both.low > 1 - MAX_THROUGHPUT_LOSS:
        return f"the loader is not the limit: {kept}; {alone}"
    return f"no verdict, the interval contains the limit: {kept}; {alone}"


def _percent(value: float, low: float, high: float) -> str:
    return f"{100 * value:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


def _logs(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Mean log of the images/s of each kind of window (a column) in each launch (a row)."""
    timed = rows[rows.images_per_s > 0]
    logs = timed.assign(log=numpy.log(timed.images_per_s))
    return logs.pivot_table(index="run_id", columns="what", values="log", aggfunc="mean")


def _throughput(logs: numpy.ndarray, num_windows: int) -> Estimate:
    return Estimate(*geometric_mean(logs), len(logs), num_windows)
