"""What ranks ask of each other, in which order: real gloo ranks, every collective noted before it is asked for.

.venv/bin/python -m pytest tests/benchmarks/test_collectives.py

A rank that asks for a collective which the others do not ask for waits for ever; on NCCL without a word. Here a note
says which one. tests/faults/sitecustomize.py writes the notes.
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from fault_runs import FAULTS
from support import ONE_PROCESS, REMEDY_WITHOUT, ROOT, STRATEGIES, environment, make_run_folder, run_strategy, spoil

NUM_RANKS = 2
BY_HAND = {  # no launcher here can start these ranks, but the variables of their launcher can
    "slurm": lambda rank: {
        **{"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_STEP_NUM_TASKS": NUM_RANKS},
        **{"SLURM_JOB_ID": 1, "SLURM_STEP_ID": 0},
    }
}
NOT_HERE = set(REMEDY_WITHOUT) - set(BY_HAND)
RANKS = [name for name in STRATEGIES if name not in ONE_PROCESS | NOT_HERE]
POINT_TO_POINT = ("send", "recv")
PAIRED_BY_NAME = {"horovod_ddp"}  # Horovod's coordinator waits until all ranks have asked for a name, in any order


@pytest.fixture
def asked(tmp_path, tiny_data, tiny_config):
    """asked(strategy, args, **variables): (the notes of each rank, the row or exit codes) of one run."""

    def run(name: str, args: str = "", **variables) -> tuple[list[list], dict]:
        folder = tmp_path / "asked"
        folder.mkdir()
        ours = {"DATA": tiny_data, "CONFIG": tiny_config, "NPROC": NUM_RANKS}
        variables = ours | {"PYTHONPATH": FAULTS, "COLLECTIVES": folder} | variables
        if name in BY_HAND:
            row = start_by_hand(name, tmp_path, args, variables)
        else:
            row = run_strategy(name, tmp_path / "a set", args, **variables)
        notes = [folder / f"{rank}.jsonl" for rank in range(NUM_RANKS)]
        return [[json.loads(line) for line in path.read_text().splitlines()] for path in notes], row

    return run


def start_by_hand(name: str, folder: Path, args: str, variables: dict) -> dict:
    flags = ["--config", variables["CONFIG"], "--data", variables["DATA"], *args.split()]
    command = [sys.executable, "-m", f"benchmarks.{name}", *flags]
    run_dir = make_run_folder(folder / "a set" / "logs" / "by hand")
    ours = {"GLOO_SOCKET_IFNAME": "lo", "RUN_DIR": run_dir}
    ranks = [
        subprocess.Popen(command, cwd=ROOT, env=environment(**variables | ours | BY_HAND[name](rank)))
        for rank in range(NUM_RANKS)
    ]
    codes = [rank.wait(300) for rank in ranks]
    return {"status": "ok" if not any(codes) else "failed", "reason": f"exit codes {codes}"}


def of_all(notes: list[list]) -> list[list]:
    """Of each rank, in order: the collectives that all ranks take part in."""
    return [[note for note in rank if note[0] not in POINT_TO_POINT] for rank in notes]


def between(notes: list[list]) -> list[tuple[list, list]]:
    """(what one rank sends to another, what that one receives from it), in order, for each pair and direction."""

    def tensors(rank: int, name: str, peer: int) -> list:
        return [shapes for kind, shapes, other in notes[rank] if kind == name and other == peer]

    ranks = range(len(notes))
    return [(tensors(a, "send", b), tensors(b, "recv", a)) for a in ranks for b in ranks if a != b]


def first_difference(lists: list[list]) -> str:
    longest, shortest = max(map(len, lists)), min(map(len, lists))
    for n in range(shortest):
        if any(each[n] != lists[0][n] for each in lists):
            return f"at {n} the ranks ask for {[each[n] for each in lists]}"
    return f"{longest - shortest} more on the rank that asked last: {max(lists, key=len)[shortest : shortest + 3]}"


def assert_equal(notes: list[list], ordered: bool = True) -> None:
    lists = of_all(notes) if ordered else [sorted(each, key=str) for each in of_all(notes)]
    assert all(each == lists[0] for each in lists), first_difference(lists)
    for sent, received in between(notes):
        assert sent == received


def assert_prefixes(notes: list[list], ordered: bool = True) -> None:
    lists = of_all(notes)
    longest = max(lists, key=len)
    if not ordered:
        assert all(Counter(map(str, each)) <= Counter(map(str, longest)) for each in lists)
        return
    assert all(each == longest[: len(each)] for each in lists), first_difference(lists)
    for sent, received in between(notes):
        assert all(one == other for one, other in zip(sent, received, strict=False))


@pytest.mark.medium
@pytest.mark.parametrize(
    "name", [name if name == "ddp" else pytest.param(name, marks=pytest.mark.slow) for name in RANKS]
)
def test_all_ranks_ask_for_the_same_in_the_same_order(asked, tmp_path, name):
    """Protects a run on GPUs from waiting for ever: training, evaluation, checkpoints and the account. One collective
    more on a rank, another shape, or another order is named with its place."""
    notes, row = asked(name, f"--account-steps 2 --timeout-s 30 --checkpoint-dir {tmp_path / 'kept'}")
    assert_equal(notes, name not in PAIRED_BY_NAME)
    assert row["status"] == "ok", row["reason"]
    assert len(of_all(notes)[0]) > 20, Counter(note[0] for note in notes[0])


FAULTY = {  # as tests/faults/sitecustomize.py plants them
    "a bad file": {},
    "a signal": {"FAULT": "term rank=1 step=3"},
    "a signal before a checkpoint": {"FAULT": "term rank=1 step=3"},
    "NaN": {"FAULT": "nan rank=1 step=3"},
}
TOGETHER = {"a signal before a checkpoint", "NaN"}  # all ranks hear of these at the same place


@pytest.mark.slow
@pytest.mark.parametrize("name", RANKS)
@pytest.mark.parametrize("fault", FAULTY)
def test_where_one_rank_meets_a_fault_none_asks_for_something_else(asked, own_data, tmp_path, name, fault):
    """Protects the first cause: a rank that leaves must not have the others in another collective than its last."""
    args = "--timeout-s 30"
    if fault == "a bad file":
        spoil(sorted((own_data / "train").rglob("*.JPEG"))[-1], "truncated")
    if "checkpoint" in fault:
        args += f" --checkpoint-dir {tmp_path / 'kept'}"
    notes, row = asked(name, args, DATA=own_data, **FAULTY[fault])
    assert row["status"] not in ("ok", "skipped")
    assert all(len(each) for each in of_all(notes))
    assert_prefixes(notes, name not in PAIRED_BY_NAME)
    if fault in TOGETHER:
        assert_equal(notes, name not in PAIRED_BY_NAME)
