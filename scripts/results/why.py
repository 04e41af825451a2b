"""What limits each strategy of a set, and the one option to try next.

    ./bench why results/latest

Shares of a step come from the step breakdown; what else limits comes from counters of the runs. Needs no torch.
"""

import dataclasses
import re
import shlex
import sys
from collections.abc import Sequence

import pandas

from benchmarks.common.config import FIELDS
from scripts.results.answer import table_groups
from scripts.results.device_use import device_use
from scripts.results.formatting import printable
from scripts.results.intervals import RatioEstimate
from scripts.results.options import WhyOptions
from scripts.results.result_set import ResultSet, load_set
from scripts.results.run_group import RunGroup
from scripts.results.set_text import describe_failures
from scripts.results.settings import DDP
from scripts.results.step_breakdown import (
    COMMUNICATION,
    COMPUTE_AND_COMMUNICATION,
    LOADER,
    WAITING,
    StepShare,
    ideal_bubble,
    pipeline_bubbles,
    shares_text,
    step_shares,
)
from scripts.shared.strategy_list import BASELINE

LEAST = 0.15  # of a step: what costs less is not called the limit
LEAST_TAKEN = 0.10  # of the cores' time, by other programs
NEIGHBOUR, BUBBLE, COMPUTE, COPIES = "a busy neighbour", "the pipeline's bubble", "compute", "copying to the device"
COMMUNICATION_LIMIT, THE_LOADER = "communication", "the loader"
LIMIT_OF_PART = {COMMUNICATION: COMMUNICATION_LIMIT, LOADER: THE_LOADER, WAITING: BUBBLE, "copy": COPIES}
DEFAULT_CONFIGS = {False: "configs/smoke.yaml", True: "configs/imagenet-bench.yaml"}
"""Of ./bench run, without GPUs and with."""


@dataclasses.dataclass(frozen=True)
class WhyRow:
    """What limits one strategy."""

    label: str
    shares: list[StepShare]
    """The parts of a step, the largest first; [] where no step was accounted."""
    limit: str
    """In words, such as `communication`; '' where it was not measured."""
    detail: str
    """The numbers behind it, such as `33 % in theory`; may be empty."""
    command: str
    """The one thing to try next."""

    @property
    def parts(self) -> str:
        """compute 71 %, exposed communication 24 %, loader 5 %"""
        return shares_text(self.shares)

    @property
    def text(self) -> str:
        """ddp: compute 71 %, exposed communication 24 % -> communication limits it: ./bench run ddp_compressed"""
        parts = self.parts or "no step was accounted"
        detail = f" ({self.detail})" if self.detail else ""
        limit = f"{self.limit} limits it{detail}" if self.limit else "not measured"
        return f"{self.label}: {parts} -> {limit}: {self.command}"


def why_rows(results: ResultSet) -> list[WhyRow]:
    """A row for each timed group, in the order of the table."""
    groups = [group for group in table_groups(results) if group.throughput and not group.is_aa_copy]
    return [_why(results, group) for group in groups]


def main(options: WhyOptions) -> int:
    results = load_set(options.results)
    rows = why_rows(results)
    for row in rows:
        print(printable(row.text))
    if not rows:
        reasons = " ".join(describe_failures(results)[:3])
        print(f"error: no run in {options.results} has a throughput. {printable(reasons)}", file=sys.stderr)
    return int(not rows)


def _why(results: ResultSet, group: RunGroup) -> WhyRow:
    shares = step_shares(group, results.table("steps"))
    kept, taken = kept_with_loading(results, group.strategy), neighbour_share(results, group)
    if not (shares or kept or taken):
        return WhyRow(group.label, [], "", "", _run(group, "--account-steps", 10))
    costs = {LIMIT_OF_PART[part.name]: part.share for part in shares if part.name in LIMIT_OF_PART}
    if (ideal := ideal_bubble(group)) and BUBBLE not in costs and group.is_parallel and _on_gpus(group):
        costs[BUBBLE] = ideal  # stages within one process take turns, which no mark can tell from compute
    if kept:
        costs[THE_LOADER] = 1 - kept.value if kept.verdict == "slower" else 0.0
    if taken and taken >= max(costs.values(), default=0.0):
        where, names = ("GPUs", "nvidia-smi") if _on_gpus(group) else ("cores", "top")
        detail = f"other programs on its {where}" + (f" took {100 * taken:.0f} %" if where == "cores" else "")
        return WhyRow(group.label, shares, NEIGHBOUR, detail, f"close it ({names} names it), and measure again")
    limit = max(costs, key=lambda name: costs[name], default=COMPUTE)
    if costs.get(limit, 0.0) < LEAST:
        mixed = any(part.name == COMPUTE_AND_COMMUNICATION for part in shares)
        limit = COMPUTE_AND_COMMUNICATION if mixed else COMPUTE
    return WhyRow(group.label, shares, limit, _detail(results, group, limit), _remedy(results, group, limit))


def neighbour_share(results: ResultSet, group: RunGroup) -> float:
    """What other programs cost a group: of the cores' time that it could have used, on GPUs 1; 0 below LEAST_TAKEN.

    They cost nothing where they use cores that it leaves idle.
    """
    if _on_gpus(group):
        return float((group.ok_runs.other_gpu_processes > 0).mean() > 0.5)
    taken = (group.ok_runs.other_cpu_pct.fillna(0.0) + group.ok_runs.steal_pct.fillna(0.0)).mean() / 100
    row, num_cores = group.ok_runs.iloc[0], results.environment.get("num_cores") or 0
    wanted = min(1.0, row.world_size * row.threads_per_rank / num_cores) if num_cores else 1.0
    cost = min(taken, wanted + taken - 1)
    return float(cost) if cost >= LEAST_TAKEN else 0.0


def kept_with_loading(results: ResultSet, strategy: str) -> RatioEstimate | None:
    """The speed with loading over that on synthetic images, where ./bench study loaders measured it for this set."""
    for path in (results.path / "sweep.csv", results.path / "loaders" / "sweep.csv"):
        rows = pandas.read_csv(path) if path.exists() else pandas.DataFrame()
        if {"key", "to", "point", "ratio_high"} <= {*rows}:
            rows = rows[(rows.strategy == strategy) & (rows.key == "loader") & (rows.to == "synthetic")]
            for row in rows[(rows.point != "synthetic") & rows.ratio_high.notna()].to_dict("records"):
                return RatioEstimate(row["ratio"], row["ratio_low"], row["ratio_high"], int(row["num_runs"]))
    return None


def _detail(results: ResultSet, group: RunGroup, limit: str) -> str:
    if limit == BUBBLE:
        theory = (
            f"{100 * (ideal_bubble(group) or 0):.0f} % in theory, of {group.settings.get('num_stages')} stages and "
        )
        num_parts = group.settings.get("num_microbatches")
        theory += f"{num_parts} micro-batch{'es' * (num_parts != 1)}"
        bubbles = pipeline_bubbles(group, results.table("steps"))
        waited = max((bubble.waited.value for bubble in bubbles), default=None)
        return theory if waited is None else f"up to {100 * waited:.0f} % of a rank's time, {theory}"
    if limit == THE_LOADER and (kept := kept_with_loading(results, group.strategy)):
        return f"with loading {kept.text()} x its speed on synthetic images"
    use = device_use(group, results.environment)
    return f"MFU {100 * use.mfu:.0f} %" if use and use.mfu and limit == COMPUTE else ""


def _remedy(results: ResultSet, group: RunGroup, limit: str) -> str:
    """The one command to try next."""
    settings, row = group.settings, group.ok_runs.iloc[0]
    if limit == COMMUNICATION_LIMIT:
        return _less_communication(results, group)
    if limit == THE_LOADER and settings.get("loader") == "folder":
        data = _words("--data", group.identity.requested.get("data"), FIELDS["data"].default)
        return f"{shlex.join(['./bench', 'data', 'pack', *data])} && {_run(group, '--loader', 'packed')}"
    if limit == THE_LOADER:
        return _run(group, "--workers", 2 * max(1, int(settings.get("workers") or 0)))
    if limit == BUBBLE:
        num_parts = 2 * int(settings.get("num_microbatches") or 1)
        if group.strategy == "pipeline_parallel":
            return _run(group, "--microbatches", num_parts)
        return _run(group, "--split-size", max(1, int(row.global_batch) // max(4, num_parts)))
    if limit == COPIES:
        return _run(group, "--prefetch", 2)
    if limit == COMPUTE_AND_COMMUNICATION and group.strategy != "dataparallel":
        return _with_options(group, ["./bench", "study", "profile", "--strategy", group.strategy])
    return _faster_arithmetic(results, group)


def _less_communication(results: ResultSet, group: RunGroup) -> str:
    if group.strategy == "horovod_ddp" and group.settings.get("compression") == "none":
        return _run(group, "--compression", "fp16")
    if group.strategy == "local_sgd":
        return _run(group, "--local-period", 2 * int(group.settings.get("local_period") or 4))
    compressed = [each for each in results.timed_groups if each.strategy == "ddp_compressed"]
    helps = not compressed or any(
        (ratio := results.ratio(each, group)) and ratio.verdict in ("faster", "too few rounds") for each in compressed
    )
    if group.strategy in DDP and group.strategy != "ddp_compressed" and helps:
        return _run(group, with_strategy="ddp_compressed")
    return _larger_batch(group)


def _faster_arithmetic(results: ResultSet, group: RunGroup) -> str:
    row = group.ok_runs.iloc[0]
    if group.strategy == "dataparallel" or (group.strategy == BASELINE and not _on_gpus(group)):
        return _run(group, with_strategy="ddp")
    # a CPU that only emulates bf16 has no timed run in it
    has_bf16 = _on_gpus(group) or any((each.ok_runs.precision == "bf16").any() for each in results.timed_groups)
    if row.precision in ("fp32", "tf32") and has_bf16:
        return _run(group, with_strategy="ddp_amp") if group.family == "ddp" else _run(group, "--precision", "bf16")
    if row.memory_format == "contiguous":
        return _run(group, "--memory-format", "channels_last")
    compiled = group.settings.get("compile") or group.strategy == "ddp_compile"
    return _larger_batch(group) if compiled else _run(group, "--compile")


def _larger_batch(group: RunGroup) -> str:
    return _run(group, "--global-batch", 2 * int(group.ok_runs.global_batch.iloc[0]))


def _on_gpus(group: RunGroup) -> bool:
    return bool((group.ok_runs.device == "cuda").any())


def _run(group: RunGroup, *flags: object, with_strategy: str = "") -> str:
    """The command that runs the group again with these flags, or beside another strategy."""
    return _with_options(group, ["./bench", "run", *filter(None, [group.strategy, with_strategy])], flags)


def _with_options(group: RunGroup, words: list[str], flags: Sequence[object] = ()) -> str:
    """A command with the configuration, images and flags of the group's runs, and these flags, which win."""
    row = group.ok_runs.iloc[0]
    config = _words("--config", row.config, DEFAULT_CONFIGS[_on_gpus(group)])
    data = _words("--data", group.identity.requested.get("data"), FIELDS["data"].default)
    own = re.sub(r"--label \S+", "", str(row.options or ""))
    if flags:
        own = re.sub(rf"{flags[0]}[ =]\S+", "", own)
    own_words = [*own.split(), *map(str, flags)]
    return shlex.join([*words, *config, *data, *(["--", *own_words] if own_words else [])])


def _words(option: str, value: object, default: object) -> list[str]:
    return [option, str(value)] if value and value != default else []
