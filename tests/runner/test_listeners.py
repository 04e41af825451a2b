"""What a run on one machine listens on: loopback, and nothing else.

    .venv/bin/python -m pytest tests/runner/test_listeners.py

Real runs of every strategy that can run here, held in their training by tests/faults, and of every command that starts
ranks. The local Slurm cluster's daemons are in tests/setup/test_slurm_local.py.
"""

import ast
import contextlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from fault_runs import finish, start, until_planted
from support import ONE_PROCESS, ROOT, RUNNABLE, environment, hear_sigint
from torch.distributed.pipelining import PipelineStage

from scripts.studies.allreduce.launch_ranks import torchrun_command

REAL_PROCESSES = pytest.mark.real_interpreter  # which process listens, by its command line
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def listeners(variable: str, value: Path) -> set[tuple[str, str]]:
    """(address, command line) of every listening TCP socket of the processes that have this variable."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(variable) == str(value):
                sockets = [each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
                found |= {(each.laddr.ip, " ".join(process.cmdline())) for each in sockets}
    return found


def beyond_loopback(found: set[tuple[str, str]]) -> set[tuple[str, str]]:
    return {each for each in found if each[0] not in LOOPBACK}


FAST = {"ddp"}


@pytest.mark.medium
@REAL_PROCESSES
@pytest.mark.parametrize(
    "strategy", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in RUNNABLE]
)
def test_a_run_on_one_machine_listens_on_loopback(tmp_path, strategy):
    """Protects users of a shared machine: whoever reaches a port of a run can stop it, and whoever can put a file in
    the place of torchrun's store runs commands in torchrun. And /tmp from what torchrun and the launcher leave there.
    """
    results, temporary = tmp_path / "set", tmp_path / "tmp"
    temporary.mkdir()
    args = "--steps 1000 --global-batch 8"  # BatchNorm needs two values of a channel, and a pipeline has micro-batches
    process = start([ROOT / "launchers" / f"{strategy}.sh"], results, "slow", ARGS=args, TMPDIR=temporary)
    try:
        run_dir = until_planted(results)
        found = listeners("RUN_DIR", run_dir)
        left = [*temporary.glob("torchelastic_*"), *run_dir.glob("torchrun*"), *run_dir.glob("ranks*")]
        stores = [path.parent for path in temporary.glob("ranks.*/torchrun")]
        assert len(stores) == bool(stores) and all(path.stat().st_mode & 0o777 == 0o700 for path in stores)
        assert stores or strategy != "ddp"
    finally:
        process.send_signal(signal.SIGTERM)
        finish(process, results)
    if strategy not in ONE_PROCESS:
        assert found, "ranks that talk to each other listen somewhere"
    assert not beyond_loopback(found) and not left and not [*temporary.glob("ranks.*")]


# --- every other command that starts ranks ------------------------------------------------------------------------

MODULE = [sys.executable, "-m"]
STUDY = ["launchers/all.sh"]
SHORT = "--archs resnet18 --image-sizes 32 --rounds 3 --window-steps 2"
PROFILE = (
    "import sys; from scripts.options.study_options import ProfileOptions; "
    "from scripts.studies.roofline.profile_step import profile_on_ranks; "
    "sys.exit(profile_on_ranks(ProfileOptions(strategy='ddp', steps=3), ['--config', sys.argv[1]]))"
)
COMMANDS = {  # name: (words, variables); the configuration is the tests' own, 5 steps on 40 images
    "peers": ([*MODULE, "scripts.studies.peers.measure", "--rounds", "1"], {}),
    "overhead": (
        [*MODULE, *"scripts.studies.peers.overhead --pairs 6 --launches 1 --config CONFIG --data DATA".split()],
        {},
    ),
    "allreduce": (
        [*MODULE, "scripts.studies.allreduce.measure", "--out", "RESULTS", "--rounds", "2", "--largest", "65536"],
        {},
    ),
    "predict_check": (
        [*MODULE, "scripts.studies.predict.measure", "--out", "RESULTS", "--config", "CONFIG", *SHORT.split()],
        {},
    ),
    "verify": ([*MODULE, "scripts.proof.verify", "--steps", "6"], {"STRATEGIES": "ddp horovod_ddp"}),
    "gpu_check": ([*MODULE, "scripts.gpu_check.run"], {"CONFIG": None, "DATA": None}),
    "bench": (STUDY, {"STRATEGIES": "ddp", "REPEATS": 1}),
    "sweep": (
        [*STUDY, "sweep"],
        {"STRATEGY": "ddp", "KEY": "bucket_cap_mb", "VALUES": "1", "REPEATS": 1},
    ),
    "scaling": ([*STUDY, "scaling"], {"STRATEGY": "ddp", "RANKS": "1 2", "REPEATS": 1}),
    "ablate": ([*STUDY, "ablation"], {"STRATEGY": "ddp", "REPEATS": 1}),
    "cuts": (
        [
            *MODULE,
            "scripts.studies.cuts.measure",
            *"--image-sizes 32 --builds 1 --window-steps 2 --output".split(),
            "CSV",
        ],
        {},
    ),
    "ab": (
        [*MODULE, "scripts.studies.ab.ab"],
        {"STRATEGY": "ddp", "A": "flags:", "B": "flags:--bucket-cap-mb 1", "REPEATS": 2},
    ),
    "profile": ([sys.executable, "-c", PROFILE, "CONFIG"], {}),
}
STOPPED = {"gpu_check", "ablate"}  # once their first ranks listen: they start many more runs of the same kind
# Every module of scripts/ that starts processes, and the commands above that have it do so.
STARTED_BY = {
    "gpu_check.check_process": ["gpu_check"],
    "gpu_check.kill_rank": ["gpu_check"],
    "gpu_check.run": ["gpu_check"],
    "proof.verify": ["verify"],
    "runner.supervisor": ["bench"],
    "runner.bench": ["bench", "sweep", "scaling", "ablate"],
    "runner.schedule": ["bench"],
    "studies.ab.ab": ["ab"],
    "studies.allreduce.measure": ["allreduce"],
    "studies.allreduce.worker_pool": ["allreduce", "predict_check", "cuts"],
    "studies.cuts.measure": ["cuts"],
    "studies.peers.measure": ["peers"],
    "studies.peers.overhead": ["overhead"],
    "studies.predict.measure": ["predict_check"],
    "studies.roofline.profile_step": ["profile"],
    # start no ranks: nvidia-smi and pip; TeX; loaders alone; network namespaces; or other commands of this table
    "commands.actions": [],
    "commands.measure_missing": [],
    "commands.start": [],
    "gpu_check.carried": [],
    "gpu_check.carry": [],
    "pages.latex": [],
    "publish.reproduce": [],
    "runner.late_builds": [],
    "runner.lost_runs": [],
    "runner.processes": [],
    "setup.install": [],
    "studies.loaders.measure": [],
    "studies.loaders.measure_loader_limit": [],
    "studies.predict.network_namespaces": [],
}
STARTERS = {
    "subprocess",
    "multiprocessing",
    "torch.multiprocessing",
    "benchmarks.common.system.forward_signals",
    "scripts.studies.allreduce.worker_pool",
    "scripts.studies.allreduce.launch_ranks",
    "scripts.runner.schedule",
}


def imported_modules(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_every_module_that_starts_processes_is_looked_at():
    """Protects the next command: one that starts ranks and is not in COMMANDS is seen here, and not by an attacker."""
    paths = {
        ".".join(path.relative_to(ROOT / "scripts").with_suffix("").parts): path
        for path in (ROOT / "scripts").rglob("*.py")
    }
    starting = {name for name, path in paths.items() if imported_modules(path) & STARTERS}
    assert starting == STARTED_BY.keys()
    assert {name for names in STARTED_BY.values() for name in names} == COMMANDS.keys()


def test_the_words_that_start_ranks_are_in_one_place_each():
    """Protects the file stores: whoever starts torchrun otherwise has a store on all interfaces of the machine."""
    places = {
        "torch.distributed.run": {"launchers/lib.sh", "scripts/studies/allreduce/launch_ranks.py"},
        "horovod.runner.launch": {"launchers/horovod_ddp.sh", "scripts/studies/allreduce/launch_ranks.py"},
        "accelerate launch": set(),
        "multiprocessing.spawn": {"benchmarks/ddp_spawn.py"},
    }
    texts = {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in ("benchmarks", "launchers", "scripts")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".sh")
    }
    for words, expected in places.items():
        assert {name for name, text in texts.items() if words in text} == expected, words
    # a command for people may have other stores, where it says so
    for name, text in texts.items():
        assert "--standalone" not in text or "on all interfaces" in text, name
    assert "--rdzv-conf store_type=file" in " ".join(torchrun_command(2, "folder")[0])


@pytest.mark.parametrize("words", ["_object(", "object_list", "consolidate_state_dict(", "broadcast_optimizer_state"])
def test_ranks_send_tensors_and_nothing_that_is_unpickled(words):
    """Protects users of a shared machine: the ranks' ports have no password, and who takes a rank's place in time would
    run commands in the others."""
    paths = [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("scripts/**/*.py")]
    ours = [path for path in paths if path.stem != "peer_horovod"]  # Horovod's own example is as it is
    call = re.compile(rf"\b(dist|hvd|optimizer)\.\w*{re.escape(words)}")
    found = [path.name for path in ours if call.search(path.read_text())]
    assert not found


IMPOSTOR = """
import dataclasses, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from benchmarks.common.config.config import Config
from benchmarks import pipeline_parallel

class Evil:
    def __reduce__(self):
        return os.mkdir, (sys.argv[3],)

class Impostor(PipelineStage):  # without shapes, which makes torch send them
    def _send_meta(self, meta, dst_stage):
        super()._send_meta(Evil(), dst_stage)

rank, device = int(sys.argv[1]), torch.device("cpu")
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[2], 2), rank=rank, world_size=2)
stages, layer = [nn.Linear(2, 2), nn.Linear(2, 2)], nn.Linear(2, 2)
pipeline_parallel.rows_between = lambda *_: ([(2,)] * 3, [torch.zeros(2, 2)] * 3)
context = dataclasses.make_dataclass("Context", ["rank", "world_size", "device"])(rank, 2, device)
honest = lambda: pipeline_parallel.build_stage(Config(global_batch=8, microbatches=4), context, stages)
stage = honest() if rank else Impostor(layer, 0, 2, device)
schedule = ScheduleGPipe(stage, 4, lambda output, target: output.sum())
schedule.step(*([] if rank else [torch.zeros(8, 2)]), target=torch.zeros(8))
"""


@pytest.mark.skipif(not hasattr(PipelineStage, "_recv_meta"), reason="each stage of this torch finds its own shapes")
def test_a_stage_unpickles_nothing_of_a_rank_whose_place_was_taken(tmp_path):
    """Protects users of a shared machine: who takes a rank's place can send other numbers, and no more. Torch 2.15 has
    all stages exchange pickles where one says that it lacks shapes. Mutant: PipelineStage as it is."""
    words = [sys.executable, "-c", IMPOSTOR]
    where = {"cwd": ROOT, "env": environment(GLOO_SOCKET_IFNAME="lo"), "stderr": subprocess.PIPE, "text": True}
    ranks = [
        subprocess.Popen([*words, str(rank), str(tmp_path / "store"), str(tmp_path / "ran")], **where)
        for rank in range(2)
    ]
    try:
        said = ranks[1].communicate(timeout=300)[1]
    finally:
        for each in ranks:
            each.kill()
            each.communicate()
    assert not (tmp_path / "ran").exists(), said
    assert ranks[1].returncode and "sent its shapes, but they are given" in said


@REAL_PROCESSES
@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_starts_ranks_listens_on_loopback(tmp_path, checkout, tiny_data, tiny_config, name):
    """Protects users of a shared machine from every other command: it is looked at from its start to its end."""
    words, variables = COMMANDS[name]
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    known = {"CONFIG": tiny_config, "DATA": tiny_data, "RESULTS": tmp_path / "a set", "CSV": tmp_path / "cuts.csv"}
    user_variables = {"LOOKED_AT": tmp_path, "NPROC": 2, "TMPDIR": temporary} | known | variables
    command = [str(known.get(word, word)) for word in words]
    folder = ROOT if name == "predict_check" else checkout  # it reads results/published, and writes no results/latest
    found, output = set(), tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(**user_variables), stdout=file, stderr=file, preexec_fn=hear_sigint
        )
        while process.poll() is None:
            found |= listeners("LOOKED_AT", tmp_path)
            if name in STOPPED and found:
                process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
    print(output.read_text())  # pytest shows it if the test fails
    # 1: so few steps make no good prediction
    assert name in STOPPED or process.returncode in ({0, 1} if name == "predict_check" else {0})
    assert found, "ranks that talk to each other listen somewhere"
    assert not beyond_loopback(found)
    assert not [path for path in temporary.iterdir() if not path.name.startswith("torchinductor")]  # torch's own cache
