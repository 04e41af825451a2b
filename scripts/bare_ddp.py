"""A DDP loop with nothing of the suite in it, which `scripts.overhead` holds benchmarks.ddp against.

    torchrun --standalone --nproc-per-node 2 -m scripts.bare_ddp '{"arch": "resnet18", ...}'

It reads, augments and trains as public scripts do, and prints its throughput over the timed steps.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
import torchvision
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2


def main(arch, data, image_size, global_batch, workers, lr, momentum, weight_decay, warmup_steps, timed_steps):
    use_cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if use_cuda else "gloo")
    device = torch.device("cuda", dist.get_rank()) if use_cuda else torch.device("cpu")
    transform = v2.Compose([
        v2.RandomResizedCrop(image_size, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor(),
        v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ])  # fmt: skip
    images_of = ImageFolder(f"{data}/train", transform)
    sampler = DistributedSampler(images_of)
    loader = DataLoader(
        images_of, global_batch // dist.get_world_size(), sampler=sampler, num_workers=workers, drop_last=True,
        pin_memory=use_cuda, persistent_workers=workers > 0,
    )  # fmt: skip
    torch.backends.cudnn.benchmark = True
    net = getattr(torchvision.models, arch)(num_classes=len(images_of.classes)).to(device)
    model = DistributedDataParallel(net, [device.index] if use_cuda else None)
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum, weight_decay=weight_decay)
    step = epoch = 0
    while step < warmup_steps + timed_steps:
        sampler.set_epoch(epoch)
        for images, target in loader:
            if step == warmup_steps:
                began = now(use_cuda)
            optimizer.zero_grad()
            loss = cross_entropy(model(images.to(device, non_blocking=True)), target.to(device, non_blocking=True))
            loss.backward()
            optimizer.step()
            step += 1
            if step == warmup_steps + timed_steps:
                seconds, cpu_s = (after - before for before, after in zip(began, now(use_cuda), strict=True))
                break
        epoch += 1
    if dist.get_rank() == 0:
        images = global_batch * timed_steps
        print("timed:", json.dumps({"images_per_s": images / seconds, "images_per_cpu_s": images / cpu_s}), flush=True)
    dist.destroy_process_group()


def now(use_cuda: bool) -> tuple[float, float]:
    """Wall clock and CPU seconds of this process, once the GPU is done."""
    if use_cuda:
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
