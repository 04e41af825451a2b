"""Fuzzes what reads files that others may have made: images, packs, indexes, YAML, tables, checkpoints, manifests.

    make fuzz MINUTES=10 ARGS="--seed 7"                    # each target has its share of the minutes
    PYTHONPATH=tests python -m fuzz.run --minutes 1 --only images --seed 7

Any input has to end in a value, a documented error or a warning. Anything else is a finding: another exception, a
crash of the process, a program or a socket, a write outside the target's folder, no answer in 60 s, 15 s of CPU,
2.5 GB. Real files are damaged (edits.py), and what fails is made small by hypothesis and saved in corpus/<target>/,
which `make test` replays. Exit code: 1 where there was a finding.
"""

import argparse
import contextlib
import hashlib
import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import hypothesis
import torch
from fuzz.child import Answer, Child
from fuzz.targets import checkpoints, configs, images, indexes, manifests, packs, tables
from hypothesis import HealthCheck, Phase

TARGETS = {
    each.__name__.rpartition(".")[2]: each for each in (images, packs, indexes, configs, tables, checkpoints, manifests)
}
CORPUS = Path(__file__).resolve().parent / "corpus"
INPUTS_A_ROUND = 200
SMALLER_S = 10.0  # spent on making an input smaller
LARGEST_KEPT = 100_000  # bytes of a file in the corpus


@contextlib.contextmanager
def prepared(target: ModuleType) -> Iterator[tuple[list[bytes], Path]]:
    """The target's seeds and a folder of its own."""
    torch.set_num_threads(1)  # threads of torch's own do not survive a fork, and the child would wait for them
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        folder = Path(place) / "folder"
        folder.mkdir()
        yield target.seeds(folder), folder


class Content(bytes):
    """An input with a short name, since hypothesis makes one of every input."""

    def __repr__(self) -> str:
        return f"{len(self)} bytes"


class Fuzzer:
    """One target: what was tried, and what was found, by its kind and place."""

    def __init__(self, target: ModuleType, child: Child):
        self.target, self.child = target, child
        self.outcomes: Counter[str] = Counter()
        self.found: dict[str, tuple[bytes, Answer]] = {}
        self.first_seen_s: dict[str, float] = {}

    def run(self, found: list[bytes], seed: int, seconds: float) -> None:
        """Try the seeds, then damaged ones until the time is over."""
        for content in found:
            self._ask(content)
        deadline = time.monotonic() + seconds
        number = 0
        while time.monotonic() < deadline:
            self._round(found, seed + number, deadline)
            number += 1

    def _round(self, found: list[bytes], seed: int, deadline: float) -> None:
        """Some inputs. Raises nothing: what hypothesis raises is in self.found already."""
        silent = {"verbosity": hypothesis.Verbosity.quiet, "print_blob": False, "database": None, "deadline": None}
        phases, checks = (Phase.generate, Phase.shrink), list(HealthCheck)

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=INPUTS_A_ROUND,
            phases=phases,
            suppress_health_check=checks,
            report_multiple_bugs=False,
            **silent,
        )
        @hypothesis.given(self.target.inputs(found).map(Content))
        def once(content: bytes) -> None:
            if time.monotonic() > deadline:
                return
            finding = self._ask(content)
            if finding and time.monotonic() - self.first_seen_s[finding] < SMALLER_S:
                raise AssertionError(finding)

        with contextlib.suppress(AssertionError, hypothesis.errors.HypothesisException):
            once()

    def _ask(self, content: bytes) -> str:
        answer = self.child.ask(content)
        self.outcomes[answer.outcome or "a finding"] += 1
        if answer.finding:
            self.first_seen_s.setdefault(answer.finding, time.monotonic())
            before = self.found.get(answer.finding)
            if before is None or len(content) < len(before[0]):
                self.found[answer.finding] = content, answer
        return answer.finding

    def save(self, name: str) -> None:
        """Say what was found, and keep its inputs: small ones in the corpus, others in the temporary folder."""
        for finding, (content, answer) in sorted(self.found.items()):
            digest = hashlib.sha256(content).hexdigest()[:12]
            folder = CORPUS / name if len(content) <= LARGEST_KEPT else Path(tempfile.gettempdir())
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / (digest if folder != Path(tempfile.gettempdir()) else f"fuzz-{name}-{digest}")
            path.write_bytes(content)
            print(f"  {finding}\n    input: {os.path.relpath(path)}, {len(content)} bytes")
            for line in answer.details.strip().splitlines()[-8:]:
                print(f"    | {line[:180]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="of all targets together")
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(2**31), help="default: another each time"
    )
    parser.add_argument("--only", nargs="*", choices=TARGETS, default=list(TARGETS), help="targets")
    options = parser.parse_args()
    warnings.simplefilter("ignore", hypothesis.errors.HypothesisWarning)  # the repr of a strategy that holds files
    print(f"fuzz: {options.minutes:g} minutes, SEED={options.seed}", flush=True)
    num_findings = 0
    for name in options.only:
        target = TARGETS[name]
        with prepared(target) as (found, folder), Child(target.attempt, folder) as child:
            fuzzer = Fuzzer(target, child)
            fuzzer.run(found, options.seed, 60 * options.minutes / len(options.only))
        reported = ", ".join(f"{count} {outcome}" for outcome, count in fuzzer.outcomes.most_common(6))
        print(f"{name}: {fuzzer.outcomes.total()} inputs, {len(fuzzer.found)} findings ({reported})", flush=True)
        fuzzer.save(name)
        num_findings += len(fuzzer.found)
    print(f"fuzz: {num_findings} findings, SEED={options.seed}")
    return int(num_findings > 0)


if __name__ == "__main__":
    sys.exit(main())
