"""How many rounds does it take to see a difference of 2, 5 or 10 %, with the spread that a result set has?

    python -m scripts.sets.power --results results/x

Found means: with 80 % power, by Dunnett's simultaneous intervals of all strategies over one baseline. The
spread of few runs is itself uncertain: the numbers are a guide. Also the rule of UNTIL=5%. Needs no torch.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy
import tyro
from scipy.special import chdtri, nctdtrinc
from tqdm import tqdm

from benchmarks.common.system.errors import UserError
from benchmarks.common.system.programs import exit_code, run_program
from scripts.options.set_options import PowerOptions as Options
from scripts.sets.result_set import ResultSet, load_set
from scripts.stats import critical_values
from scripts.stats.families import MIN_BLOCK_DF, Sample, find_spread, ratios_of_all_pairs, ratios_to_own_baselines
from scripts.stats.intervals import POWER

DIFFERENCES = (0.02, 0.05, 0.10)
ROUNDS_LIMIT = 1000
FIRST_LOOK_ROUNDS, FIRST_LOOK_DF = 3, 12


@functools.cache
def needed_errors(num_strategies: int, rounds: int) -> float:
    """How many standard deviations of a run a difference has to be to be found, baseline among the strategies."""
    block_df = (num_strategies - 1) * (rounds - 1)
    df = block_df if block_df >= MIN_BLOCK_DF else num_strategies * (rounds - 1)
    limit = critical_values.dunnett_critical_value(rounds, (rounds,) * (num_strategies - 1), df)
    return float(nctdtrinc(df, 1 - POWER, limit)) * math.sqrt(2 / rounds)


def smallest_difference(sd: float, num_strategies: int, rounds: int) -> float:
    """The difference, as a fraction, that so many rounds find with 80 % power; sd: of log throughput of runs."""
    return math.expm1(sd * needed_errors(num_strategies, rounds))


def rounds_needed(difference: float, sd: float, num_strategies: int) -> int | None:
    """Fewest rounds that find a difference, such as 0.05, with 80 % power; None beyond ROUNDS_LIMIT."""
    largest_error = math.log1p(difference) / sd if sd else math.inf
    if needed_errors(num_strategies, ROUNDS_LIMIT) > largest_error:
        return None
    # with the critical value of so many rounds, which is the smallest: too few, and then step by step never too many
    rounds = max(2, math.ceil(ROUNDS_LIMIT * (needed_errors(num_strategies, ROUNDS_LIMIT) / largest_error) ** 2))
    while (needed := needed_errors(num_strategies, rounds)) > largest_error:
        rounds = math.ceil(rounds * (needed / largest_error) ** 2)
    return rounds


def run_spread(samples: Mapping[str, Sample]) -> tuple[float, float, int]:
    """sd of log throughput of runs, the upper end of its 80 % interval, and its degrees of freedom.

    Strategies that differ in it are averaged. Raises ValueError where no strategy has two runs.
    """
    repeated = [each for each in samples.values() if len(each.logs) > 1]
    if not repeated:
        raise ValueError("no strategy has two runs")
    spread = find_spread(repeated)
    df = spread.df or sum(len(each.logs) - 1 for each in repeated)
    squares = sum(((each.logs - each.logs.mean()) ** 2).sum() for each in repeated)
    variance = squares / df if spread.variance is None else spread.variance
    return math.sqrt(variance), math.sqrt(variance * df / chdtri(df, 0.9)), df


def widest_half_width(samples: Mapping[str, Sample], baselines: Mapping[str, str]) -> float | None:
    """The widest of the family's intervals, from the ratio up, as a fraction: each over its own baseline.

    Where there is none, those of all pairs. None where an interval is missing.
    """
    family = ratios_to_own_baselines(samples, baselines) if baselines else ratios_of_all_pairs(samples)
    widths = [each.half_width for each in family.values()]
    known = [width for width in widths if width is not None]
    return max(known) if known and len(known) == len(widths) else None


def precise_enough(samples: Mapping[str, Sample], baselines: Mapping[str, str], width: float) -> bool:
    """The rule of UNTIL: whether the family's intervals are as narrow as that, and were a round before.

    A sequential rule of fixed width (Chow and Robbins 1965) stops too early where the first rounds happen to agree:
    from 3 rounds on it covers 91.5 %. A further round, after the first that will do, makes up for it (Simons 1968), and
    so does a first look with 12 degrees of freedom: it then covers 93 to 95 %.
    """
    latest = max((max(each.rounds) for each in samples.values()), default=0)
    before = {name: _without(each, latest) for name, each in samples.items()}
    return _narrow(samples, baselines, width) and _narrow(before, baselines, width)


def _without(one: Sample, latest: float) -> Sample:
    kept = numpy.asarray(one.rounds) != latest
    sessions = numpy.asarray(one.sessions)[kept].tolist() if one.sessions else ()
    return Sample(one.logs[kept], numpy.asarray(one.rounds)[kept].tolist(), sessions)


def _narrow(samples: Mapping[str, Sample], baselines: Mapping[str, str], width: float) -> bool:
    counts = [len(each.logs) for each in samples.values()]
    if min(counts, default=0) < FIRST_LOOK_ROUNDS or sum(counts) - len(counts) < FIRST_LOOK_DF:
        return False
    found = widest_half_width(samples, baselines)
    return found is not None and found <= width


def report_lines(results: ResultSet, found: dict[str, Any] | None = None) -> list[str]:
    """Lines of text, of the family that the report shows: those with a baseline; of all without one. Raises UserError
    for a set without two strategies, without a spread, or that contradicts itself. found: gets the numbers."""
    results.refuse_contradictions()
    timed = [group for group in results.groups if group.samples]
    samples = {group.label: group.sample for group in results.compared or timed}
    if len(samples) < 2 or all(len(each.logs) < 2 for each in samples.values()):
        raise UserError(f"{results.path} needs two strategies, and two runs of one: make bench-all REPEATS=3")
    sd, high, df = run_spread(samples)
    about = ", baseline included" if results.compared else ", without a baseline"
    have = min(len(each.logs) for each in samples.values())
    walls = [group.ok.wall_s.mean() for group in timed]  # a round runs the others, too
    round_s = float(numpy.sum(walls)) if numpy.isfinite(walls).all() else None
    lines = [
        f"{results.path}: {len(samples)} strategies{about}; from run to run the sd is {_percent(sd)}"
        f" (may be {_percent(high)}; {df} degrees of freedom)"
    ]
    rounds: list[dict[str, Any]] = []
    if have > 1:
        lines.append(f"its {have} rounds find a difference of {_percent(smallest_difference(sd, len(samples), have))}")
    for difference in tqdm(DIFFERENCES, desc="differences", disable=None, leave=False):
        needed = [rounds_needed(difference, each, len(samples)) for each in (sd, high)]
        rounds.append({"difference": difference, "rounds": needed[0], "rounds_if_unlucky": needed[1]})
        texts = [f"more than {ROUNDS_LIMIT}" if each is None else str(each) for each in needed]
        takes = "" if needed[0] is None or round_s is None else f", about {_duration(needed[0] * round_s)}"
        lines.append(f"to find {100 * difference:3.0f} %: REPEATS={texts[0]} (if unlucky {texts[1]}){takes}")
    if found is not None:
        found |= {"results": str(results.path), "num_strategies": len(samples), "sd_of_runs": sd, "sd_may_be": high}
        found |= {"df": df, "num_rounds": have, "round_s": round_s, "to_find": rounds}
    return [
        *lines,
        "found: over its baseline, by 80 of 100 such sets, with the intervals of these strategies together at 95 %",
    ]


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def main(options: Options, found: dict[str, Any] | None = None) -> int:
    """found: gets the numbers, for --json."""
    print("\n".join(report_lines(load_set(options.results), found)))
    return 0


def command(args: list[str] | None = None) -> int:
    """The exit code of these words of a command line, or of this program's own."""
    return exit_code(lambda: main(tyro.cli(Options, args=args)))


if __name__ == "__main__":
    run_program(command)
