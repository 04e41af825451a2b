"""The order of the runs in a round, and how much of a run is timed.

The orders are the rows of a Williams square (1949), taken with a stride of the golden section: over n rounds of n runs
each run has every place once, and for an even n follows every other run once.
"""

import dataclasses
import math
import random

from benchmarks.common.config import IMAGENET_TRAIN_IMAGES, Config, resolve_global_batch

SEED = 0
GOLDEN = (3 - math.sqrt(5)) / 2


def run_order(num_runs: int, round_number: int) -> list[int]:
    """The runs 0, 1, ... in their order in a round, counted from 1."""
    names = random.Random(SEED).sample(range(num_runs), num_runs)
    strides = [step for step in range(1, num_runs + 1) if math.gcd(step, num_runs) == 1]
    stride = min(strides, key=lambda step: abs(step - num_runs * GOLDEN))
    zigzag = [(place + 1) // 2 * (-1) ** (place + 1) for place in range(num_runs)]  # 0, 1, -1, 2, -2, ...
    row = [names[(step + round_number * stride) % num_runs] for step in zigzag]
    backwards = num_runs % 2 and (round_number - 1) // num_runs % 2
    return row[::-1] if backwards else row


def timed_part(config: Config, fingerprint: str, ranks: int) -> Config:
    """Without what comes after the timed windows, but for as many steps as a window has: in the last, too, loaders
    prefetch. fingerprint: of the images; '' for synthetic ones."""
    num_train = int(fingerprint.split("-")[1]) if fingerprint else IMAGENET_TRAIN_IMAGES  # classes, training images
    steps = config.steps or num_train // resolve_global_batch(config, ranks).global_batch
    needed = 1 + config.warmup_steps + (config.windows + 1) * config.window_steps
    epochs = config.epochs
    if 0 < needed <= steps:
        epochs, steps = 1, needed
    elif steps:
        epochs = min(config.epochs, _epochs_of_windows(config, steps))
    return dataclasses.replace(
        config,
        epochs=epochs,
        steps=steps,
        account_steps=0,
        checkpoint_dir="",
        checkpoint_steps=0,
        resume=False,
    )


def _epochs_of_windows(config: Config, steps: int) -> int:
    """As in the engine, no window holds the first step of an epoch."""
    windows, warm_left = 0, config.warmup_steps
    for epoch in range(config.epochs):
        windows += max(0, steps - max(1, warm_left)) // config.window_steps
        warm_left = max(0, warm_left - steps)
        if windows >= config.windows:
            return epoch + 1
    return config.epochs
