"""What a set says of its strategies: one sentence in plain words, and the sentences that it rests on.

Needs no torch.
"""

import dataclasses

from scripts.results.families import count_compared, method_text, ratios_of_all_pairs, ratios_to_fastest
from scripts.results.formatting import format_interval, format_number, format_with_interval, plural, printable
from scripts.results.identity import comparable, compute_precision
from scripts.results.intervals import FEW_ROUNDS, MIN_ROUNDS, NO_REPEAT, RatioEstimate
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.shared.strategy_list import BASELINE, all_strategies

MOST_NAMES = 3  # in a sentence; more are counted
NOT_RUN = "was not run"


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The groups that may be called faster or slower than each other, and the one with the highest mean."""

    comparable_groups: list[RunGroup]
    best: RunGroup
    over_best: dict[str, RatioEstimate]
    """The throughput of each other group over that of `best`, by label: of the family of all pairs."""

    @property
    def best_is_fastest(self) -> bool:
        """Whether every other group is slower with confidence."""
        return bool(self.over_best) and all(over.verdict == "slower" for over in self.over_best.values())

    def indistinguishable(self, baseline: RunGroup) -> list[str]:
        """The groups, without the baseline, that were not seen to differ from the best one."""
        unseen = [label for label, over in self.over_best.items() if over.verdict == "no difference seen"]
        return [label for label in unseen if label != baseline.label]


def rank_groups(results: ResultSet) -> Ranking:
    """The largest family of comparable groups of a set. Raises ValueError for a set without a timed group."""
    ranked = results.rankable_groups
    alike = max(([group for group in ranked if comparable(group.identity, of.identity)] for of in ranked), key=len)
    name, over_best = ratios_to_fastest({group.label: group.sample for group in alike})
    return Ranking(alike, next(group for group in alike if group.label == name), over_best)


def one_sentence(results: ResultSet, ranking: Ranking) -> str:
    """The answer of the set in one sentence: whether a strategy is faster than one process, which is the fastest, in
    which precision, and what has no time; or why there is no verdict."""
    return f"{_answer(results, ranking)}{_without_a_time(results)}."


def _answer(results: ResultSet, ranking: Ranking) -> str:
    timed, best = results.timed_groups_without_aa, ranking.best
    if len({group.strategy for group in timed}) == 1:
        return _answer_of_one(timed)
    speed = f"{format_number(best.timed_throughput.value)} images/s"
    over, single = results.speedups_without_aa, results.baseline_of(best)
    made = [each for each in (ranking.over_best | over).values() if each.verdict != "no verdict"]
    several, among = len({compute_precision(group.identity) for group in timed}) > 1, _scope(timed, best)
    within = f" {among.lower().rstrip(', ')}" if among else ""
    if not made:
        alike = " of comparable runs" if len(ranking.comparable_groups) < len(timed) else ""
        highest = f"the highest mean{alike}{within} is that of {best.label}, {speed}"
        return f"No verdict, since {_why_none(ranking, over)}; {highest}"
    faster = [label for label, each in over.items() if each.verdict == "faster"]
    if best.label in faster and single:
        times = f"{over[best.label].text()} times as fast as {single.label}"
        if ranking.best_is_fastest:
            return f"{among}{best.label} is the fastest strategy, {times}"
        others = _name(ranking.indistinguishable(single), "others")
        unsure = f", but no difference was seen between {best.label} and {others}" if others else ""
        return f"{among}{best.label} is {times}{unsure}"
    if faster:
        named, bases = (
            _name(faster, "strategies"),
            join([*dict.fromkeys(results.baseline_label_of[label] for label in faster)]),
        )
        is_or_are = "is" if len(faster) == 1 else "are"
        beside = _beside_best(ranking, faster) if best.strategy == BASELINE else ""
        rest = beside or f"; the highest mean{within} is that of {best.label}"
        scope = "" if several else among  # of several precisions each baseline's label says its own
        return f"{scope}{named} {is_or_are} faster than {bases}{rest}"
    if over:
        none = "No strategy" if several or not among else f"{among}no strategy"
        same = " in the same precision" if several else ""
        return f"{none} was seen to be faster than one process{same}{_unseen(over)}"
    leads = "is the fastest strategy" if ranking.best_is_fastest else "has the highest mean"
    return f"{among}{best.label} {leads}, {speed}; no run of {BASELINE} has its settings, so that there is no speed-up"


def _beside_best(ranking: Ranking, faster: list[str]) -> str:
    """How strategies that are faster than their baseline compare with the highest mean, which is one process; '' where
    none has an interval with it."""
    best, verdicts = ranking.best.label, {label: over.verdict for label, over in ranking.over_best.items()}
    slower, unseen = (
        [label for label in faster if verdicts.get(label) == verdict] for verdict in ("slower", "no difference seen")
    )
    if slower == faster:
        return f", but slower than {best}"
    if unseen == faster:
        return f", but no difference was seen between {_name(faster, '') if len(faster) == 1 else 'them'} and {best}"
    parts = [f"{_name(slower, '')} {'is' if len(slower) == 1 else 'are'} slower than {best}"] if slower else []
    if unseen:
        parts.append(f"no difference was seen between {best} and {_name(unseen, '')}")
    return f"; of these, {', and '.join(parts)}" if parts else ""


def _answer_of_one(timed: list[RunGroup]) -> str:
    best = max(timed, key=lambda group: group.timed_throughput.value)
    speed = f"{format_number(best.timed_throughput.value)} images/s"
    only = "One process ran alone" if best.strategy == BASELINE else f"Only {best.strategy} has a time"
    if len(timed) == 1:
        return f"{only}, so that no strategies are compared; it trains {speed}"
    several = f"{only}, in {len(timed)} variants"
    return f"{several}, so that no strategies are compared; the highest mean is that of {best.label}, {speed}"


def _scope(timed: list[RunGroup], best: RunGroup) -> str:
    """'In fp32, ': what a verdict is about, also where the set has no other precision; '' where none was recorded."""
    recorded = any(compute_precision(group.identity) for group in timed)
    return f"In {compute_precision(best.identity) or 'one precision'}, " if recorded else ""


def _why_none(ranking: Ranking, over: dict[str, RatioEstimate]) -> str:
    whys = dict.fromkeys(each.why for each in (ranking.over_best | over).values() if each.why)
    if not whys:
        return "no two strategies ran with the same settings"
    if set(whys) - {FEW_ROUNDS, NO_REPEAT}:
        return "; ".join(whys)
    rounds = max(len(set(group.round_numbers)) for group in ranking.comparable_groups)
    few = f"{MIN_ROUNDS} rounds are needed and this set has {rounds}"
    return few if rounds < MIN_ROUNDS else f"no two strategies share {MIN_ROUNDS} rounds"


def _unseen(ratios: dict[str, RatioEstimate]) -> str:
    found = [each.smallest_difference for each in ratios.values() if each.smallest_difference is not None]
    least = max(found, default=0.0)
    text = f"; the minimum detectable effect is at most {100 * least:.0f} % at a nominal power of 80 %" if found else ""
    without = [label for label, each in ratios.items() if each.smallest_difference is None]
    rest = f"; there is no verdict on {_name(without, 'strategies')}" if without else ""
    return ("; this set may miss even a doubling" if least > 1 else text) + rest


def _without_a_time(results: ResultSet) -> str:
    """'; apex_ddp was skipped and 5 strategies were not run'. Of a set of one strategy only what was tried is named."""
    compares = len({group.strategy for group in results.timed_groups_without_aa}) > 1
    ends = [(end, labels) for end, labels in untimed(results).items() if compares or end != NOT_RUN]
    parts = [in_words(end, labels, _name(labels, "strategies")) for end, labels in ends]
    return f"; {join(parts)}" if parts else ""


def untimed(results: ResultSet) -> dict[str, list[str]]:
    """The labels of the groups without a time by what became of them, and the suite's strategies that the set has no
    row of."""
    ends: dict[str, list[str]] = {}
    for group in results.groups:
        if not group.windows_of_runs:
            statuses = {*group.status_counts}
            ends.setdefault("was skipped" if statuses == {"skipped"} else "has no time", []).append(group.label)
    found = {group.strategy for group in results.groups}
    missing = [name for name in all_strategies() if name not in found]
    return ends | ({NOT_RUN: missing} if missing else {})


def in_words(end: str, labels: list[str], names: str) -> str:
    """'a and b were skipped'. end: a key of `untimed`. names: of the labels, as text."""
    return f"{names} {end if len(labels) == 1 else end.replace('was', 'were').replace('has', 'have')}"


def _name(labels: list[str], noun: str) -> str:
    return join(labels) if len(labels) <= MOST_NAMES else f"{len(labels)} {noun}".rstrip()


def headline(results: ResultSet) -> list[str]:
    """The verdict, then the sentences that it rests on."""
    timed = results.timed_groups_without_aa
    if not timed:
        return ["No run has a throughput."]
    if results.contradictions:
        return [f"No verdict, since the set contradicts itself: {'; '.join(map(printable, results.contradictions))}."]
    ranking = rank_groups(results)
    alike, best, ranked = ranking.comparable_groups, ranking.best, results.rankable_groups
    single = results.baseline_of(best)
    # a pair with the baseline has one interval everywhere
    over_best = ranking.over_best | {
        group.label: results.speedups[group.label] for group in alike if results.baseline_of(group) is best
    }
    if single:
        over_best.pop(single.label, None)
    sentences = [one_sentence(results, ranking), _highest_mean(results, best, ranking.best_is_fastest)]
    seen = {label: over for label, over in over_best.items() if over.verdict in ("slower", "faster")}
    unseen = {label: over for label, over in over_best.items() if over.verdict == "no difference seen"}
    if unseen:
        least = max(over.smallest_difference or 0.0 for over in unseen.values())
        sentences.append(f"No difference seen between {best.label} and {join([*unseen])}; {_describe_power(least)}.")
    if seen:
        sentences.append("; ".join(f"{label} is {_times(over)} {best.label}" for label, over in seen.items()) + ".")
    missing = dict.fromkeys(over.why for over in (over_best | results.speedups).values() if over.why)
    if missing:
        sentences.append(f"Figures without a verdict: {'; '.join(missing)}.")
    sentences += _not_ranked(results, [group for group in timed if group not in ranked])
    if len(alike) < len(ranked):
        others = [group.label for group in ranked if group not in alike]
        sentences.append(f"Not compared, since they ran on other settings: {'; '.join(others)}.")
    if any(over.low is not None for over in (over_best | results.speedups).values()):
        over_single = method_text(count_compared(results.speedups.values()))
        all_pairs = ratios_of_all_pairs({group.label: group.sample for group in alike})
        sentences.append(
            f"[a, b] is a 95 % interval. Those over {BASELINE} are simultaneous ({over_single}), and so are those over "
            f"the highest mean, which was picked after looking ({method_text(count_compared(all_pairs.values()))})."
        )
    return sentences


def _not_ranked(results: ResultSet, others: list[RunGroup]) -> list[str]:
    bases, over = results.baseline_label_of, results.speedups
    compared = [
        f"{each.label} is {_times(over[each.label])} {bases[each.label]}" for each in others if each.label in bases
    ]
    alone = [each.label for each in others if each.label not in {*bases, *bases.values()}]
    found = [f"In another precision: {'; '.join(compared)}."] if compared else []
    return found + ([f"Not compared, since they computed in another precision: {'; '.join(alone)}."] if alone else [])


def _highest_mean(results: ResultSet, best: RunGroup, excluded: bool) -> str:
    device = best.ok_runs.iloc[0].device_name or "this machine"
    estimate = best.timed_throughput
    speed = f"{format_with_interval(estimate.value, estimate.low, estimate.high, format_number)} images/s"
    speed += f", n = {plural(estimate.num_runs, 'run')}"
    single, among = results.baseline_of(best), f"of those in {compute_precision(best.identity) or 'one precision'}"
    name = f"{best.label}, one process," if best.strategy == BASELINE else best.label
    leads = f"On {device}, {name} {'is the fastest' if excluded else 'has the highest mean'} {among}"
    if single is None:
        return f"{leads} ({speed})."
    over = results.speedups[best.label]
    if over.verdict == "no verdict":
        return f"On {device}, {best.label} ran {over.value:.2f}x as fast as {single.label} ({speed})."
    if over.verdict != "faster":
        return f"{leads}: {_times(over)} {single.label} ({speed}); it was not shown to be faster than {single.label}."
    return f"{leads}: {_times(over)} {single.label} ({speed})."


def _times(over: RatioEstimate) -> str:
    return f"{over.value:.2f}x {format_interval(over.low, over.high, '{:.2f}'.format)}".rstrip()


def _describe_power(fraction: float) -> str:
    power = "80 % power (nominal; the real power may be lower or higher)"
    if fraction > 1:
        return f"with {power} this data does not find a factor of 2: take more rounds"
    return f"this data finds a ratio of {1 + fraction:.2f} with {power}"


def join(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
