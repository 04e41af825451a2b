"""./bench slurm: submits launchers/slurm_job.sh, prints what the job prints, and cancels it on Ctrl-C."""

import contextlib
import dataclasses
import io
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from scripts.runner import loop, preflight
from scripts.runner.options import RunOptions
from scripts.runner.processes import answer
from scripts.runner.request import read_request

JOB_SCRIPT = "launchers/slurm_job.sh"
POLL_S = 5
ENDED = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL"),
    "DEADLINE",
)
"""Slurm's states of a job that has ended."""


def main(options: Any, flags: Sequence[str]) -> int:
    """Submit a job and follow it. Returns its exit code."""
    if job := os.environ.get("SLURM_JOB_ID"):
        raise UserError(f"this is in Slurm job {job}, and ./bench slurm submits one; type ./bench run here")
    if options.container:
        os.environ["CONTAINER"] = options.container  # launchers read it
    options = with_shape(options)
    asked = sbatch_options(options)
    results, planned = plan_in_job(options, flags)
    if options.plan:
        print(f"sbatch {shlex.join(asked)}\n{planned}", end="")
        return 0
    results = preflight.open_result_set(results)
    log = results / "job.log"
    asked += [
        "--output",
        str(log).replace("%", "%%"),
        JOB_SCRIPT,
        *words_of_run(options),
        *(["--", *flags] if flags else []),
    ]
    with open(log, "ab+") as output:  # the job appends to it
        job = ""
        try:
            job = submit(asked, os.environ | {"RESULTS": str(results)})
            print(f"job {job} is submitted, and Ctrl-C cancels it; its output is in {log}:", flush=True)
            return follow(job, output)
        except SystemExit as ended:  # by a signal; that of a closed terminal does not end the job
            if job and ended.code != 128 + signal.SIGHUP:
                answer("scancel", job)
                follow(job, output)
            raise


def words_of_run(options: Any) -> list[str]:
    """What ./bench run gets of the options, as typed."""
    words = [*options.strategies]
    for field in dataclasses.fields(RunOptions):
        value = getattr(options, field.name)
        if field.name not in ("strategies", "plan", "results", "nproc") and value not in (field.default, None):
            words += [f"--{field.name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words


def with_shape(options: Any) -> Any:
    """With its defaults: one node, a task a GPU or else 2, for each its share of a node's cores. Raises UserError where
    no cluster answers, and for a job on the CPUs of nodes that have GPUs."""
    nodes_like = list_nodes(options.partition)
    gpus = machine.num_gpus() if options.gpus_per_node is None else options.gpus_per_node
    tasks = options.tasks_per_node or gpus or options.nproc or 2
    if options.gpus_per_node is None and not gpus:
        found = next((gres for _, gres in nodes_like if re.search(r"(^|,)gpu", gres)), "")
        if found:
            have = f"the job would have no GPU, and nodes have {found}"
            raise UserError(f"{have}; say how many: --gpus-per-node 4, or 0 for the CPU")
    if gpus and gpus != tasks:
        raise UserError(f"--tasks-per-node {tasks} does not match {gpus} GPUs a node; leave one of them out")
    cores = min(cores for cores, _ in nodes_like)
    return dataclasses.replace(
        options,
        nodes=options.nodes or 1,
        tasks_per_node=tasks,
        gpus_per_node=gpus,
        cpus_per_task=options.cpus_per_task or max(1, cores // tasks),
    )


def list_nodes(partition: str) -> list[tuple[int, str]]:
    """(cores, generic resources) of the nodes of the partition, else of the default one, else of all."""
    said = answer("sinfo", "--noheader", "--format", "%P %c %G", *(["--partition", partition] if partition else []))
    kinds = [(words[0], int(re.sub(r"\D", "", words[1])), words[2]) for words in map(str.split, said.splitlines())]
    if not kinds:
        raise UserError("no Slurm cluster answers sinfo here, or it has no such partition; run it on a login node")
    of_default = [kind for kind in kinds if kind[0].endswith("*")]
    return [kind[1:] for kind in (not partition and of_default) or kinds]


def sbatch_options(options: Any) -> list[str]:
    chosen = {
        "nodes": options.nodes,
        "ntasks-per-node": options.tasks_per_node,
        "cpus-per-task": options.cpus_per_task,
        "gres": f"gpu:{options.gpus_per_node}" if options.gpus_per_node else "",
        "partition": options.partition,
        "time": options.time_min,
    }
    return [f"--{name}={value}" for name, value in chosen.items() if value] + shlex.split(options.sbatch)


def plan_in_job(options: Any, flags: Sequence[str]) -> tuple[Path | None, str]:
    """The result set, and the job's runs as text. Raises UserError for what no run could do."""
    here, printed = dict(os.environ), io.StringIO()
    os.environ |= {
        "NUM_GPUS": str(options.gpus_per_node),
        "THREADS_PER_RANK": str(options.cpus_per_task),
        "SLURM_JOB_NUM_NODES": str(options.nodes),
        "SLURM_NTASKS_PER_NODE": str(options.tasks_per_node),
        "SLURM_CPUS_PER_TASK": str(options.cpus_per_task),
        "SLURM_JOB_PARTITION": options.partition,
    }
    try:
        with contextlib.redirect_stdout(printed):
            request = dataclasses.replace(read_request(options, flags), plan=True)
            loop.main(request)
    finally:
        os.environ.clear()
        os.environ.update(here)
    return request.results, printed.getvalue()


def submit(words: Sequence[str], env: dict[str, str]) -> str:
    """The job's number."""
    done = subprocess.run(["sbatch", "--parsable", *words], env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise UserError("sbatch takes no such job, for the reason above")
    return done.stdout.strip().partition(";")[0]


def follow(job: str, output: IO[bytes]) -> int:
    """Print what comes to the job's output until the job has ended, through every requeue. Returns its exit code."""
    while True:
        said = dict(word.partition("=")[::2] for word in answer("scontrol", "show", "job", job, "--oneliner").split())
        state = said.get("JobState", "")  # '' where the controller does not answer
        print(output.read().decode(errors="replace"), end="", flush=True)
        if state in ENDED:
            break
        time.sleep(POLL_S)
    if state == "COMPLETED":
        return 0
    print(f"job {job} ended: {state}; the same command with --results goes on", flush=True)
    return 128 + signal.SIGTERM if state == "CANCELLED" else int(said["ExitCode"].partition(":")[0]) or 1
