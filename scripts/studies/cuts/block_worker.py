"""A rank that times the model's blocks for each line on stdin, as `cut: auto` does, and prints what they took.

measure.py starts it. Each line on stdin is the flags of a configuration, as JSON. The answer is
`blocks: {"block_s": [...]}`.
"""

import json
import sys

from benchmarks.common.config.config import load_config
from benchmarks.common.dist.devices import RankContext, set_up_rank
from benchmarks.common.dist.ranks import RankInfo
from benchmarks.common.model.measured_cuts import measure_block_s
from benchmarks.common.model.model import build_model
from benchmarks.common.model.stages import blocks_of, num_microbatches

NUM_STAGES, NUM_CLASSES = 2, 12


def main() -> None:
    print("here:", flush=True)
    while line := sys.stdin.readline():
        config, started = set_up_rank(load_config(json.loads(line)), RankInfo())
        num_images = config.global_batch // num_microbatches(config, NUM_STAGES)
        net = build_model(config, NUM_CLASSES, started.device)
        block_s = measure_block_s(config, RankContext(started.device), blocks_of(net), num_images)
        print("blocks:", json.dumps({"block_s": block_s}), flush=True)
