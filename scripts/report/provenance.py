"""Where a result set is from: the command that makes it again, and facts of the machine. Needs no torch."""

from scripts.results.device_use import device_use
from scripts.results.formatting import format_setting, printable
from scripts.results.result_set import ResultSet
from scripts.shared.commands import shell_word

OF_RUNS = (
    "device_name", "world_size", "nodes", "backend", "threads_per_rank", "governor", "precision", "memory_format",
    "torch", "commit", "dirty", "config", "options",
)  # fmt: skip
OF_MACHINE = ("platform", "python", "num_cores", "memory_gb")


def reproduction_commands(results: ResultSet) -> list[str]:
    """What makes a set like this one again, on a machine like this one."""
    checkouts = [f"git checkout {shell_word(commit)}" for commit in recorded(results, "commit")]
    command = printable(str(results.environment.get("command") or ""))
    return [*checkouts, command or "# this set does not record the command that started its runs", "./bench report"]


def recorded(results: ResultSet, column: str) -> list[str]:
    """What its ok runs have in a column of runs.csv, each once."""
    return [text for text in dict.fromkeys(map(format_setting, results.ok_runs[column])) if text != "unknown"]


def environment_facts(results: ResultSet) -> dict[str, str]:
    """The environment as text, by name; the long text of collect_env is not among it."""
    environment = results.environment
    facts = {name: ", ".join(recorded(results, name)) for name in OF_RUNS}
    facts |= {name: format_setting(environment.get(name, "")) for name in OF_MACHINE}
    packages = environment.get("packages", {})
    facts["packages"] = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    uses = [use.peak_from for group in results.groups if (use := device_use(group, environment))]
    facts["peak for MFU"] = "; ".join(dict.fromkeys(uses))
    return {name: text for name, text in facts.items() if text not in ("", "unknown")}
