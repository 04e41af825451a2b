"""Has each process of the suite that a test starts find as many GPUs as FOUND_GPUS says."""

import os

from benchmarks.common import machine

machine.num_gpus = lambda: int(os.environ["FOUND_GPUS"])
