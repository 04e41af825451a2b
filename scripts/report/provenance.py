"""Where a result set is from: the command that makes it again, and facts of the machine."""

from scripts.results.device_use import device_use
from scripts.results.formatting import format_setting
from scripts.results.result_set import ResultSet
from scripts.shared.commands import shell_word

OF_RUNS = (
    "device_name", "world_size", "nodes", "backend", "threads_per_rank", "governor", "precision", "memory_format",
    "torch", "commit", "dirty", "config", "options",
)  # fmt: skip
OF_MACHINE = ("platform", "python", "num_cores", "memory_gb")


def reproduction_commands(results: ResultSet) -> list[str]:
    checkouts = [f"git checkout {shell_word(commit)}" for commit in recorded(results, "commit")]
    command = str(results.environment.get("command") or "# started by hand")
    return [*checkouts, command, "./bench report"]


def recorded(results: ResultSet, column: str) -> list[str]:
    """In a column of runs.csv, of its ok runs, each once."""
    return [text for text in dict.fromkeys(map(format_setting, results.ok_runs[column])) if text != "unknown"]


def environment_facts(results: ResultSet) -> dict[str, str]:
    """By name, without the long text of collect_env."""
    environment = results.environment
    facts = {name: ", ".join(recorded(results, name)) for name in OF_RUNS}
    facts |= {name: format_setting(environment.get(name, "")) for name in OF_MACHINE}
    packages = environment.get("packages", {})
    facts["packages"] = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    uses = [use.peak_from for group in results.groups if (use := device_use(group, environment))]
    facts["peak for MFU"] = "; ".join(dict.fromkeys(uses))
    return {name: text for name, text in facts.items() if text not in ("", "unknown")}
