"""The error of the prediction: each case's step, predicted from inputs without communication, beside the measured, and
beside the error of a plain sum, which overlaps nothing.

The inputs are three files of a folder: alone.csv (steps of one rank by itself, and of two ranks that train side by side
and do not communicate), exchange.csv (all-reduces, with no training beside them) and gradients.csv. The measured steps,
with communication, are in measured.csv, which `predict_cases` does not open. Needs no torch.
"""

import dataclasses
import io
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy
import pandas
from scipy.special import stdtrit

from benchmarks.common.store.safe_names import LIMIT_BYTES, read_text
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import read_set_file
from scripts.stats.formatting import format_interval, text_table
from scripts.stats.intervals import geometric_mean, mean_interval
from scripts.studies.allreduce.links import Link, estimate_link, ring
from scripts.studies.allreduce.uncertain_value import PERCENTILES, SIGMAS, UncertainValue
from scripts.studies.predict.machine_models import CPU_CONTENTION, gradient_of
from scripts.studies.predict.step_model import (
    STEP_TIME_MODELS,
    Cluster,
    StepTimeModel,
    StepTimes,
    StrategyOptions,
)
from scripts.studies.predict.timeline import Gradient, expected_maximum

NUM_RANKS = 2
ALONE, SIDE_BY_SIDE = "alone", "side by side"  # values of `what` in alone.csv
FLOAT32_PATH, BFLOAT16_PATH = "gloo", "gloo, bf16"  # values of `path` in exchange.csv
CASE_COLUMNS = ["arch", "image_size", "strategy"]
COMPRESSED = "ddp_compressed"  # whose gradients travel as 2-byte values
PLAIN_SUM_OF = ("side_ms", "gradient_bytes", "latency_us", "gb_per_s")  # columns of predictions.csv
INPUT_FILES = ("alone", "exchange", "gradients")
NUM_RESAMPLES = 200
MAX_MEDIAN_ERROR, MAX_ERROR = 0.10, 0.20

Case = tuple[Hashable, ...]
"""Values of CASE_COLUMNS."""


@dataclasses.dataclass(frozen=True)
class ComputeTimes:
    """Seconds of steps without communication, each [num_rounds]."""

    alone_s: numpy.ndarray
    """Of one rank by itself."""
    side_by_side_s: numpy.ndarray
    """The mean of two ranks that train side by side."""
    late_s: numpy.ndarray
    """How much later than this mean the later of the two ranks is."""

    @property
    def num_rounds(self) -> int:
        return len(self.alone_s)


@dataclasses.dataclass(frozen=True)
class AllReduceTimes:
    """Seconds of all-reduces: sizes in bytes [num_sizes], wall-clock and CPU seconds [num_rounds, num_sizes]."""

    sizes: numpy.ndarray
    seconds: numpy.ndarray
    cpu_s: numpy.ndarray


@dataclasses.dataclass(frozen=True)
class CaseInputs:
    """The inputs of one case."""

    computing: ComputeTimes
    all_reduces: dict[str, AllReduceTimes]
    """By the path: FLOAT32_PATH and BFLOAT16_PATH."""
    gradients: tuple[Gradient, ...]
    forward_s: float
    """Of one rank by itself."""
    backward_s: float


def read_inputs(folder: Path) -> dict[Case, CaseInputs]:
    """The inputs of every case in a folder. Raises UserError where a file is missing, or alone.csv has a step with
    communication."""
    try:
        alone, exchange, gradients = (
            pandas.read_csv(io.BytesIO(read_set_file(folder / f"{name}.csv", LIMIT_BYTES))) for name in INPUT_FILES
        )
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {error.strerror}; run ./bench study predict-check") from None
    if unknown := {*alone.what} - {ALONE, SIDE_BY_SIDE}:
        raise UserError(f"{folder}/alone.csv has steps {unknown.pop()!r}; only steps without communication are inputs")
    inputs = {}
    for key, part in alone.groupby(CASE_COLUMNS, sort=False):
        case = tuple(key)
        inputs[case] = _case_inputs(part, rows_of_case(exchange, case), rows_of_case(gradients, case))
    return inputs


def rows_of_case(rows: pandas.DataFrame, case: Sequence[Hashable]) -> pandas.DataFrame:
    return rows[(rows[CASE_COLUMNS] == list(case)).all(axis=1)]


def _case_inputs(alone: pandas.DataFrame, exchange: pandas.DataFrame, gradients: pandas.DataFrame) -> CaseInputs:
    paths = {str(path): _all_reduce_times(part) for path, part in exchange.groupby("path")}
    found = tuple(gradient_of(row) for row in gradients.to_dict("records"))
    forward_s, backward_s = gradients[["forward_s", "backward_s"]].iloc[0]
    return CaseInputs(_compute_times(alone), paths, found, float(forward_s), float(backward_s))


def _compute_times(alone: pandas.DataFrame) -> ComputeTimes:
    rows = []
    for _, part in alone.groupby("round"):
        both = part[part.what == SIDE_BY_SIDE].pivot(index="step", columns="rank", values="ms").dropna()
        late_ms = (both.max(axis=1) - both.mean(axis=1)).mean()
        rows.append((part[part.what == ALONE].ms.mean(), both.to_numpy().mean(), late_ms))
    return ComputeTimes(*(numpy.array(rows) / 1000).T)


def _all_reduce_times(rows: pandas.DataFrame) -> AllReduceTimes:
    seconds, cpu_s = (rows.pivot(index="round", columns="bytes", values=name) for name in ("seconds", "cpu_s"))
    return AllReduceTimes(seconds.columns.to_numpy(float), seconds.to_numpy(float), cpu_s.to_numpy(float))


def measured_slowdown(folder: Path, arch: str, image_size: int) -> UncertainValue | None:
    """How many times as long a rank computes beside another, from alone.csv of the study predict-check; None where the
    file has no such model. The interval is over rounds."""
    path = folder / "alone.csv"
    if not path.exists():
        return None
    rows = pandas.read_csv(io.StringIO(read_text(path)))
    rows = rows[(rows.arch == arch) & (rows.image_size == image_size)]
    if rows.empty:
        return None
    times = rows.pivot_table(index=["strategy", "round"], columns="what", values="ms", aggfunc="mean").dropna()
    mean, low, high = geometric_mean(numpy.log((times[SIDE_BY_SIDE] / times[ALONE]).to_numpy(float)))
    return UncertainValue(mean, mean if low is None else low, mean if high is None else high)


def predicted_s(step_seconds: StepTimeModel, inputs: CaseInputs, rounds: numpy.ndarray) -> float:
    """Seconds of a step of two ranks, from these rounds of the inputs."""
    computing = inputs.computing
    picked = rounds % computing.num_rounds
    alone_s, side_by_side_s = computing.alone_s[picked].mean(), computing.side_by_side_s[picked].mean()
    late_s = computing.late_s[picked].mean()
    rest_s = max(0.0, alone_s - inputs.forward_s - inputs.backward_s)  # data, copies, the optimizer
    spread_s = late_s / expected_maximum(NUM_RANKS)
    step = StepTimes(1.0, inputs.forward_s, inputs.backward_s, rest_s, 0.0, inputs.gradients, spread_s)
    links = {}
    for path, times in inputs.all_reduces.items():
        of_rounds = rounds % len(times.seconds)
        seconds, cpu_s = times.seconds[of_rounds], times.cpu_s[of_rounds]
        latency_s, bytes_per_s, _ = estimate_link(NUM_RANKS, times.sizes, seconds, cpu_s)
        links[path] = Link(latency_s, bytes_per_s)
    link, half, slowdown = links[FLOAT32_PATH], links.get(BFLOAT16_PATH), side_by_side_s / step.seconds
    cluster = Cluster(NUM_RANKS, link, link, CPU_CONTENTION, slowdown, half, has_trees=False)
    return float(step_seconds(step, cluster, NUM_RANKS, StrategyOptions()))


def plain_sum_ms(side_ms: float, gradient_bytes: float, latency_us: float, gb_per_s: float) -> float:
    """Milliseconds of a step as a plain sum, the rival of the model: computing beside the other rank, then a ring
    all-reduce of all gradients at once, which nothing hides. The arguments are columns of predictions.csv."""
    return side_ms + 1000 * float(ring(gradient_bytes, NUM_RANKS, Link(1e-6 * latency_us, 1e9 * gb_per_s)))


def bootstrap_interval(estimates: numpy.ndarray, num_rounds: int) -> tuple[float, float]:
    """The 95 % interval of estimates[0], which is positive; estimates[1:] are those of resampled rounds.

    Percentiles of a bootstrap are too narrow with few rounds. So their distances from the estimate, in the logarithm,
    are multiplied by t / (1.96 sqrt((n - 1) / n)) (Hesterberg, The American Statistician 69, 2015). Raises UserError
    with fewer than 2 rounds.
    """
    if num_rounds < 2:
        raise UserError("one round gives no interval; measure 2 or more")
    normal_width = SIGMAS / 2 * numpy.sqrt((num_rounds - 1) / num_rounds)
    widening = stdtrit(num_rounds - 1, PERCENTILES[1] / 100) / normal_width
    low, high = estimates[0] * (numpy.percentile(estimates[1:], PERCENTILES) / estimates[0]) ** widening
    return float(low), float(high)


def predict_cases(folder: Path) -> pandas.DataFrame:
    """A row per case: the predicted step in milliseconds with an interval by resampling rounds, its inputs, and the
    plain sum of these."""
    rows = []
    for case, inputs in read_inputs(folder).items():
        strategy, rng, num_rounds = str(case[2]), numpy.random.default_rng(0), inputs.computing.num_rounds
        picks = [numpy.arange(num_rounds), *rng.integers(num_rounds, size=(NUM_RESAMPLES, num_rounds))]
        step_seconds = STEP_TIME_MODELS[strategy]
        estimates_ms = numpy.array([1000 * predicted_s(step_seconds, inputs, pick) for pick in picks])
        low, high = bootstrap_interval(estimates_ms, num_rounds)
        times = inputs.all_reduces[BFLOAT16_PATH if strategy == COMPRESSED else FLOAT32_PATH]
        latency_s, bytes_per_s, busy = estimate_link(NUM_RANKS, times.sizes, times.seconds, times.cpu_s)
        gradient_bytes = sum(gradient.num_bytes for gradient in inputs.gradients) / (2 if strategy == COMPRESSED else 1)
        row = {
            "predicted_ms": estimates_ms[0],
            "predicted_low": low,
            "predicted_high": high,
            "alone_ms": 1000 * inputs.computing.alone_s.mean(),
            "side_ms": 1000 * inputs.computing.side_by_side_s.mean(),
            "late_ms": 1000 * inputs.computing.late_s.mean(),
            "latency_us": 1e6 * latency_s,
            "gb_per_s": bytes_per_s / 1e9,
            "busy": busy,
            "gradient_bytes": gradient_bytes,
        }
        row["plain_sum_ms"] = plain_sum_ms(*(row[name] for name in PLAIN_SUM_OF))
        rows.append(dict(zip(CASE_COLUMNS, case, strict=True)) | row)
    return pandas.DataFrame(rows)


def compare_with_measured(predictions: pandas.DataFrame, measured: pandas.DataFrame) -> pandas.DataFrame:
    """The predictions with the measured step beside them. measured: CASE_COLUMNS, round, and ms of one step per row.

    The interval is Student's over rounds. `off` is the error: the relative difference from the measured mean, negative
    where the prediction is too low, and `plain_sum_off` is that of the plain sum. `error`, a name of older tables, is
    how far the prediction is outside of that interval, as a fraction of the nearer end, and 0 inside: noise makes it
    small, so that no verdict goes by it.
    """
    rows = []
    for row in predictions.to_dict("records"):
        steps = rows_of_case(measured, [row[name] for name in CASE_COLUMNS])
        mean, low, high = mean_interval(steps.groupby("round").ms.mean().to_numpy())
        if low is None or high is None:
            low = high = mean
        outside = row["predicted_ms"] - min(max(row["predicted_ms"], low), high)
        nearer_end = high if outside > 0 else low
        row |= {"measured_ms": mean, "measured_low": low, "measured_high": high, "error": outside / nearer_end}
        row |= {"off": row["predicted_ms"] / mean - 1, "plain_sum_off": row["plain_sum_ms"] / mean - 1}
        row |= {"num_rounds": steps["round"].nunique()}
        rows.append(row)
    return pandas.DataFrame(rows)


def summarize_errors(compared: pandas.DataFrame) -> tuple[bool, str]:
    """(whether the errors are within bounds, three lines). The lines are on the errors, with their mean as bias, on
    those of the plain sum, and on how many of the measured means are inside the predictions' intervals."""
    median, largest = float(compared.off.abs().median()), float(compared.off.abs().max())
    passed = median <= MAX_MEDIAN_ERROR and largest <= MAX_ERROR
    bounds = f"bounds: {100 * MAX_MEDIAN_ERROR:.0f} % and {100 * MAX_ERROR:.0f} %"
    errors_line = f"{len(compared)} cases: {_errors(compared.off)} ({bounds})"
    is_closer = float(compared.plain_sum_off.abs().median()) < median
    rival_line = f"a plain sum, with no overlap: {_errors(compared.plain_sum_off)}: "
    rival_line += "it is closer than the prediction" if is_closer else "it is not closer"
    num_covered = int(compared.measured_ms.between(compared.predicted_low, compared.predicted_high).sum())
    covered = f"the prediction's interval holds the measured mean in {num_covered} of {len(compared)}"
    return passed, f"{errors_line}: {'within' if passed else 'outside'} the bounds\n{rival_line}\n{covered}"


def _errors(off: pandas.Series) -> str:
    """within 9.9 % of the measured means, biased by -1.5 %; median error 2.4 %"""
    largest, median, bias = 100 * off.abs().max(), 100 * off.abs().median(), 100 * off.mean()
    return f"within {largest:.1f} % of the measured means, biased by {bias:+.1f} %; median error {median:.1f} %"


def table(compared: pandas.DataFrame) -> str:
    """The compared cases as text."""
    head = ("model", "px", "strategy", "alone", "side by side", "predicted, ms", "95 %", "measured, ms", "95 %")
    lines = [(*head, "n", "error", "of a plain sum")]
    for row in compared.to_dict("records"):
        predicted, measured = (
            format_interval(row[f"{name}_low"], row[f"{name}_high"], "{:.0f}".format)
            for name in ("predicted", "measured")
        )
        lines.append(
            (
                row["arch"],
                str(row["image_size"]),
                row["strategy"],
                f"{row['alone_ms']:.0f}",
                f"{row['side_ms']:.0f}",
                f"{row['predicted_ms']:.0f}",
                predicted,
                f"{row['measured_ms']:.0f}",
                measured,
                str(row["num_rounds"]),
                f"{100 * row['off']:+.1f} %",
                f"{100 * row['plain_sum_off']:+.1f} %",
            )
        )
    return text_table(lines, left_aligned=(0, 2))
