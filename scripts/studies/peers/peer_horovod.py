"""A peer: the structure of Horovod's synthetic benchmark, written anew: one random batch, over and over.

As examples/pytorch/pytorch_synthetic_benchmark.py of github.com/horovod/horovod. `next()` takes one step;
scripts/studies/peers/measure.py times it, and compares it with the suite on one random batch, too.
"""

from collections.abc import Iterator

import horovod.torch as hvd
import torch
import torchvision
from torch.nn.functional import cross_entropy

from scripts.studies.peers.loop_settings import LoopSettings


def train(settings: LoopSettings) -> Iterator[None]:
    """Train for ever on the ranks that horovodrun started; yields after each step. Reads no files."""
    hvd.init()
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(hvd.local_rank())
    device = torch.device("cuda", hvd.local_rank()) if on_gpu else torch.device("cpu")
    torch.backends.cudnn.benchmark = True
    model = getattr(torchvision.models, settings.arch)().to(device)
    optimizer = torch.optim.SGD(model.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    batch = settings.global_batch // hvd.size()
    data = torch.randn(batch, 3, settings.image_size, settings.image_size, device=device)
    target = torch.randint(1000, (batch,), device=device)
    model.train()
    while True:
        optimizer.zero_grad()
        loss = cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        yield
