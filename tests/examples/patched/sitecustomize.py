"""Python imports this file first where PYTHONPATH names its folder."""

import torch.utils.data
from fixed_batches import FixedLoader

torch.utils.data.DataLoader = FixedLoader
