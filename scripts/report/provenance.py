"""Where a result set is from: commands that make it again, facts of the machine.

Needs no torch.
"""

import contextlib
import shlex

from scripts.results.device_use import device_use
from scripts.results.formatting import format_setting, printable
from scripts.results.recorded_settings import identities_by_hash
from scripts.results.result_set import ResultSet
from scripts.results.safe_names import file_inside
from scripts.shared.commands import shell_word


def reproduction_commands(results: ResultSet) -> list[str]:
    """What makes a set like this one again, on a machine like this one."""
    lines = [f"git checkout {shell_word(commit)}" for commit in sorted({*results.ok_runs.commit} - {""})]
    command = str(results.environment.get("command") or "")
    return [*lines, *([printable(command)] if command else []), "./bench report"]


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
