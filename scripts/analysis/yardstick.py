"""What a reference of fixed work says of a machine's noise, from the windows that scripts.probe.yardstick measured.

    from scripts.analysis.yardstick import first_and_last, per_launch, spreads

A launch of the same strategy, ranks, threads and versions has a throughput and a reference time. Their product is
steadier than the throughput where both meet the same noise with the same weight, that is with a slope near 1. It
compares sitting with sitting; within one, the reference of another strategy has another mean, which nobody knows.
Needs no torch.
"""

import numpy
import pandas
from scipy.special import stdtrit

from scripts.analysis.stats import CONSTANT, judged, welch
from scripts.analysis.words import interval

REFERENCES = ("reference_s", "alone_s")
NUMBERS = ("round", "steps", "seconds", "other_cores", *REFERENCES)
OVER_ONE, ITSELF = "all / 1", "alone_s itself"
HEADER = ("ranks", "sittings", "launches", "others' cores", "sd", "with reference", "slope", "with alone", "slope")
SPREADS_ARE = "sd over a sitting's launches, as it is and times the reference; slope: % of seconds a % of the reference"
RATIOS_ARE = "of equal things, so that 1 is right; the 95 % intervals know the launches' spread and nothing of the day"


def per_launch(windows: pandas.DataFrame) -> pandas.DataFrame:
    """A row a launch: logs of steps a second (`raw`), of each reference, and of steps in the time of each reference."""
    grouped = windows.groupby(["sitting", "ranks", "round"])
    launches = grouped[["steps", "seconds"]].sum().join(grouped[[*REFERENCES, "other_cores"]].mean())
    launches["raw"] = numpy.log(launches.steps / launches.seconds)
    for name in REFERENCES:
        launches[name] = numpy.log(launches[name])
        launches[f"by_{name}"] = launches.raw + launches[name]
    return launches.reset_index()


def over_one(launches: pandas.DataFrame) -> pandas.DataFrame:
    """Logs of all ranks over one rank, a row a round that has both."""
    indexed = launches.set_index(["sitting", "round"])
    one, more = (indexed[wanted].drop(columns="ranks") for wanted in (indexed.ranks == 1, indexed.ranks > 1))
    both = more.index.intersection(one.index)
    return (more.loc[both] - one.loc[both]).assign(other_cores=more.other_cores).reset_index()


def spreads(launches: pandas.DataFrame) -> list[tuple[str, ...]]:
    """Of each layout, pooled over sittings: sd over launches as it is and with each reference, and the slopes.

    Of all ranks over one in the same round the reference alone could be a control variate: it is the same work.
    """
    lines = [HEADER]
    for ranks, part in [*launches.groupby("ranks"), (OVER_ONE, over_one(launches))]:
        part = part[part.groupby("sitting")["round"].transform("size") > 1]
        sittings = part.sitting.nunique()
        if sittings:
            counts = (str(sittings), str(len(part)), f"{part.other_cores.mean():.2f}")
            lines.append((str(ranks), *counts, *_spread(part, len(part) - sittings)))
    return lines


def _spread(part: pandas.DataFrame, df: int) -> list[str]:
    """sd of raw; and with each reference its sd, and the slope of the windows' seconds on the reference's."""
    centred = part.drop(columns="sitting") - part.groupby("sitting").transform("mean")
    cells = [f"{100 * (centred.raw.pow(2).sum() / df) ** 0.5:.1f} %"]
    for name in REFERENCES:
        left = 100 * (centred[f"by_{name}"].pow(2).sum() / df) ** 0.5
        cells += [f"{left:.1f} %", _slope(-centred.raw, centred[name], df - 1)]
    return cells


def _slope(y: pandas.Series, x: pandas.Series, df: int) -> str:
    """Least squares through 0 with Student's 95 % interval; empty where x does not vary."""
    if (squares := (x**2).sum()) < CONSTANT**2:
        return ""
    slope = (x * y).sum() / squares
    if df < 1:
        return f"{slope:.2f}"
    half = stdtrit(df, 0.975) * (((y - slope * x) ** 2).sum() / df / squares) ** 0.5
    return f"{slope:.2f} [{slope - half:.2f}, {slope + half:.2f}]"


def first_and_last(launches: pandas.DataFrame) -> list[tuple[str, ...]]:
    """A layout's last sitting over its first, as it is and with each reference; and over one rank, the same.

    The last line is alone_s of all ranks over that of one: 1 where it may be divided by within a sitting.
    """
    lines = [("ratio", "ranks", "as it is", "with reference", "with alone")]
    over = over_one(launches)
    for ranks, part in [*launches.groupby("ranks"), (OVER_ONE, over)]:
        sittings = sorted(part.sitting.unique())
        last, first = (part[part.sitting == sitting] for sitting in (sittings[-1], sittings[0]))
        if len(sittings) > 1:
            cells = [_ratio(last[name], first[name]) for name in ("raw", *(f"by_{name}" for name in REFERENCES))]
            lines.append((f"{sittings[-1]} over {sittings[0]}", str(ranks), *cells))
    if len(over) > 1:
        lines.append((ITSELF, OVER_ONE, _show(over.alone_s.mean(), over.alone_s.sem(), len(over) - 1), "", ""))
    return lines


def _ratio(of: pandas.Series, to: pandas.Series) -> str:
    """Ratio of the geometric means of what `of` and `to` are logs of, with Welch's 95 % interval."""
    if min(len(of), len(to)) < 2:
        return "one launch"
    return _show(of.mean() - to.mean(), *welch(of.to_numpy(), to.to_numpy()))


def _show(difference: float, error: float, df: float) -> str:
    estimate = judged(difference, error, df, stdtrit(df, 0.975))
    return f"{estimate.value:.3f} {interval(estimate.low, estimate.high, '{:.3f}'.format)}".strip()
