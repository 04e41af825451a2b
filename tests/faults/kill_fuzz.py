"""Kills a random process of a suite, sweep, pack or report at a random moment, and checks what is left.

    ./bench kill-fuzz --kills 60 --seed 1

Within 10 s after each signal (30 s on a busy machine), all processes that it should end have ended. When the suite, or
the next one in the same set, has ended: every started run has one row, no row says ok of a run that was
killed before it was done, every CSV file is whole, and nothing is left in the folder for temporary files. The last
suite of a set finishes what is missing. Writes results/measured/kill_fuzz.csv. Exit code: 1 where something was wrong.
"""

import argparse
import contextlib
import csv
import dataclasses
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas
import psutil
from fault_runs import patience, processes_of
from support import ROOT, bench_words, draw_images, environment, hear_sigint

from benchmarks.common.config import Config
from benchmarks.common.packed import PackedSource, pack_path
from benchmarks.common.rows import read_table
from scripts.shared.forward_signals import end_on_signals

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
GONE_S = 10.0
ALIVE_LIMIT_S = 90.0
SUITE_LIMIT_S = 1500.0  # of a suite that hangs: beside seven other programs one run can take 100 s
KILLS_A_SET = 6
CACHES = ("torchinductor_",)  # of torch, one a user
WINDOWS = 2
TINY = f"""
arch: resnet18
image_size: 32
global_batch: 4
steps: 40
warmup_steps: 1
windows: {WINDOWS}
window_steps: 4
limit_s: 1500
"""
SYNTHETIC, FOLDER = "loader: synthetic\nworkers: 0\n", "loader: folder\nworkers: 1\n"
# Which processes there are, by what is in their command line, the first that fits.
KINDS = (
    ("loop", "bench run"),
    ("loop", "bench study"),
    ("record", "scripts.runner.record"),
    ("torchrun", "torch.distributed.run"),
    ("plot", "scripts.charts."),
    ("plot", "scripts.report."),
    ("pack", "scripts.data.pack"),
    ("rank", "benchmarks."),
    ("launcher", "launchers/"),
)
VICTIMS = {
    "suite": (
        "loop",
        "record",
        "record",
        "torchrun",
        "rank",
        "rank",
        "loader worker",
        "plot",
        "launcher",
        "any",
        "group",
    ),
    "sweep": ("loop", "record", "torchrun", "rank", "plot", "group"),
    "pack": ("pack",),
    "report": ("plot",),
}
WHOLE = ("loop", "group")  # whose end ends everything
ROW_SAYS_OK = "its row says ok"
SHARES = {"suite": 0.68, "sweep": 0.16, "pack": 0.1, "report": 0.06}


@dataclasses.dataclass
class Kill:
    """One signal, and what became of it."""

    number: int
    kind: str
    victim: str
    signal: str
    moment_s: float
    """After the start of what was running."""
    run_id: str = ""
    finished: bool = False
    """Whether the run had its summary when the signal was sent."""
    gone_s: float | None = None
    status: str = ""
    """Of the run's row."""
    faults: list[str] = dataclasses.field(default_factory=list)

    def line(self) -> str:
        gone = "" if self.gone_s is None else f"gone in {self.gone_s:.1f} s"
        what = f"{self.kind}: {self.signal} to {self.victim} {self.moment_s:.1f} s after the start"
        reported = ", ".join(filter(None, [f"{self.run_id} {self.status}".strip(), gone]))
        return f"{self.number:3} {what}; {reported}; {'; '.join(self.faults) or 'ok'}"


class Set:
    """One result set, the suites that run in it, and the kills of these."""

    def __init__(self, kind: str, base: Path, rng: random.Random):
        self.kind, self.base, self.rng = kind, base, rng
        self.results, self.output = base / "a set", base / "output"
        self.temporary = base / "temporary"
        self.temporary.mkdir(parents=True)
        self.config = base / "tiny.yaml"
        self.loader = rng.choice((SYNTHETIC, FOLDER))
        self.config.write_text(f"{TINY}timeout_s: {patience(20)}\n{self.loader}")
        self.repeats = 0
        self.process: subprocess.Popen | None = None
        self.started_at = 0.0
        self.kills: list[Kill] = []

    def start(self, data: Path, one_more_round: bool = False) -> None:
        """The next suite: what the one before has left, and a round more where that came to its end, or if asked.

        A run that failed is not run again. So only a new round shows that the next suite works.
        """
        self.repeats += one_more_round or self.process is None or self.process.returncode in (0, 1)
        asked = {"RESULTS": self.results, "CONFIG": self.config, "DATA": data, "REPEATS": self.repeats}
        asked |= {"TMPDIR": self.temporary, "NPROC": 2}
        if self.kind == "sweep":
            command, asked = "study sweep", asked | {"STRATEGY": "ddp", "KEY": "bucket_cap_mb", "VALUES": "1 25"}
        else:
            command, asked = "run", asked | {"STRATEGIES": "ddp single"}
        words, rest = bench_words(command, **asked)
        self.process = launch([sys.executable, ROOT / "bench", *words], rest | {"SETUP": "no"}, self.output)
        self.started_at = time.monotonic()

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait(self) -> int:
        """Let the suite end. Returns its exit code; where it did not end in time, a code that no suite has."""
        assert self.process
        try:
            return self.process.wait(SUITE_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            return 999

    def kill(self, number: int, victim: str) -> Kill | None:
        """Send a random signal to a process of that kind once there is one; None where none came."""
        assert self.process
        signum, patience_s = self.rng.choice(SIGNALS), self.rng.uniform(0, 4)
        kind = self.rng.choice(("record", "rank", "torchrun", "plot", "loop")) if victim == "group" else victim
        until(lambda: self.processes(kind) or not self.alive(), ALIVE_LIMIT_S)
        time.sleep(patience_s)
        there = self.processes(kind) or self.processes("any")
        if not there or not self.alive():
            return None
        process = self.rng.choice(sorted(there, key=lambda each: each.pid))
        with contextlib.suppress(psutil.Error):
            folder = run_folder_of(process)
            what = "group" if victim == "group" else kind_of(process)
            finished = bool(folder) and (folder / "summary.json").exists()
            moment_s = time.monotonic() - self.started_at
            before = self.processes("any")
            if victim == "group":
                os.killpg(self.process.pid, signum)
            else:
                process.send_signal(signum)
            made = Kill(number, self.kind, what, signum.name, moment_s, folder.name if folder else "", finished)
            self.kills.append(made)
            self.watch(made, process, folder, before)
            return made
        return None

    def watch(self, kill: Kill, process: psutil.Process, folder: Path | None, before: list[psutil.Process]) -> None:
        """Note how long what was to end was alive."""
        began, limit_s = time.monotonic(), GONE_S
        limit_s *= 3 if os.getloadavg()[0] > len(os.sched_getaffinity(0)) else 1
        if kill.victim in WHOLE:
            left = lambda: processes_of(self.base)  # noqa: E731
        elif folder and (kill.signal == "SIGKILL" or kill.victim in ("record", "torchrun")):
            left = lambda: [each for each in before if lives(each) and run_folder_of(each) == folder]  # noqa: E731
        else:
            return  # a process may finish what it does before it heeds such a signal; the rows tell
        if until(lambda: not left(), limit_s):
            kill.gone_s = time.monotonic() - began
        else:
            names = Counter(kind_of(each) for each in left())
            kill.faults.append(f"alive after {limit_s:g} s: {', '.join(f'{n} {name}' for name, n in names.items())}")

    def processes(self, kind: str) -> list[psutil.Process]:
        """The set's living processes of a kind."""
        found = processes_of(self.base)
        return found if kind == "any" else [each for each in found if kind_of(each) == kind]

    def judge(self, last: bool) -> list[str]:
        """What is wrong with the set now that nothing runs. last: after a suite that nobody disturbed."""
        faults = []
        if left := processes_of(self.base):
            faults.append(f"{len(left)} processes are left: {sorted({kind_of(each) for each in left})}")
            for each in left:
                with contextlib.suppress(psutil.Error):
                    each.kill()
        faults += [f"{path.name}: {fault}" for path in self.results.glob("*.csv") for fault in faults_of_csv(path)]
        # A killed suite cannot remove the rendezvous folders of its runs; the next suite does.
        kept = CACHES if last else (*CACHES, "ranks.")
        if litter := [path.name for path in self.temporary.iterdir() if not path.name.startswith(kept)]:
            faults.append(f"left in TMPDIR: {', '.join(sorted(litter)[:3])}")
            for path in self.temporary.iterdir():
                if not path.name.startswith(kept):
                    subprocess.run(["rm", "-rf", path], check=True)
        runs = read_table(self.results, "runs")
        rows = Counter(runs.run_id)
        for kill in self.kills:
            own = runs[runs.run_id == kill.run_id]
            kill.status = "/".join(own.status)
            ended_it = kill.signal in ("SIGKILL", "SIGQUIT") and kill.victim in (
                "record",
                "torchrun",
                "rank",
                "group",
            )
            if (own.status == "ok").any() and ended_it and not kill.finished and ROW_SAYS_OK not in kill.faults:
                kill.faults.append(ROW_SAYS_OK)
        folders = [path.name for path in (self.results / "logs").iterdir()] if (self.results / "logs").exists() else []
        if last:
            # a run whose loop and record were killed has a folder and no row, and is run again
            again = {(name.rsplit("-", 1)[0]) for name in rows}
            faults += [f"{name} is lost" for name in folders if not rows[name] and name.rsplit("-", 1)[0] not in again]
            if litter := [path.name for path in self.results.glob(".*.csv.*")]:
                faults.append(f"left in the set: {', '.join(litter[:3])}")
        faults += [f"{name} has {number} rows" for name, number in rows.items() if number > 1]
        windows = Counter(read_table(self.results, "windows").run_id)
        ok = runs[(runs.status == "ok") & (runs.repeat > 0)]
        return faults + [
            f"{name} is ok and has {windows[name]} windows" for name in ok.run_id if windows[name] != WINDOWS
        ]


def launch(command: list, asked: dict, output: Path) -> subprocess.Popen:
    with open(output, "ab") as file:
        return subprocess.Popen(
            [str(word) for word in command],
            cwd=ROOT,
            env=environment(**asked),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            preexec_fn=hear_sigint,
        )


def until(condition: Callable[[], object], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def kind_of(process: psutil.Process) -> str:
    """A rank's child of the same words is a loader worker."""
    with contextlib.suppress(psutil.Error):
        words = " ".join(process.cmdline())
        kind = next((kind for kind, part in KINDS if part in words), process.name())
        if kind == "rank" and process.parent() and process.parent().cmdline() == process.cmdline():
            return "loader worker"
        return kind
    return "gone"


def run_folder_of(process: psutil.Process) -> Path | None:
    """By RUN_DIR in its environment, or the record's own flag."""
    with contextlib.suppress(psutil.Error):
        reported, words = process.environ(), process.cmdline()
        if "--run" in words:
            return Path(words[words.index("--run") + 1]).parent
        if reported.get("RUN_DIR"):
            return Path(reported["RUN_DIR"])
    return None


def faults_of_csv(path: Path) -> Iterator[str]:
    """Whether the file is whole: its last line, and as many cells in each row as in the header."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if text and not text.endswith("\n"):
        yield "the last line is cut off"
    rows = [*csv.reader(text.splitlines())]
    wrong = [number for number, row in enumerate(rows, 1) if len(row) != len(rows[0])]
    if wrong:
        yield f"line {wrong[0]} has other cells than the header"


# ---- what is played ------------------------------------------------------------------------------------------------


def play_set(kind: str, num_kills: int, first: int, base: Path, data: Path, rng: random.Random) -> list[Kill]:
    """Kill processes in one set, at most `num_kills` times; then run a suite undisturbed. Returns the kills."""
    played = Set(kind, base, rng)
    missed = 0
    while len(played.kills) < num_kills and missed < 2 * num_kills:
        if not played.alive():
            if played.process:
                note(played, played.judge(last=False))
            played.start(data)
        missed += played.kill(first + len(played.kills), rng.choice(VICTIMS[kind])) is None
    if played.alive() and played.wait() == 999:
        note(played, [f"the suite did not end in {SUITE_LIMIT_S:g} s"])
    note(played, played.judge(last=False))
    played.start(data, one_more_round=True)
    code = played.wait()
    faults = played.judge(last=True)
    runs = read_table(played.results, "runs")
    done = runs[(runs.status == "ok") & (runs.repeat == played.repeats)]
    if code or done.empty:
        reported = played.output.read_text(errors="replace").strip().splitlines()[-1:]
        faults.append(
            f"the next suite ended with {code} and {len(done)} ok runs in its last round ({''.join(reported)[:150]})"
        )
    note(played, faults)
    for kill in played.kills:
        print(kill.line(), flush=True)
    return played.kills


def note(played: Set, faults: list[str]) -> None:
    """Book what is wrong with a set on the last kill, once."""
    if played.kills:
        known = {fault for kill in played.kills for fault in kill.faults}
        played.kills[-1].faults += [fault for fault in faults if fault not in known]


def play_pack(number: int, base: Path, data: Path, rng: random.Random) -> Kill:
    """A pack that is killed leaves nothing that is taken for a whole one, and the next one makes it."""
    base.mkdir()
    asked, command = {"PACKED": base / "packed", "TMPDIR": base}, [sys.executable, "-m", "scripts.data.pack"]
    command += ["--data", data, "--pack", rng.choice(("full", "jpeg256"))]
    kill = play_one("pack", number, command, asked, base, rng, within_s=5)
    path = pack_path(Config(pack=command[-1]), "train")
    path = base / "packed" / path.parent.name / path.name
    if launch(command, asked, base / "output").wait(SUITE_LIMIT_S):
        kill.faults.append("the next pack failed")
    else:
        with contextlib.closing(open(path, "rb")):
            pack = PackedSource(path)
        if damaged := [n for n in range(len(pack)) if zlib.crc32(pack.stored(n).data) != pack.checksums[n]]:
            kill.faults.append(f"images {damaged[:3]} of the pack do not have their checksums")
        if len(pack) != len([*(data / "train").rglob("*.JPEG")]):
            kill.faults.append(f"the pack has {len(pack)} images")
    print(kill.line(), flush=True)
    return kill


def play_report(number: int, base: Path, results: Path, rng: random.Random) -> Kill:
    """Drawing leaves the tables as they are, whenever it is killed."""
    base.mkdir()
    module = rng.choice(("scripts.charts.plot", "scripts.report.page"))
    before = {path: path.read_bytes() for path in results.glob("*.csv")}
    command = [sys.executable, "-m", module, "--results", results]
    kill = play_one("report", number, command, {"TMPDIR": base}, base, rng, within_s=12)
    if any(path.read_bytes() != content for path, content in before.items()):
        kill.faults.append("a table has changed")
    if launch(command, {"TMPDIR": base}, base / "output").wait(SUITE_LIMIT_S):
        kill.faults.append("the next one failed")
    print(kill.line(), flush=True)
    return kill


def play_one(
    kind: str, number: int, command: list, asked: dict, base: Path, rng: random.Random, within_s: float
) -> Kill:
    """Start a command and signal it at a random moment."""
    signum, moment_s = rng.choice(SIGNALS), rng.uniform(0, within_s)
    process = launch(command, asked, base / "output")
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(moment_s)
    kill = Kill(number, kind, kind, signum.name, moment_s, finished=process.poll() is not None)
    if not kill.finished:
        process.send_signal(signum)
    began = time.monotonic()
    if until(lambda: process.poll() is not None and not processes_of(base), 3 * GONE_S):
        kill.gone_s = time.monotonic() - began
    else:
        kill.faults.append("alive after 30 s")
        process.kill()
    return kill


def shares(num_kills: int, kinds: list[str]) -> dict[str, int]:
    """Kills of each kind."""
    total = sum(SHARES[kind] for kind in kinds)
    dealt = {kind: int(num_kills * SHARES[kind] / total) for kind in kinds}
    dealt[kinds[0]] += num_kills - sum(dealt.values())
    return dealt


def play(num_kills: int, kinds: list[str], base: Path, rng: random.Random, kills: list[Kill]) -> None:
    """Adds each kill to `kills` when its set has been judged, so that a signal leaves those before it."""
    data = base / "tiny images"
    for seed, part in enumerate(("train", "val")):
        draw_images(data / part, 160, seed)

    def sets(kind: str, expected: int) -> None:
        for first in range(0, expected, KILLS_A_SET):
            place = base / f"{kind} {first}"
            kills.extend(play_set(kind, min(KILLS_A_SET, expected - first), len(kills) + 1, place, data, rng))

    for kind, expected in shares(num_kills, kinds).items():
        if kind in ("suite", "sweep"):
            sets(kind, expected)
        for _ in range(expected if kind == "pack" else 0):
            kills.append(play_pack(len(kills) + 1, base / f"pack {len(kills)}", data, rng))
        for _ in range(expected if kind == "report" else 0):
            results = next(iter(base.glob("suite */a set")), None) or published_copy(base)
            kills.append(play_report(len(kills) + 1, base / f"report {len(kills)}", results, rng))


def end_all(base: Path) -> None:
    """End what a signal to this program has left of its suites: each is in a session of its own."""
    for process in processes_of(base):
        with contextlib.suppress(psutil.Error):
            process.terminate()
    if not until(lambda: not processes_of(base), ALIVE_LIMIT_S):
        for process in processes_of(base):
            with contextlib.suppress(psutil.Error):
                process.kill()


def published_copy(base: Path) -> Path:
    published = next((ROOT / "results/published").glob("*/SHA256SUMS")).parent
    subprocess.run(["cp", "-r", published, base / "published"], check=True)
    return base / "published"


def save(kills: list[Kill], path: Path) -> None:
    """In the place of the kills before, if there are any."""
    if not kills:
        return
    path.unlink(missing_ok=True)
    names = ("number", "kind", "victim", "signal", "moment_s", "run_id", "status", "gone_s")
    rows = [{name: getattr(kill, name) for name in names} | {"faults": "; ".join(kill.faults)} for kill in kills]
    path.parent.mkdir(parents=True, exist_ok=True)
    pandas.DataFrame(rows).to_csv(path, mode="a", header=not path.exists(), index=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(2**31), help="default: another each time"
    )
    parser.add_argument("--kinds", nargs="*", choices=SHARES, default=list(SHARES))
    parser.add_argument("--save", type=Path, default=ROOT / "results/measured/kill_fuzz.csv")
    options = parser.parse_args()
    end_on_signals()
    print(f"{options.kills} kills, SEED={options.seed}", flush=True)
    began, kills = time.monotonic(), []
    try:
        with tempfile.TemporaryDirectory(prefix="kill-fuzz-") as base:
            try:
                play(options.kills, options.kinds, Path(base), random.Random(options.seed), kills)
            finally:
                end_all(Path(base))
    finally:
        save(kills, options.save)
    bad = sum(bool(kill.faults) for kill in kills)
    minutes = (time.monotonic() - began) / 60
    print(f"{len(kills)} kills in {minutes:.0f} minutes, {bad} with faults; SEED={options.seed}; {options.save}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
