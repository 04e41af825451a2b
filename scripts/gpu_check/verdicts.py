"""The verdict on a check that has ended, from the exit code, the rows that it left, and what it printed."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

from benchmarks.common.rows import read_table
from scripts.stats.formatting import device_count, format_number, plural
from scripts.strategies.strategy_list import BASELINE

# What a run, or CUDA, says of a GPU that is gone: after it, nothing on it can pass.
LOST = re.compile(
    r"gpu is lost|fallen off the bus|no cuda-capable device|uncorrectable ecc|device not ready|unspecified launch fail"
    r"|driver shutting down|unable to determine the device handle|\bXid\b|ran on the CPU in place of the GPU",
    re.IGNORECASE,
)
IDLE_MIB = 1024  # of a GPU's memory: more than its driver takes for itself
RAISED = re.compile(r"^(?:error: .*|(?:\w+\.)*\w*(?:Error|Exception)\b.*|invalid: .*)", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Ended:
    """run_id: of the run that it was, '' where it was none."""

    code: int
    log: Path
    """What it printed."""
    results: Path
    """The set of its rows."""
    run_id: str = ""
    precision: str = ""
    """The requested precision; '' where none was requested."""
    on_gpu: bool = False
    num_left: int = 0
    """Processes of the run that outlived its command."""

    def row(self) -> dict:
        """The run's row of runs.csv, {} where it left none."""
        rows = read_table(self.results, "runs")
        return next(iter(rows[rows.run_id == self.run_id].to_dict("records")), {})

    def text(self) -> str:
        return self.log.read_bytes().decode(errors="replace") if self.log.exists() else ""

    def last_words(self) -> str:
        text = self.text()
        lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it printed nothing"]
        found = RAISED.search(text)
        return f"exit code {self.code}: {(found.group() if found else lines[-1])[:300]}"


@dataclasses.dataclass(frozen=True)
class Verdict:
    status: str
    """passed, failed, skipped, or left: one GPU does not try all of the claim."""
    words: str
    """What was found, or why not."""


FindVerdict = Callable[[Ended], Verdict]
"""Finds the verdict on a check."""


def run_ok(ended: Ended) -> Verdict:
    """A run is ok, on the device that it is about, in the requested precision."""
    row = ended.row()
    if not row:
        return Verdict("failed", f"left no row; {ended.last_words()}")
    if row["status"] != "ok":
        return Verdict("skipped" if row["status"] == "skipped" else "failed", row["reason"])
    if ended.on_gpu and row["device"] != "cuda":
        return Verdict("failed", "ran on the CPU in place of the GPU")
    if ended.precision not in ("", row["precision"]):
        return Verdict("failed", f"{ended.precision} was requested, and it ran in {row['precision']}")
    found = device_count(row["world_size"], row["device"])
    return Verdict("passed", f"{found}, {row['device_name'] or row['device']}")


def run_timed(ended: Ended) -> Verdict:
    """As `run_ok`, and with a throughput; others on the GPU are named."""
    found, row = run_ok(ended), ended.row()
    if found.status != "passed":
        return found
    if not row["images_per_s"] > 0:
        return Verdict("failed", "no window was timed")
    crowd = row["other_gpu_processes"]
    others = f"; {crowd:.0f} processes of others used the GPU meanwhile, so that it may be slow" if crowd > 0 else ""
    return Verdict("passed", f"{format_number(row['images_per_s'])} images/s; {found.words}{others}")


def graphs_replayed(ended: Ended) -> Verdict:
    """As `run_ok`, with CUDA graphs: torch only warns where it replays none."""
    found, skips = run_ok(ended), ended.row().get("cudagraph_skips")
    if found.status == "passed" and skips != 0:
        return Verdict("failed", f"not all was replayed as CUDA graphs (cudagraph_skips: {skips:g}); its log says why")
    return found


def energy_measured(ended: Ended) -> Verdict:
    """As `run_timed`, with joules per image, where a counter can be read."""
    found, row = run_timed(ended), ended.row()
    if found.status != "passed":
        return found
    if row["energy_j_per_image"] > 0:
        return Verdict("passed", f"{format_number(row['energy_j_per_image'])} J an image; {found.words}")
    if ended.on_gpu and " MIG " in f"{row['device_name']} ":
        return Verdict(
            "skipped", "a slice of a GPU (MIG) has no power of its own: NVML reports that of all slices together"
        )
    if ended.on_gpu:
        return Verdict("failed", "no energy: NVML did not tell the GPU's power in the timed windows")
    return Verdict("skipped", "no energy counter can be read here: RAPL is missing, or for root only")


def fails_with(status: str, pattern: str) -> FindVerdict:
    """A planted fault passes where its row has this status and reason, and no process is left."""

    def find_verdict(ended: Ended) -> Verdict:
        row = ended.row()
        if not row:
            return Verdict("failed", f"left no row; {ended.last_words()}")
        became = f"{row['status']}: {row['reason']}"
        if ended.num_left:
            return Verdict("failed", f"{ended.num_left} of its processes outlived its launcher; its row says {became}")
        if row["status"] == status and re.search(pattern, row["reason"], re.IGNORECASE):
            return Verdict("passed", f"its row says {became}")
        return Verdict("failed", f"a row of status {status} that says {pattern} was expected; it says {became}")

    return find_verdict


def run_resumed(ended: Ended) -> Verdict:
    """A run that says that it went on where another stopped."""
    found = run_ok(ended)
    log = ended.results / "logs" / ended.run_id / "run.log"
    said = re.search(r"^resumed at .*", log.read_text(errors="replace"), re.MULTILINE) if log.exists() else None
    if found.status != "passed":
        return found
    return Verdict("passed", said.group()) if said else Verdict("failed", "it began anew instead of going on")


def equivalence_proved(ended: Ended) -> Verdict:
    """The last row of the set's equivalence.csv."""
    rows = read_table(ended.results, "equivalence")
    if rows.empty:
        return Verdict("failed", ended.last_words())
    row = rows.iloc[-1]
    if row.verdict != "ok":
        unknown = {"skipped": row.reason, "not proved": f"not proved: {row.reason}"}  # neither right nor wrong
        return Verdict("skipped" if row.verdict in unknown else "failed", unknown.get(row.verdict, row.reason))
    bits = "bit-identical" if row.bit_identical == "yes" else f"{row.max_relative_difference:.1e} apart"
    runs = read_table(ended.results / "verify", "runs")
    divided = "yes" in set(runs[runs.run_id == row.run_id].parallel)
    if not divided and row.strategy != BASELINE:
        return Verdict("left", f"{bits} after {row.steps:.0f} steps on one device: no communication was tested")
    return Verdict("passed", f"{bits} after {row.steps:.0f} steps on {plural(int(row.world_size), 'device')}")


def printed(pattern: str) -> FindVerdict:
    """Exit code 0, and a line that reads like this, which is what it found."""

    def find_verdict(ended: Ended) -> Verdict:
        found = re.findall(pattern, ended.text(), re.MULTILINE)
        if ended.code or not found:
            return Verdict("failed", ended.last_words())
        return Verdict("passed", " ".join(found[-1].split()))

    return find_verdict


def loader_timed(ended: Ended) -> Verdict:
    """The loader's verdict; skipped where its windows differ too much."""
    found = printed(r"^(?:the loader is|loading costs|no verdict).*")(ended)
    return Verdict("skipped", found.words) if found.words.startswith("no verdict") else found


def dataset_made(ended: Ended) -> Verdict:
    """Where it cannot be made, that is no fault of the GPU's."""
    lines = ended.text().splitlines() or ["it printed nothing"]
    return Verdict("skipped" if ended.code else "passed", lines[-1][:300])


def library_built(ended: Ended) -> Verdict:
    """The script says what was wrong before what to do."""
    lines = [line for line in ended.text().splitlines() if line.strip()] or ["it printed nothing"]
    return Verdict("skipped" if ended.code else "passed", lines[-2 if ended.code and len(lines) > 1 else -1][:300])


def environment_described(ended: Ended) -> Verdict:
    """environment.json of the set: what its numbers depend on."""
    path = ended.results / "environment.json"
    if ended.code or not path.exists():
        return Verdict("failed", ended.last_words())
    found = json.loads(path.read_text())
    peak = found["measured_peak"]
    fastest = ", ".join(f"{kind} {tflops:.3g}" for kind, tflops in peak["tflops"].items())
    words = f"{peak['device_name']}; torch {found['packages']['torch']}, Python {found['python']}"
    return Verdict("passed", f"{words}, {found['num_cores']} cores; TFLOP/s of products measured: {fastest}")


def gpu_unused(ended: Ended) -> Verdict:
    """No process computes on the GPU, and no memory is taken: in a container nvidia-smi lists none of those outside."""
    others = re.findall(r"^\d+,.*", ended.text(), re.MULTILINE)
    used = max(map(int, re.findall(r"^(\d+) MiB$", ended.text(), re.MULTILINE)), default=None)
    if ended.code or used is None:
        return Verdict("skipped", f"nvidia-smi does not tell who else uses the GPU: {ended.last_words()}")
    if others:
        return Verdict("failed", f"{len(others)} others compute on it, so that no time is to be believed: {others[0]}")
    if used > IDLE_MIB:
        return Verdict("failed", f"{used} MiB of its memory are taken, by nobody that can be seen from here")
    return Verdict("passed", f"nobody else; {used} MiB of its memory are taken")
