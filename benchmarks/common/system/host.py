"""Which machine this is, and what about it changes kernels: facts of a run's settings. Needs no torch.

A name alone is no identity: containers share names, and a cluster gives a name to another board. So a host is a hash of
its name, machine-id, board, processor and microcode. `./bench publish` writes "host 1" for it.
"""

import hashlib
import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.common.system.machine import num_cores

HASH_DIGITS = 12
BOARD_FILES = ("sys_vendor", "product_name", "board_vendor", "board_name", "board_version")  # without root's rights
VECTOR_FLAGS = re.compile(r"(avx|amx|sse|ssse|fma|f16c|bmi|vnni|sve|sme(?!p)|asimd|neon|bf16|i8mm)\w*")
"""Of /proc/cpuinfo: what kernels are chosen by. The other flags change with the Linux kernel."""
PREFIXES = ("OMP_", "MKL_", "ONEDNN_", "DNNL_", "ATEN_", "KMP_", "NCCL_", "GLOO_", "TORCH_", "CUBLAS_", "CUDNN_")
WHOLE_NAMES = ("LD_PRELOAD", "NVIDIA_TF32_OVERRIDE")
# The launchers set the first two themselves. The others say where something is, and change no kernel.
NOT_RECORDED = (
    *("OMP_NUM_THREADS", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
    *("TORCH_HOME", "NCCL_COMM_ID", "NCCL_HOSTID", "NCCL_DEBUG_FILE"),
)
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
NONE = "none"


def machine_facts() -> dict[str, int | str]:
    """Cores that this process may use, vector flags (a hash), Linux kernel and host."""
    return {
        "num_cores": num_cores(),
        "cpu_flags": _hash(vector_flags()),
        "kernel": platform.release(),
        "host": host(os.environ),
    }


def vector_flags() -> list[str]:
    """The instructions for vectors that the processor offers, sorted; [] where Linux does not say."""
    words = next((line.partition(":")[2].split() for line in _cpuinfo() if line.startswith(("flags", "Features"))), [])
    return sorted(word for word in words if VECTOR_FLAGS.fullmatch(word))


def host(env: Mapping[str, str]) -> str:
    """A hash that names this machine; in a Slurm job of several nodes the one of all its nodes, by their names."""
    name = platform.node()
    if env.get("SLURM_JOB_NUM_NODES", "1") != "1" and env.get("SLURMD_NODENAME") == name.partition(".")[0]:
        return _hash(["nodes", env.get("SLURM_CLUSTER_NAME", ""), env.get("SLURM_JOB_NODELIST", "")])
    board = [_text(Path("/sys/class/dmi/id") / file) for file in BOARD_FILES]
    processor = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith(("model name", "microcode"))]
    return _hash([name, _text(Path("/etc/machine-id")), *board, *dict.fromkeys(processor)])


def kernel_variables(env: Mapping[str, str]) -> str:
    """The variables that may change kernels or communication, such as "ATEN_CPU_CAPABILITY=avx2"; NONE without any.

    env: of the run's supervisor. Loopback is what launchers choose on one machine.
    """
    chosen = {name: text for name, text in env.items() if name.startswith(PREFIXES) or name in WHOLE_NAMES}
    return (
        " ".join(
            f"{name}={text}"
            for name, text in sorted(chosen.items())
            if text and name not in NOT_RECORDED and (name, text) not in {(each, "lo") for each in INTERFACES}
        )
        or NONE
    )


def _cpuinfo() -> list[str]:
    return _text(Path("/proc/cpuinfo")).splitlines()


def _text(path: Path) -> str:
    """What a file holds; '' where it is missing or not for this user."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _hash(words: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:HASH_DIGITS]
