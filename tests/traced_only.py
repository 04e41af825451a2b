"""benchmarks/ddp_compile.py with a compiler that traces the model, and then runs its operations one by one.

torchrun --nproc-per-node 2 tests/traced_only.py --config ...
"""

import functools
import runpy

import torch

if __name__ == "__main__":
    torch.compile = functools.partial(torch.compile, backend="eager")  # which Module.compile calls
    runpy.run_module("benchmarks.ddp_compile", run_name="__main__")
