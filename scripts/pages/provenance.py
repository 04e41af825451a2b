"""Where a result set is from: commands that make it again, facts of the machine.

Needs no torch.
"""

import contextlib
import dataclasses
import shlex

from scripts.options.run_options import RoundOptions
from scripts.pages.study_sections import StudyCommand, load_sections
from scripts.runner.environment import RECORDED_VARIABLES
from scripts.sets.device_use import device_use
from scripts.sets.recorded_settings import identities_by_hash
from scripts.sets.result_set import ResultSet
from scripts.sets.safe_names import file_inside
from scripts.shared.commands import make_assignment, shell_word
from scripts.shared.options_as_typed import VARIABLE_OF_OPTION
from scripts.stats.formatting import format_setting, printable
from scripts.strategies.external import STRATEGY_SOURCE

OF_ONE_MACHINE = ("NUM_GPUS", "NODE_RANK", "RDZV_ENDPOINT", "ALLOCATION", "CUDA_VISIBLE_DEVICES")
"""Variables that another machine sets by itself."""


def reproduction_commands(results: ResultSet) -> list[str]:
    """What makes a set like this one again, on a machine like this one."""
    variables = results.environment.get("variables", {})
    names = [name for name in RECORDED_VARIABLES if name not in OF_ONE_MACHINE and variables.get(name)]
    make_variables = {name: str(variables[name]) for name in names}
    repeats = results.ok_runs.repeat.max()
    if repeats > 0:
        make_variables["REPEATS"] = f"{repeats:.0f}"
    lines = [f"git checkout {shell_word(commit)}" for commit in sorted({*results.ok_runs.commit} - {""})]
    strategies = dict.fromkeys(group.strategy for group in results.timed_groups)
    studies = [command for section in load_sections() for command in section.commands(results)]
    for study in studies:
        kept = {name: value for name, value in make_variables.items() if name not in study.replaced}
        lines.append(_study_line(study, kept))
    external = {group.strategy for group in results.timed_groups if STRATEGY_SOURCE in group.identity.requested}
    if external:
        lines.append("# strategies of another repository are left out: ./bench run finds them with --strategy-dir")
    rest = [name for name in strategies if name not in {study.strategy for study in studies} | external]
    if rest:
        target = "slurm-all" if variables.get("ALLOCATION") else "bench-all"  # launchers/slurm_all.sh
        lines.append(_command(target, make_variables, STRATEGIES=" ".join(rest)))
    left_out = []
    if any(group.is_aa_copy for group in results.timed_groups):
        left_out.append("the A/A runs (./bench run --aa)")
    if (results.path / "sweeps/runs.csv").exists():
        left_out.append("the sweeps (./bench study sweep)")
    if left_out:
        lines.append(f"# these lines leave out {' and '.join(left_out)}")
    return [*lines, "make report"]


def _command(target: str, make_variables: dict[str, str], **variables: str) -> str:
    words = {name: make_assignment(name, value) for name, value in (variables | make_variables).items()}
    left_out = [name for name, word in words.items() if not word]
    line = " ".join([f"make {target}", *filter(None, words.values())])
    return line + (f"  # without {', '.join(left_out)}, which make cannot carry" if left_out else "")


def _study_line(study: StudyCommand, kept: dict[str, str]) -> str:
    """A call of ./bench for bash. kept: variables of the set; those that are no option stand before the command."""
    fields = {field.name for field in dataclasses.fields(RoundOptions)}
    options = {VARIABLE_OF_OPTION[name]: f"--{name.replace('_', '-')}" for name in fields}
    before = [f"{name}={shell_word(text)}" for name, text in kept.items() if name not in options and name != "ARGS"]
    words = [*study.words.split(), "--strategy", study.strategy]
    for option, values in study.options.items():
        words += [option, *values]
    for name, text in kept.items():
        if name in options:
            words += [options[name], text]
    flags = command_words(kept.get("ARGS", ""))
    if flags:
        words += ["--", *flags]
    return " ".join([*before, "./bench", *map(shell_word, words)])


def launch_lines(results: ResultSet) -> list[str]:
    """The command that started each strategy's first ok run, below its label, as comments for bash."""
    found: list[str] = []
    for group in results.groups:
        for log_path in group.ok_runs.log_path.head(1):
            if path := file_inside(results.path, log_path):
                with path.open(errors="replace") as log:
                    words = command_words(log.readline())
                found += [printable(f"# {shlex.quote(group.label)}:"), "#   " + printable(shlex.join(words))]
    return found


def command_words(line: str) -> list[str]:
    """The words of a command, such as the first line of a run's log. Of a word with several lines it has the first."""
    line = line.removeprefix("$ ")
    for text in (line, f"{line.rstrip()}'"):
        with contextlib.suppress(ValueError):  # a quote without its end
            return shlex.split(text)
    return line.split()


def environment_facts(results: ResultSet) -> list[tuple[str, str]]:
    """The environment as pairs of text for a table; the long text of collect_env is not among them."""

    def values(column: str) -> str:
        texts = dict.fromkeys(map(format_setting, results.ok_runs[column]))
        return ", ".join(text for text in texts if text != "unknown")

    environment = results.environment
    packages = environment.get("packages", {})
    names = (
        "device_name", "world_size", "nodes", "backend", "threads_per_rank", "governor", "precision", "memory_format",
        "torch", "commit", "dirty", "config", "options",
    )  # fmt: skip
    pairs = [(name, values(name)) for name in names]
    settings = identities_by_hash(results.table("settings"))
    changes = {format_setting(identity.resolved.get("local_changes")) for identity in settings.values()} - {"unknown"}
    pairs += [("local changes", ", ".join(sorted(changes)))]
    pairs += [
        (name, format_setting(environment.get(name, ""))) for name in ("platform", "python", "num_cores", "memory_gb")
    ]
    pairs += [("packages", ", ".join(f"{name} {version}" for name, version in packages.items() if version))]
    uses = [use.peak_from for group in results.groups if (use := device_use(group, environment))]
    pairs += [("peak for MFU", "; ".join(dict.fromkeys(uses)))]
    return [(name, text) for name, text in pairs if text not in ("", "unknown")]
