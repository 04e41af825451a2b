"""Options of ./bench forecast-memory. Imports nothing heavy: --help reads them."""

import dataclasses

from scripts.shared.option_types import OptionalText


@dataclasses.dataclass(frozen=True)
class MemoryOptions:
    memory_gb: float
    """Memory of one GPU, 10^9 bytes: a V100 has 16.9 or 34.1."""
    num_devices: int = 4
    """GPUs in all."""
    strategies: OptionalText = ""
    """Such as "single ddp"; default: all."""
