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
from scripts.runner.processes import answer
from scripts.runner.request import read_request

JOB_SCRIPT = "launchers/slurm_job.sh"
POLL_S, NUM_SILENT = 5, 12
ENDED = {
    "COMPLETED": "",
    "FAILED": "the lines above say why",
    "CANCELLED": "by scancel",
    "TIMEOUT": "at its time limit; raise --time-min, and type the same command with --results to go on",
    "NODE_FAIL": "a node went down; type the same command with --results to go on",
    "PREEMPTED": "by a job of higher priority; type the same command with --results to go on",
    "OUT_OF_MEMORY": "out of memory; raise --memory, or lower --global-batch",
    "BOOT_FAIL": "a node did not boot",
    "DEADLINE": "it could not end before its deadline",
}
"""Slurm's states of a job that has ended, and what each means."""


@dataclasses.dataclass(frozen=True)
class JobShape:
    nodes: int
    tasks_per_node: int
    gpus_per_node: int
    cpus_per_task: int


def main(options: Any, words: Sequence[str], flags: Sequence[str]) -> int:
    """Submit a job and follow it. Returns its exit code. words, flags: for ./bench run, before and after `--`."""
    if job := os.environ.get("SLURM_JOB_ID"):
        raise UserError(f"this is in Slurm job {job}, and ./bench slurm submits one; type ./bench run here")
    if options.container:
        os.environ["CONTAINER"] = options.container  # launchers read it
    shape = job_shape(options)
    asked = sbatch_options(options, shape)
    results, planned = plan_in_job(options, flags, shape)
    if options.plan:
        print(f"sbatch {shlex.join(asked)}\n{planned}", end="")
        return 0
    results = preflight.open_result_set(results)
    log = results / "job.log"
    asked += ["--output", str(log).replace("%", "%%"), JOB_SCRIPT, *words, *(["--", *flags] if flags else [])]
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


def job_shape(options: Any) -> JobShape:
    """Default: one node, a task a GPU or else 2, for each its share of a node's cores. Raises UserError where no
    cluster answers, and for a job on the CPUs of nodes that have GPUs."""
    nodes_like = list_nodes(options.partition)
    gpus = machine.num_gpus() if options.gpus_per_node is None else options.gpus_per_node
    tasks = options.tasks_per_node or gpus or options.nproc or 2
    if options.gpus_per_node is None and not gpus:
        found = next((gres for _, gres in nodes_like if re.search(r"(^|,)gpu", gres)), "")
        if found or options.gpu_type:
            have = f", and nodes have {found}" if found else ""
            raise UserError(f"the job would have no GPU{have}; say how many: --gpus-per-node 4, or 0 for the CPU")
    if gpus and gpus != tasks:
        raise UserError(f"--tasks-per-node {tasks} does not match {gpus} GPUs a node; leave one of them out")
    cores = min(cores for cores, _ in nodes_like)
    return JobShape(options.nodes or 1, tasks, gpus, options.cpus_per_task or max(1, cores // tasks))


def list_nodes(partition: str) -> list[tuple[int, str]]:
    """(cores, generic resources) of the nodes of the partition, else of the default one, else of all."""
    said = answer("sinfo", "--noheader", "--format", "%P %c %G", *(["--partition", partition] if partition else []))
    kinds = [(words[0], int(re.sub(r"\D", "", words[1])), words[2]) for words in map(str.split, said.splitlines())]
    if not kinds:
        raise UserError("no Slurm cluster answers sinfo here, or it has no such partition; run it on a login node")
    of_default = [kind for kind in kinds if kind[0].endswith("*")]
    return [kind[1:] for kind in (not partition and of_default) or kinds]


def sbatch_options(options: Any, shape: JobShape) -> list[str]:
    gpu = f"gpu:{options.gpu_type}:" if options.gpu_type else "gpu:"
    chosen = {
        "nodes": shape.nodes,
        "ntasks-per-node": shape.tasks_per_node,
        "cpus-per-task": shape.cpus_per_task,
        "gres": f"{gpu}{shape.gpus_per_node}" if shape.gpus_per_node else "",
        "partition": options.partition,
        "time": options.time_min,
        "account": options.account,
        "qos": options.qos,
        "mem": options.memory,
        "signal": f"B:USR1@{options.warning_s}" if options.warning_s else "",
    }
    return [f"--{name}={value}" for name, value in chosen.items() if value] + ["--exclusive"] * options.exclusive


def plan_in_job(options: Any, flags: Sequence[str], shape: JobShape) -> tuple[Path | None, str]:
    """The result set, and the job's runs as text. Raises UserError for what no run could do."""
    here, printed = dict(os.environ), io.StringIO()
    os.environ |= {
        "NUM_GPUS": str(shape.gpus_per_node),
        "THREADS_PER_RANK": str(shape.cpus_per_task),
        "SLURM_JOB_NUM_NODES": str(shape.nodes),
        "SLURM_NTASKS_PER_NODE": str(shape.tasks_per_node),
        "SLURM_CPUS_PER_TASK": str(shape.cpus_per_task),
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
    num_silent, shown_reason = 0, ""
    while True:
        said = answer("scontrol", "show", "job", job, "--oneliner")
        state, reason, code = (_field(said, name) for name in ("JobState", "Reason", "ExitCode"))
        print(output.read().decode(errors="replace"), end="", flush=True)
        if state in ENDED:
            break
        num_silent = 0 if state else num_silent + 1
        if num_silent == NUM_SILENT:
            raise UserError(f"the controller has said nothing of job {job} for a minute; tail -f {output.name}")
        if state == "PENDING" and reason not in ("None", shown_reason):
            shown_reason = reason
            print(f"job {job} is in the queue ({reason})", flush=True)
        time.sleep(POLL_S)
    if state == "COMPLETED":
        return 0
    print(f"job {job} ended: {state}, {ENDED[state]}", flush=True)
    return 128 + signal.SIGTERM if state == "CANCELLED" else int(code.partition(":")[0] or 0) or 1


def _field(said: str, name: str) -> str:
    found = re.search(rf"(?:^|\s){name}=(\S*)", said)
    return found[1] if found else ""
