"""What a set answers, in the terminal and in the report: a table, and which strategy is fastest, by how much and how
surely."""

import dataclasses
from collections.abc import Iterable, Sequence

import pandas

from scripts.results.accuracy import top1_accuracy
from scripts.results.formatting import device_count, format_number, plural, plural_of_several, text_table
from scripts.results.identity import compute_precision, same_request
from scripts.results.intervals import SENTENCE_ROUNDS, RatioEstimate
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.results.set_text import describe_failures, describe_rows
from scripts.results.set_warnings import find_warnings
from scripts.results.step_breakdown import shares_text, step_shares
from scripts.shared.strategy_list import BASELINE

EXPECTED = "ddp"
"""The strategy that a reader expects to be the fastest."""
TABLE_COLUMNS = ("strategy", "devices", "images/s", "x single", "memory MB", "J/image")


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is said of a set. Of each family (run_group.FAMILIES) one group stands for all."""

    results: ResultSet
    ranked: list[RunGroup]
    """What may be called faster or slower than each other."""
    best: RunGroup

    def over_best(self, group: RunGroup) -> RatioEstimate:
        ratio = self.results.ratio(group, self.best)
        assert ratio is not None  # find_answer has left out what may not be compared
        return ratio

    @property
    def others(self) -> list[RunGroup]:
        return [group for group in self.ranked if group is not self.best]

    def others_that_are(self, verdict: str) -> list[RunGroup]:
        """verdict: of RatioEstimate, on their ratio to the best one."""
        return [group for group in self.others if self.over_best(group).verdict == verdict]

    @property
    def fastest_sentence(self) -> str:
        """ddp is the fastest in fp32: 212 [205, 219] images/s."""
        name, speed = self.name(self.best), f"{self.best.timed_throughput.text()} images/s"
        if not self.others:
            return f"Only {name} has a time that can be ranked: {speed}."
        leads = "is the fastest" if self.others_that_are("slower") == self.others else "has the highest mean"
        return f"{name} {leads}{self.in_precision}: {speed}."

    @property
    def in_precision(self) -> str:
        precision = compute_precision(self.best.identity)
        return f" in {precision}" if precision else ""

    @property
    def ties_sentence(self) -> str:
        """No difference separates it from zero1. All others in fp32 are slower."""
        ties, slower, unsaid = map(self.others_that_are, ("no difference seen", "slower", "too few rounds"))
        if unsaid and unsaid == self.others:
            return f"Which is faster is said from {SENTENCE_ROUNDS} rounds on (--repeats {SENTENCE_ROUNDS})."
        sentences: list[str] = []
        if ties:
            sentences.append(f"No difference separates it from {self.names(ties)}.")
        if slower:
            names = self.names(slower) if unsaid else f"All others{self.in_precision}"
            sentences.append(f"{names} {'is' if unsaid and len(slower) == 1 else 'are'} slower.")
        if unsaid:
            sentences.append(f"Too few rounds for {self.names(unsaid)}.")
        return " ".join(sentences)

    @property
    def baseline_sentence(self) -> str:
        """ddp is 3.41 [3.36, 3.46] x single and 0.98 [0.90, 1.07] x single, all cores. In another precision: ..."""
        bases = [base for base in self.results.plain_baselines if base is not self.best]
        over = [(base, self.results.ratio(self.best, base)) for base in bases]
        times = [f"{ratio.text()} x {base.label}" for base, ratio in over if ratio]
        apart = [
            f"{group.label} is {ratio.text()} x {self.results.baseline_label_of[group.label]}"
            for group in self.results.timed_groups_without_aa
            if group not in self.results.rankable_groups and (ratio := self.results.speedups.get(group.label))
        ]
        sentences = [f"{self.best.label} is {join(times)}."] if times else []
        return " ".join([*sentences, *([f"In another precision: {'; '.join(apart)}."] if apart else [])])

    @property
    def verdicts_sentence(self) -> str:
        """Faster than single: ddp (3.41 [3.36, 3.46]) and zero1 (...). No difference seen from single: ..."""
        over = [(each, ratio) for each in self.ranked if (ratio := self.results.speedups.get(each.label))]
        base = join([*dict.fromkeys(self.results.baseline_label_of[each.label] for each, _ in over)])
        sentences: list[str] = []
        for verdict, word in (("faster", "than"), ("slower", "than"), ("no difference seen", "from")):
            alike = [(self.name(each), ratio.text()) for each, ratio in over if ratio.verdict == verdict]
            names = [f"{name} ({ratio})" if word == "than" else name for name, ratio in alike]
            sentences += [f"{verdict.capitalize()} {word} {base}: {join(names)}."] if names else []
        return " ".join(sentences)

    @property
    def trust_sentence(self) -> str:
        """5 rounds; [low, high] holds with 95 % for all 66 ratios at once; warnings: drift, busy neighbour."""
        rounds = plural_of_several([len({*group.round_numbers}) for group in self.ranked], "round")
        kinds = ", ".join(warning.kind for warning in find_warnings(self.results))
        family = f"[low, high] holds with 95 % for all {plural(len(self.results.ratios), 'ratio')} at once"
        return f"{rounds}; {family}; {f'warnings: {kinds}' if kinds else 'no warning'}."

    @property
    def step_sentence(self) -> str:
        """A step of fsdp: compute 82 %, exposed communication 11 %; of ddp: ... '' where it was not measured."""
        expected = [group for group in self.others if group.family == EXPECTED]
        steps = self.results.table("steps")
        texts = {each.label: shares_text(step_shares(each, steps)) for each in [self.best, *expected[:1]]}
        parts = [f"of {label}: {text}" for label, text in texts.items() if text]
        return f"A step {'; '.join(parts)}." if parts else ""

    @property
    def terminal_lines(self) -> list[str]:
        """At most four."""
        lines = (self.fastest_sentence, self.ties_sentence, self.baseline_sentence, self.step_sentence)
        return [*filter(None, lines)]

    @property
    def report_sentences(self) -> list[str]:
        """Three: the fastest, who is faster or slower than its baseline, and whether it can be trusted."""
        first = f"{self.fastest_sentence} {self.ties_sentence}".strip()
        second = " ".join(filter(None, [self.baseline_sentence, self.verdicts_sentence]))
        return [*filter(None, (first, second, self.trust_sentence))]

    def name(self, group: RunGroup) -> str:
        """ddp (also ddp_spawn, slurm)"""
        same = [each.label for each in self.results.rankable_groups if is_same_training(each, group)]
        return f"{group.label} (also {', '.join(same)})" if same else group.label

    def names(self, groups: Iterable[RunGroup]) -> str:
        return join([self.name(group) for group in groups])


def find_answer(results: ResultSet) -> Answer | None:
    """None where no run has a throughput."""
    ranked: list[RunGroup] = []
    for group in results.rankable_groups:
        if not any(is_same_training(group, other) for other in ranked):
            ranked.append(group)
    if not ranked:
        return None
    best = max(ranked, key=lambda group: group.timed_throughput.value)
    return Answer(results, [group for group in ranked if group is best or results.ratio(group, best)], best)


def is_same_training(one: RunGroup, other: RunGroup) -> bool:
    """Whether they are one training, started differently, with the same settings."""
    alike = one.family == other.family and one.strategy != other.strategy
    return alike and same_request(one.identity, other.identity, ())


def table_groups(results: ResultSet) -> list[RunGroup]:
    """The groups as tables have them: the fastest first, then one process, A/A copies, and those without a time."""

    def place(group: RunGroup) -> tuple[bool, bool, bool, float]:
        speed = group.throughput.value if group.throughput else 0.0
        return not speed, group.is_aa_copy, group.strategy == BASELINE, -speed

    return sorted(results.groups, key=place)


def strategy_cells(results: ResultSet, group: RunGroup) -> dict[str, str]:
    """A cell for each of TABLE_COLUMNS, and of n, status and top-1 %; '' where it is unknown."""
    ok, over, accuracy = group.ok_runs, over_single(results, group), top1_accuracy(group)
    status = ", ".join(f"{count} {name}" for name, count in group.status_counts.items())
    devices = ok.world_size.max() if len(ok) else 0
    return {
        "strategy": group.label,
        "devices": device_count(devices, ok.device.iloc[0]) if devices > 0 else "",
        "images/s": group.throughput.text() if group.throughput else "",
        "x single": f"{over.text()}{over_which_baseline(results, group)}" if over else "",
        "memory MB": _mean(ok.peak_memory_mb),
        "J/image": _mean(ok.energy_j_per_image),
        "n": str(group.throughput.num_runs) if group.throughput else "",
        "status": status + ("" if group.is_parallel else "; on one device"),
        "top-1 %": accuracy.text if accuracy else "",
    }


def over_single(results: ResultSet, group: RunGroup) -> RatioEstimate | None:
    """Over the group's baseline; of one process with all cores, over one with a rank's."""
    if group not in results.plain_baselines or group.label == BASELINE:
        return results.speedups.get(group.label)
    singles = [each for each in results.plain_baselines if each.label == BASELINE]
    return results.ratio(group, singles[0]) if singles else None


def over_which_baseline(results: ResultSet, group: RunGroup) -> str:
    """', over single, bf16' where that is not the plain BASELINE."""
    label = results.baseline_label_of.get(group.label, BASELINE)
    return "" if label == BASELINE else f", over {label}"


def terminal_text(results: ResultSet) -> str:
    """Of a set: its table, the answer, failures and warnings."""
    parts = [results.name, "No run has a throughput."]
    if answer := find_answer(results):
        runs = plural_of_several([len(group.windows_of_runs) for group in results.timed_groups], "run")
        head = f"{results.name}: {describe_rows(results.ok_runs)}; {runs} a strategy; [low, high]: 95 %"
        rows = [strategy_cells(results, group) for group in table_groups(results) if group.throughput]
        parts = [head, _table(rows), "\n".join(answer.terminal_lines)]
    warnings = [f"warning: {warning.line}" for warning in find_warnings(results)]
    parts += ["\n".join([*describe_failures(results), *warnings])]
    return "\n\n".join(filter(None, parts))


def join(names: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _table(rows: Sequence[dict[str, str]]) -> str:
    columns = [name for name in TABLE_COLUMNS if any(row[name] for row in rows)]
    return text_table([columns, *([row[name] for name in columns] for row in rows)], left_aligned={0, 1, 2, 3})


def _mean(column: pandas.Series) -> str:
    values = column.dropna()
    return format_number(float(values.mean())) if len(values) else ""
