"""An auditor's noise: log throughputs as a machine that is shared, hot or badly timed would give them.

    from hostile_generators import CASES, draw
    logs = draw("step in the middle", rng, num_sets=1000, num_strategies=10, num_rounds=5)

Written from the promises of the READMEs, before scripts/stats was read, and none of them is in generators.py. All
strategies are equally fast in truth: each difference that is found is a false alarm. Strategy 0 is the baseline.
Results are float64 [num_sets, num_strategies, num_rounds], natural logarithms, NaN for a run that is missing. What a
machine does over time is drawn run by run, in the order in which the suite starts a round. A run's own sd is 4 %.
"""

from collections.abc import Callable

import numpy
from numpy.random import Generator

from scripts.runner.round_order import run_order

RUN_SD = 0.04
ROUNDS = (2, 3, 5, 10, 20)
STRATEGIES = (2, 3, 4, 6, 11, 16)
"""Families of 1, 2, 3, 5, 10 and 15 pairs."""

Array = numpy.ndarray
Shape = tuple[int, int, int]
"""[num_sets, num_strategies, num_rounds]."""


# --- pieces ---------------------------------------------------------------------------------------------------------


def own(rng: Generator, shape: tuple[int, ...]) -> Array:
    """Independent normal runs."""
    return RUN_SD * rng.normal(size=shape)


def student(rng: Generator, shape: tuple[int, ...]) -> Array:
    """Student's t with 3 degrees of freedom, of variance 1."""
    return rng.standard_t(3, size=shape) / numpy.sqrt(3)


def by_time(series: Array, shape: Shape) -> Array:
    """A machine's state [num_sets, num_rounds * num_strategies], run after run, as `shape`."""
    _, num_strategies, num_rounds = shape
    found = numpy.empty(shape)
    for number in range(num_rounds):
        for place, strategy in enumerate(run_order(num_strategies, number + 1)):
            found[:, strategy, number] = series[:, number * num_strategies + place]
    return found


def num_runs(shape: Shape) -> int:
    return shape[1] * shape[2]


def second_order(rng: Generator, shape: tuple[int, ...], first: float, second: float) -> Array:
    """A stationary AR(2) series over the last axis, x[t] = first x[t-1] + second x[t-2] + e, of variance 1."""
    warm_up = 60
    found = rng.normal(size=(*shape[:-1], shape[-1] + warm_up))
    for place in range(2, found.shape[-1]):
        found[..., place] += first * found[..., place - 1] + second * found[..., place - 2]
    variance = (1 - second) / ((1 + second) * ((1 - second) ** 2 - first**2))
    return found[..., warm_up:] / numpy.sqrt(variance)


def long_memory(rng: Generator, shape: tuple[int, ...]) -> Array:
    """1/f noise over the last axis: a quarter of a longer series, which is of variance 1 and has no mean."""
    length = 4 * max(shape[-1], 8)
    frequencies = numpy.arange(1, length // 2 + 1)
    amplitudes = 1 / numpy.sqrt(frequencies)
    normal = rng.normal(size=(2, *shape[:-1], frequencies.size))
    spectrum = numpy.zeros((*shape[:-1], frequencies.size + 1), dtype=complex)
    spectrum[..., 1:] = amplitudes * (normal[0] + 1j * normal[1])
    series = numpy.fft.irfft(spectrum, n=length) * length / (2 * numpy.sqrt((amplitudes**2).sum()))
    return series[..., : shape[-1]]


def bursts(rng: Generator, num_sets: int, runs: int) -> Array:
    """1 while another program runs: bursts of 1 to 3 runs, each run begins one with 8 %. [num_sets, runs]."""
    begins = rng.random((num_sets, runs)) < 0.08
    lasts = rng.integers(1, 4, size=begins.shape)
    found = begins.copy()
    for later in (1, 2):
        found[:, later:] |= (begins & (lasts > later))[:, :-later]
    return found.astype(float)


# --- tails and scales of runs ---------------------------------------------------------------------------------------


def heavy_tails(rng: Generator, shape: Shape) -> Array:
    """Runs are t(3)."""
    return RUN_SD * student(rng, shape)


def contaminated(rng: Generator, shape: Shape) -> Array:
    """Every tenth run is slower, by a lognormal with the median 15 %."""
    return own(rng, shape) / 2 - (rng.random(shape) < 0.1) * 0.15 * rng.lognormal(0, 0.8, shape)


def rare_halves(rng: Generator, shape: Shape) -> Array:
    """One run of 50 takes twice as long."""
    return own(rng, shape) / 2 - numpy.log(2) * (rng.random(shape) < 0.02)


def skewed_baseline(rng: Generator, shape: Shape) -> Array:
    """The baseline is slowed by an exponential of 10 %, and its mean logarithm is that of the others."""
    logs = own(rng, shape)
    logs[:, 0] = 0.1 - rng.exponential(0.1, logs[:, 0].shape)
    return logs


def sds_by_round(rng: Generator, shape: Shape) -> Array:
    """Each round has an sd of its own for all strategies: lognormal, more than twice the median in one of five."""
    return own(rng, shape) * rng.lognormal(0, 0.8, (shape[0], 1, shape[2]))


def sds_by_strategy(rng: Generator, shape: Shape) -> Array:
    """Each strategy has an sd of its own: lognormal."""
    return own(rng, shape) * rng.lognormal(0, 0.8, (shape[0], shape[1], 1))


def noisy_first_round(rng: Generator, shape: Shape) -> Array:
    """The first round has five times the sd: caches are cold."""
    logs = own(rng, shape)
    logs[:, :, 0] *= 5
    return logs


def calmer(rng: Generator, shape: Shape) -> Array:
    """The sd falls to a fifth over the set."""
    return own(rng, shape) * numpy.geomspace(2, 0.4, shape[2])


def rounded_times(rng: Generator, shape: Shape) -> Array:
    """Quiet runs of 100 units of a coarse clock: times are rounded to 1 %, and many are equal."""
    return -numpy.log(numpy.round(100 * numpy.exp(0.004 * rng.normal(size=shape))) / 100)


# --- what runs have in common ---------------------------------------------------------------------------------------


def two_share(rng: Generator, shape: Shape) -> Array:
    """The last two strategies share a disturbance of 12 % a round, as where both use one library."""
    logs = own(rng, shape)
    logs[:, -2:] += 3 * own(rng, (shape[0], 1, shape[2]))
    return logs


def baseline_opposed(rng: Generator, shape: Shape) -> Array:
    """What a round takes from the baseline it gives to the others: 8 %."""
    logs, common = own(rng, shape), 2 * own(rng, (shape[0], shape[2]))
    logs[:, 0] -= common
    logs[:, 1:] += common[:, None]
    return logs


def one_bad_round(rng: Generator, shape: Shape) -> Array:
    """One round of the set takes half as long again, and no two strategies suffer alike."""
    logs = own(rng, shape)
    bad = numpy.arange(shape[2]) == rng.integers(shape[2], size=(shape[0], 1, 1))
    return logs - bad * numpy.log(1.5) * rng.uniform(0.5, 1.5, (shape[0], shape[1], 1))


def bad_run(rng: Generator, shape: Shape) -> Array:
    """One run of the set takes three times as long."""
    logs = own(rng, shape).reshape(shape[0], -1)
    logs[numpy.arange(shape[0]), rng.integers(logs.shape[1], size=shape[0])] -= numpy.log(3)
    return logs.reshape(shape)


# --- what a machine does over time, run by run ----------------------------------------------------------------------


def linear_drift(rng: Generator, shape: Shape) -> Array:
    """The machine becomes 30 % slower over the set, steadily."""
    return own(rng, shape) + by_time(numpy.tile(numpy.linspace(0, -0.3, num_runs(shape)), (shape[0], 1)), shape)


def step_change(rng: Generator, shape: Shape) -> Array:
    """From some run in the middle half of the set on, everything takes a quarter longer."""
    runs = num_runs(shape)
    when = rng.uniform(0.25, 0.75, (shape[0], 1)) * runs
    return own(rng, shape) + by_time(numpy.log(0.8) * (numpy.arange(runs) > when), shape)


def _wave(rng: Generator, shape: Shape, period: float) -> Array:
    phase = rng.uniform(0, 2 * numpy.pi, (shape[0], 1))
    return own(rng, shape) + by_time(
        0.1 * numpy.sin(2 * numpy.pi * numpy.arange(num_runs(shape)) / period + phase), shape
    )


def wave_of_a_round(rng: Generator, shape: Shape) -> Array:
    """A sinusoid of 10 %, whose period is one round."""
    return _wave(rng, shape, shape[1])


def wave_of_two_rounds(rng: Generator, shape: Shape) -> Array:
    """A sinusoid of 10 %, whose period is two rounds."""
    return _wave(rng, shape, 2 * shape[1])


def first_of_round(rng: Generator, shape: Shape) -> Array:
    """The first run of each round is 10 % slower, as after a pause for charts."""
    return own(rng, shape) + by_time(
        -0.1 * numpy.tile(numpy.arange(num_runs(shape)) % shape[1] == 0, (shape[0], 1)), shape
    )


def throttled(rng: Generator, shape: Shape) -> Array:
    """Strategy 1 heats the machine: what runs next is 8 % slower, what runs then 4 %, and so on."""
    logs, heat = own(rng, shape), 0.0
    for number in range(shape[2]):
        for strategy in run_order(shape[1], number + 1):
            logs[:, strategy, number] -= heat
            heat = heat / 2 + 0.08 * (strategy == 1)
    return logs


def co_tenants(rng: Generator, shape: Shape) -> Array:
    """Another program takes a quarter of the machine for 1 to 3 runs, now and then."""
    return own(rng, shape) + by_time(numpy.log(0.75) * bursts(rng, shape[0], num_runs(shape)), shape)


def second_order_runs(rng: Generator, shape: Shape) -> Array:
    """The machine's state is AR(2) with a cycle of about nine runs, of sd 8 %."""
    return own(rng, shape) + by_time(2 * RUN_SD * second_order(rng, (shape[0], num_runs(shape)), 1.2, -0.6), shape)


def long_memory_runs(rng: Generator, shape: Shape) -> Array:
    """The machine's state is 1/f noise over the runs, of sd 12 %."""
    return own(rng, shape) + by_time(3 * RUN_SD * long_memory(rng, (shape[0], num_runs(shape))), shape)


# --- what each strategy does by itself over the rounds ---------------------------------------------------------------


def second_order_strategies(rng: Generator, shape: Shape) -> Array:
    """Each strategy's own noise is AR(2) over the rounds, and mostly of the second order."""
    return RUN_SD * second_order(rng, shape, 0.1, 0.6)


def long_memory_strategies(rng: Generator, shape: Shape) -> Array:
    """Half of each strategy's own noise is 1/f over the rounds."""
    return RUN_SD * (long_memory(rng, shape) + rng.normal(size=shape)) / numpy.sqrt(2)


def one_wanders(rng: Generator, shape: Shape) -> Array:
    """Only the last strategy wanders: a random walk of 4 % a round from a start of mean 0; the others are repeats."""
    logs = own(rng, shape)
    steps = own(rng, (shape[0], shape[2])).cumsum(axis=-1)
    logs[:, -1] += steps * rng.choice([-1, 1], (shape[0], 1))
    return logs


def one_steps(rng: Generator, shape: Shape) -> Array:
    """The last strategy alone changes its speed by 15 %, up or down, at some round of the set."""
    logs = own(rng, shape)
    when = rng.integers(shape[2] + 1, size=(shape[0], 1))
    logs[:, -1] += 0.15 * rng.choice([-1, 1], (shape[0], 1)) * (numpy.arange(shape[2]) >= when)
    return logs


# --- what is missing -------------------------------------------------------------------------------------------------


def one_times_out(rng: Generator, shape: Shape) -> Array:
    """The last strategy is four times as noisy, and its runs beyond 1.5 sd on the slow side time out."""
    logs = own(rng, shape)
    logs[:, -1] *= 4
    logs[:, -1][logs[:, -1] < -6 * RUN_SD] = numpy.nan
    return logs


def lost_at_random(rng: Generator, shape: Shape) -> Array:
    """Every fifth run is lost, whatever its speed, and a round's effect of 12 % is common."""
    logs = own(rng, shape) + 3 * own(rng, (shape[0], 1, shape[2]))
    return numpy.where(rng.random(shape) < 0.2, numpy.nan, logs)


def lost_in_bad_rounds(rng: Generator, shape: Shape) -> Array:
    """In rounds that are slow, by more than 1 sd of their common effect of 12 %, half of the runs time out."""
    common = rng.normal(size=(shape[0], 1, shape[2]))
    logs = own(rng, shape) + 3 * RUN_SD * common
    return numpy.where((common < -1) & (rng.random(shape) < 0.5), numpy.nan, logs)


CASES: dict[str, Callable[[Generator, Shape], Array]] = {
    "runs are t(3)": heavy_tails,
    "a tenth lognormally slower": contaminated,
    "one run of 50 takes twice as long": rare_halves,
    "skewed baseline": skewed_baseline,
    "an sd for each round": sds_by_round,
    "an sd for each strategy": sds_by_strategy,
    "first round 5x noisier": noisy_first_round,
    "sd falls to a fifth": calmer,
    "times rounded to 1 %": rounded_times,
    "two share a disturbance": two_share,
    "baseline opposed to the others": baseline_opposed,
    "one bad round": one_bad_round,
    "one run takes three times as long": bad_run,
    "linear drift of 30 %": linear_drift,
    "step in the middle": step_change,
    "wave of one round": wave_of_a_round,
    "wave of two rounds": wave_of_two_rounds,
    "first of a round slower": first_of_round,
    "heat after one strategy": throttled,
    "co-tenants for 1 to 3 runs": co_tenants,
    "AR(2) machine": second_order_runs,
    "1/f machine": long_memory_runs,
    "AR(2) strategies": second_order_strategies,
    "1/f strategies": long_memory_strategies,
    "one strategy walks": one_wanders,
    "one strategy steps": one_steps,
    "one strategy times out": one_times_out,
    "a fifth lost": lost_at_random,
    "lost in bad rounds": lost_in_bad_rounds,
}

DISPUTED = ("heat after one strategy", "one strategy walks", "one strategy steps", "one strategy times out")
"""What one strategy does here is its own, for as long as the set was measured: no statistic could tell it from a
difference. They are run to know how loud the suite is then, and no promise is judged by them."""


def draw(case: str, rng: Generator, num_sets: int, num_strategies: int = 10, num_rounds: int = 5) -> Array:
    """Logs of a case, [num_sets, num_strategies, num_rounds]."""
    return CASES[case](rng, (num_sets, num_strategies, num_rounds))


# --- two variants, round by round ------------------------------------------------------------------------------------
# Each draws log throughput of A and of B, [num_sets, num_rounds] each, given which of them ran first in each round.

Pair = tuple[Array, Array]


def pair_by_time(series: Array, b_first: Array) -> Pair:
    """A machine's state [num_sets, 2 * num_rounds], run after run, as that of A and of B."""
    first, second = series[:, 0::2], series[:, 1::2]
    return numpy.where(b_first, second, first), numpy.where(b_first, first, second)


def pair_of(noise: Callable[[Generator, tuple[int, ...]], Array]) -> Callable[[Generator, Array], Pair]:
    """Independent runs of A and B with a noise of [2, num_sets, num_rounds]."""

    def drawn(rng: Generator, b_first: Array) -> Pair:
        a, b = noise(rng, (2, *b_first.shape))
        return a, b

    return drawn


def pair_machine(state: Callable[[Generator, tuple[int, int]], Array]) -> Callable[[Generator, Array], Pair]:
    """Independent normal runs, and a state of the machine [num_sets, runs]."""

    def drawn(rng: Generator, b_first: Array) -> Pair:
        own_runs = own(rng, (2, *b_first.shape))
        a, b = pair_by_time(state(rng, (b_first.shape[0], 2 * b_first.shape[1])), b_first)
        return own_runs[0] + a, own_runs[1] + b

    return drawn


def pair_skewed(rng: Generator, b_first: Array) -> Pair:
    """B is slowed by an exponential of 10 %, and its mean logarithm is that of A."""
    return own(rng, b_first.shape), 0.1 - rng.exponential(0.1, b_first.shape)


def pair_second_order(rng: Generator, b_first: Array) -> Pair:
    """The ratio is AR(2) over the rounds, mostly of the second order."""
    ratio = numpy.sqrt(2) * RUN_SD * second_order(rng, b_first.shape, 0.1, 0.6)
    return -ratio / 2, ratio / 2


def pair_long_memory(rng: Generator, b_first: Array) -> Pair:
    """Half of the ratio's noise is 1/f over the rounds."""
    ratio = RUN_SD * (long_memory(rng, b_first.shape) + rng.normal(size=b_first.shape))
    return -ratio / 2, ratio / 2


def pair_step(rng: Generator, b_first: Array) -> Pair:
    """B alone changes its speed by 15 %, up or down, at one of the first twelve rounds."""
    a, b = own(rng, (2, *b_first.shape))
    when = rng.integers(13, size=(b_first.shape[0], 1))
    sign = rng.choice([-1, 1], (b_first.shape[0], 1))
    return a, b + 0.15 * sign * (numpy.arange(b_first.shape[1]) >= when)


def pair_heat(rng: Generator, b_first: Array) -> Pair:
    """B heats the machine: what runs next is 8 % slower, what runs then 4 %, and so on."""
    series = own(rng, (b_first.shape[0], 2 * b_first.shape[1]))
    is_b = numpy.stack([b_first, ~b_first], axis=-1).reshape(series.shape)
    heat = numpy.zeros(len(series))
    for place in range(series.shape[1]):
        series[:, place] -= heat
        heat = heat / 2 + 0.08 * is_b[:, place]
    return pair_by_time(series, b_first)


def _wave_of_runs(period: float) -> Callable[[Generator, tuple[int, int]], Array]:
    def state(rng: Generator, shape: tuple[int, int]) -> Array:
        phase = rng.uniform(0, 2 * numpy.pi, (shape[0], 1))
        return 0.1 * numpy.sin(2 * numpy.pi * numpy.arange(shape[1]) / period + phase)

    return state


PAIRS: dict[str, Callable[[Generator, Array], Pair]] = {
    "runs are t(3)": pair_of(lambda rng, shape: RUN_SD * student(rng, shape)),
    "a tenth lognormally slower": pair_of(
        lambda rng, shape: own(rng, shape) / 2 - (rng.random(shape) < 0.1) * 0.15 * rng.lognormal(0, 0.8, shape)
    ),
    "times rounded to 1 %": pair_of(
        lambda rng, shape: -numpy.log(numpy.round(100 * numpy.exp(0.004 * rng.normal(size=shape))) / 100)
    ),
    "sd falls to a fifth": pair_of(lambda rng, shape: own(rng, shape) * numpy.geomspace(2, 0.4, shape[-1])),
    "B skewed": pair_skewed,
    "linear drift of 30 %": pair_machine(
        lambda rng, shape: numpy.tile(numpy.linspace(0, -0.3, shape[1]), (shape[0], 1))
    ),
    "wave of two runs": pair_machine(_wave_of_runs(2)),
    "wave of four runs": pair_machine(_wave_of_runs(4)),
    "wave of nine runs": pair_machine(_wave_of_runs(9)),
    "co-tenants for 1 to 3 runs": pair_machine(lambda rng, shape: numpy.log(0.75) * bursts(rng, *shape)),
    "AR(2) machine": pair_machine(lambda rng, shape: 2 * RUN_SD * second_order(rng, shape, 1.2, -0.6)),
    "1/f machine": pair_machine(lambda rng, shape: 3 * RUN_SD * long_memory(rng, shape)),
    "heat after B": pair_heat,
    "AR(2) ratio": pair_second_order,
    "1/f ratio": pair_long_memory,
    "B steps": pair_step,
}


# --- days ------------------------------------------------------------------------------------------------------------
# Each draws what the days do, [num_sets, num_strategies, num_days] of logarithms, in the order of the days.

DAY_SD = 0.02


def days_heavy(rng: Generator, shape: Shape) -> Array:
    """A day's effect on all strategies is t(3)."""
    return numpy.broadcast_to(DAY_SD * student(rng, (shape[0], 1, shape[2])), shape)


def days_own(rng: Generator, shape: Shape) -> Array:
    """A day does something else to each strategy."""
    return DAY_SD * rng.normal(size=shape)


def days_slower(rng: Generator, shape: Shape) -> Array:
    """Each day is 2 % slower than the one before, as where dust settles, and has an effect of its own."""
    return DAY_SD * (rng.normal(size=(shape[0], 1, shape[2])) - numpy.arange(shape[2])) + numpy.zeros(shape)


def days_in_one_week(rng: Generator, shape: Shape) -> Array:
    """The last day follows an update that made the machine 6 % slower."""
    return DAY_SD * (
        rng.normal(size=(shape[0], 1, shape[2])) - 3 * (numpy.arange(shape[2]) == shape[2] - 1)
    ) + numpy.zeros(shape)


def days_long_memory(rng: Generator, shape: Shape) -> Array:
    """Days are 1/f."""
    return numpy.broadcast_to(DAY_SD * long_memory(rng, (shape[0], 1, shape[2])), shape)


DAYS: dict[str, Callable[[Generator, Shape], Array]] = {
    "days are t(3)": days_heavy,
    "a day for each strategy": days_own,
    "each day 2 % slower": days_slower,
    "update before the last day": days_in_one_week,
    "1/f days": days_long_memory,
}


# --- launches of one program, with windows inside ---------------------------------------------------------------------


def launches(rng: Generator, num_sets: int, num_launches: int, num_windows: int, case: str) -> Array:
    """Log speeds of the windows of launches, [num_sets, num_launches, num_windows]; the same truth for each launch.

    "AR(0.9) windows": each launch wanders. "1/f windows": for long. "launches differ": by 4 %, windows by 1 %.
    "launches are t(3)": the same with heavy tails. "slow start": each launch begins 20 % slower and recovers. "machine
    wanders": 1/f over all windows of all launches, one after the other.
    """
    shape = (num_sets, num_launches, num_windows)
    windows = RUN_SD / 4 * rng.normal(size=shape)
    if case == "AR(0.9) windows":
        return RUN_SD * second_order(rng, shape, 0.9, 0.0)
    if case == "1/f windows":
        return windows + RUN_SD * long_memory(rng, shape)
    if case == "launches differ":
        return windows + own(rng, (num_sets, num_launches, 1))
    if case == "launches are t(3)":
        return windows + RUN_SD * student(rng, (num_sets, num_launches, 1))
    if case == "slow start":
        return windows - 0.2 * rng.uniform(0, 2, (num_sets, num_launches, 1)) * 0.5 ** numpy.arange(num_windows)
    if case == "machine wanders":
        return windows + RUN_SD * long_memory(rng, (num_sets, num_launches * num_windows)).reshape(shape)
    raise KeyError(case)


LAUNCHES = ("AR(0.9) windows", "1/f windows", "launches differ", "launches are t(3)", "slow start", "machine wanders")
