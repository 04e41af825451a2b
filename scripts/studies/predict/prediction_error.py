"""Does a prediction hold? Each case's step, from inputs in which no gradient was exchanged, beside what was measured.

    from scripts.studies.predict.prediction_error import compare, predict_cases

Inputs are three files of a folder: alone.csv (one rank by itself, and two that know nothing of each other, side by
side), exchange.csv (all-reduces, with no training beside them) and gradients.csv. What was measured with an exchange is
in measured.csv, which `predict_cases` does not open. Needs no torch.
"""

import dataclasses
import io
from pathlib import Path

import numpy
import pandas
from scipy.special import stdtrit

from benchmarks.common.system.errors import UserError
from scripts.sets.safe_names import read_text
from scripts.stats.formatting import format_interval, text_table
from scripts.stats.intervals import mean_interval
from scripts.studies.allreduce.links import CONFIDENCE, SIGMAS, Known, Link, fit_numbers
from scripts.studies.predict.step_model import STRATEGIES, Choices, Machine, Step, Strategy, ddp_compressed
from scripts.studies.predict.timeline import Gradient, slowest_of

RANKS = 2
ALONE, SIDE = "alone", "side by side"
FLOAT, HALVES = "gloo", "gloo, bf16"
CASE = ["arch", "image_size", "strategy"]
BY_NAME = {strategy.__name__: strategy for strategy in STRATEGIES}
FILES = ("alone", "exchange", "gradients")
NUM_RESAMPLES = 200
MEDIAN_AT_MOST, NONE_OVER = 0.10, 0.20


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Of one case. computing: [num_rounds, 3], seconds of a step of one rank by itself, of the mean of two side by
    side, and how much later the later of these two is. exchange: by path (sizes, seconds, cpu_s), the last two
    [num_rounds, num_sizes]. forward_s, backward_s: of one rank by itself."""

    computing: numpy.ndarray
    exchange: dict[str, tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray]]
    gradients: tuple[Gradient, ...]
    forward_s: float
    backward_s: float


def read_inputs(folder: Path) -> dict[tuple, Inputs]:
    """The inputs of every case in a folder. Raises UserError for a file that is missing, or a step with an exchange."""
    try:
        alone, exchange, gradients = (pandas.read_csv(folder / f"{name}.csv") for name in FILES)
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {error.strerror}; run make predict-check") from None
    if unknown := {*alone.what} - {ALONE, SIDE}:
        raise UserError(f"{folder}/alone.csv has steps {unknown.pop()!r}; only those without an exchange are inputs")
    cases = alone.groupby(CASE, sort=False)
    return {case: _inputs(part, of_case(exchange, case), of_case(gradients, case)) for case, part in cases}


def of_case(rows: pandas.DataFrame, case: tuple) -> pandas.DataFrame:
    return rows[(rows[CASE] == list(case)).all(axis=1)]


def _inputs(alone: pandas.DataFrame, exchange: pandas.DataFrame, gradients: pandas.DataFrame) -> Inputs:
    computing = []
    for _, part in alone.groupby("round"):
        both = part[part.what == SIDE].pivot(index="step", columns="rank", values="ms").dropna()
        late = (both.max(axis=1) - both.mean(axis=1)).mean()
        computing.append((part[part.what == ALONE].ms.mean(), both.to_numpy().mean(), late))
    paths = {}
    for path, part in exchange.groupby("path"):
        tables = [part.pivot(index="round", columns="bytes", values=name) for name in ("seconds", "cpu_s")]
        paths[path] = (tables[0].columns.to_numpy(float), *(table.to_numpy() for table in tables))
    names = [field.name for field in dataclasses.fields(Gradient)]
    found = tuple(Gradient(**row) for row in gradients[names].to_dict("records"))
    forward_s, backward_s = gradients[["forward_s", "backward_s"]].iloc[0]
    return Inputs(numpy.array(computing) / 1000, paths, found, forward_s, backward_s)


def slowdown(folder: Path, arch: str, image_size: int) -> Known | None:
    """How many times as long a rank computes beside another, by make predict-check's alone.csv; None where it has no
    such model. The interval is over rounds."""
    path = folder / "alone.csv"
    rows = (
        pandas.read_csv(io.StringIO(read_text(path)))
        if path.exists()
        else pandas.DataFrame(columns=["arch", "image_size"])
    )
    rows = rows[(rows.arch == arch) & (rows.image_size == image_size)]
    if rows.empty:
        return None
    times = rows.pivot_table(index=["strategy", "round"], columns="what", values="ms", aggfunc="mean").dropna()
    mean, low, high = mean_interval(numpy.log(times[SIDE] / times[ALONE]).to_numpy())
    return Known(*numpy.exp([mean, mean if low is None else low, mean if high is None else high]).tolist())


def predicted_s(strategy: Strategy, inputs: Inputs, rounds: numpy.ndarray) -> float:
    """Seconds of a step of two ranks, of these rounds of the inputs."""
    alone, side, late = inputs.computing[rounds % len(inputs.computing)].mean(axis=0)
    rest = max(0.0, alone - inputs.forward_s - inputs.backward_s)  # data, copies, the optimizer
    step = Step(1.0, inputs.forward_s, inputs.backward_s, rest, 0.0, inputs.gradients, late / slowest_of(RANKS))
    ways = {}
    for path, (sizes, seconds, cpu_s) in inputs.exchange.items():
        picked = rounds % len(seconds)
        latency, rate, busy = fit_numbers(RANKS, sizes, seconds[picked], cpu_s[picked])
        ways[path] = Link(latency, rate), busy
    (link, busy), halves = ways[FLOAT], ways.get(HALVES)
    machine = Machine(RANKS, link, link, busy, side / step.seconds, halves, trees=False)
    return float(strategy(step, machine, RANKS, Choices()))


def interval_of(found: numpy.ndarray, num_rounds: int) -> tuple[float, float]:
    """The 95 % interval of found[0], more than 0; found[1:] is the same of resampled rounds. Percentiles of these, too
    narrow with few rounds, are put t / (1.96 sqrt((n - 1) / n)) times as far away, in the log.

    Hesterberg, The American Statistician 69, 2015. Raises UserError with fewer than 2 rounds.
    """
    if num_rounds < 2:
        raise UserError("one round has no spread; measure 2 or more")
    wider = stdtrit(num_rounds - 1, CONFIDENCE[1] / 100) / (SIGMAS / 2 * numpy.sqrt((num_rounds - 1) / num_rounds))
    low, high = found[0] * (numpy.percentile(found[1:], CONFIDENCE) / found[0]) ** wider
    return float(low), float(high)


def predict_cases(folder: Path) -> pandas.DataFrame:
    """A row a case: milliseconds predicted, with an interval by resampling rounds, and what they are made of."""
    rows = []
    for case, inputs in read_inputs(folder).items():
        strategy, rng, count = BY_NAME[case[2]], numpy.random.default_rng(0), len(inputs.computing)
        picks = [numpy.arange(count), *rng.integers(count, size=(NUM_RESAMPLES, count))]
        found = numpy.array([1000 * predicted_s(strategy, inputs, pick) for pick in picks])
        low, high = interval_of(found, count)
        alone, side, late = 1000 * inputs.computing.mean(axis=0)
        sizes, seconds, cpu_s = inputs.exchange[HALVES if strategy is ddp_compressed else FLOAT]
        latency, rate, busy = fit_numbers(RANKS, sizes, seconds, cpu_s)
        row = {"predicted_ms": found[0], "predicted_low": low, "predicted_high": high, "alone_ms": alone}
        row |= {"side_ms": side, "late_ms": late, "latency_us": 1e6 * latency, "gb_per_s": rate / 1e9, "busy": busy}
        rows.append(dict(zip(CASE, case, strict=True)) | row)
    return pandas.DataFrame(rows)


def compare(predictions: pandas.DataFrame, measured: pandas.DataFrame) -> pandas.DataFrame:
    """The predictions with the measured step beside them. measured: CASE, round, ms of one step a row.

    The interval is Student's over rounds; error: how far the prediction lies outside of it, as a share of the nearer
    end; below zero where it is too low, 0 inside. off: how far it is from the mean, as a share of that.
    """
    rows = []
    for row in predictions.to_dict("records"):
        steps = of_case(measured, tuple(row[name] for name in CASE))
        mean, low, high = mean_interval(steps.groupby("round").ms.mean().to_numpy())
        low, high = (mean, mean) if low is None else (low, high)
        outside = row["predicted_ms"] - min(max(row["predicted_ms"], low), high)
        nearer = high if outside > 0 else low
        row |= {"measured_ms": mean, "measured_low": low, "measured_high": high, "error": outside / nearer}
        row |= {"off": row["predicted_ms"] / mean - 1, "num_rounds": steps["round"].nunique()}
        rows.append(row)
    return pandas.DataFrame(rows)


def verdict(compared: pandas.DataFrame) -> tuple[bool, str]:
    """Whether the errors are within bounds, and three sentences: their median and the largest, those of the distances
    from the means, and how many of the means the predictions' intervals hold."""
    errors = compared.error.abs()
    median, most = float(errors.median()), float(errors.max())
    good = median <= MEDIAN_AT_MOST and most <= NONE_OVER
    bounds = f"bounds: {100 * MEDIAN_AT_MOST:.0f} % and {100 * NONE_OVER:.0f} %"
    said = f"{len(errors)} cases: median error {100 * median:.1f} %, largest {100 * most:.1f} % ({bounds})"
    off = 100 * compared.off.abs()
    means = f"of the measured means, whatever their intervals: median {off.median():.1f} %, largest {off.max():.1f} %"
    holds = int(compared.measured_ms.between(compared.predicted_low, compared.predicted_high).sum())
    held = f"the prediction's interval holds the measured mean in {holds} of {len(compared)}"
    return good, f"{said}: it {'holds' if good else 'does not hold'}\n{means}\n{held}"


def table(compared: pandas.DataFrame) -> str:
    head = ("model", "px", "strategy", "alone", "side by side", "predicted, ms", "95 %", "measured, ms", "95 %")
    lines = [(*head, "n", "error", "of the mean")]
    for row in compared.to_dict("records"):
        ends = [(row[f"{what}_low"], row[f"{what}_high"]) for what in ("predicted", "measured")]
        bounds = [format_interval(low, high, "{:.0f}".format) for low, high in ends]
        lines.append(
            (
                row["arch"],
                str(row["image_size"]),
                row["strategy"],
                f"{row['alone_ms']:.0f}",
                f"{row['side_ms']:.0f}",
                f"{row['predicted_ms']:.0f}",
                bounds[0],
                f"{row['measured_ms']:.0f}",
                bounds[1],
                str(row["num_rounds"]),
                f"{100 * row['error']:+.1f} %",
                f"{100 * row['off']:+.1f} %",
            )
        )
    return text_table(lines, left=(0, 2))
