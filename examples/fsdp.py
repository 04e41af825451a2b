"""FSDP2: ranks shard weights, gradients and momentum; a block's weights are gathered only while it computes.

torchrun --standalone --nproc-per-node 4 examples/fsdp.py /path/to/imagenet --epochs 90
"""

import math
import os
import time
from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler
from torchvision.datasets import ImageFolder
from torchvision.models import get_model
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.transforms import v2


def parse_args() -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with train/<class>/*.JPEG and val/<class>/*.JPEG")
    parser.add_argument("--arch", default="resnet50", help="a ResNet of torchvision")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256, help="images of a step, for each process")
    parser.add_argument("--lr", type=float, default=0.1, help="for 256 images a step; grows with those of all ranks")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--workers", type=int, default=8, help="loader processes of each process; 0: it loads itself")
    parser.add_argument("--resume", type=Path, help="the checkpoint.pt to go on from")
    return parser.parse_args()


def learning_rate(args: Namespace, epoch: float) -> float:
    """Climbs to --lr in the first 5 of 90 epochs, then falls as a cosine."""
    warmup = args.epochs // 18
    if epoch < warmup:
        return args.lr * epoch / warmup
    return args.lr * (1 + math.cos(math.pi * ((epoch - warmup) / (args.epochs - warmup)))) / 2


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 on GPUs that have it (Ampere and newer), else float32."""
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.autocast(device.type, torch.bfloat16, enabled=has_bf16)


@torch.no_grad()
def evaluate_together(model: nn.Module, loader: DataLoader, device: torch.device, num_images: int) -> torch.Tensor:
    """Right answers among the loader's first `num_images` images."""
    model.eval()
    hits = []
    for images, target in loader:
        with autocast(device):
            scores = model(images.to(device))
        hits.append(scores.argmax(dim=1) == target.to(device))
    return torch.cat(hits)[:num_images].sum()


def main() -> None:
    args = parse_args()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    backend, device_id = ("nccl", device) if on_gpu else ("gloo", None)
    dist.init_process_group(backend, device_id=device_id)  # waits for all ranks
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.backends.cudnn.benchmark = True
    args.lr *= args.batch_size * world_size / 256  # in proportion (arXiv:1706.02677)
    size, normalize = args.image_size, v2.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    floats = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), normalize]
    augment = v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), *floats])
    centre = v2.Compose([v2.Resize(size * 256 // 224), v2.CenterCrop(size), *floats])
    train_set, val_set = ImageFolder(args.data / "train", augment), ImageFolder(args.data / "val", centre)
    in_batches = partial(
        DataLoader,
        batch_size=args.batch_size,
        num_workers=args.workers,
        pin_memory=on_gpu,
        persistent_workers=args.workers > 0,
    )
    sampler: DistributedSampler = DistributedSampler(train_set, drop_last=True)  # this rank's part of every epoch
    train = in_batches(train_set, sampler=sampler, drop_last=True)
    if not len(train):
        raise SystemExit(f"--batch-size {args.batch_size} is more than the images of a process; lower it")
    val = in_batches(val_set, sampler=DistributedSampler(val_set, shuffle=False))
    # it repeats images, at the end, until all ranks have equally many: they gather weights together
    num_val = len(range(rank, len(val_set), world_size))

    torch.manual_seed(0)  # the same weights on all ranks, as FSDP does not send them
    model = get_model(args.arch, num_classes=len(train_set.classes)).to(device)
    mesh = init_device_mesh(device.type, (world_size,))
    for block in [module for module in model.modules() if isinstance(module, BasicBlock | Bottleneck)]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # the layers outside of blocks
    # of this rank's shards, so after fully_shard; foreach: all of them at once
    optimizer = SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4, foreach=True)
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    first_epoch = 0
    if args.resume:
        saved = torch.load(args.resume, map_location="cpu", weights_only=True)
        state = {"model_state_dict": saved["model"], "optim_state_dict": saved["optimizer"]}
        set_state_dict(model, optimizer, **state, options=whole)  # each rank takes its shards
        first_epoch = saved["epoch"]

    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)  # another order in every epoch
        torch.manual_seed(epoch * world_size + rank)  # other crops on every rank
        model.train()
        began, losses = time.perf_counter(), []
        for step, (images, target) in enumerate(train):
            images, target = images.to(device, non_blocking=True), target.to(device, non_blocking=True)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(args, epoch + step / len(train))
            optimizer.zero_grad()
            with autocast(device):
                loss = cross_entropy(model(images), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        mean_loss = torch.stack(losses).mean().item()  # item() waits for the GPU
        speed = len(train) * args.batch_size * world_size / (time.perf_counter() - began)
        for buffer in model.buffers():  # rank 0's BatchNorm statistics are saved
            dist.broadcast(buffer, src=0)
        correct = evaluate_together(model, val, device, num_val)
        dist.all_reduce(correct)
        weights, momentum = get_state_dict(model, optimizer, options=whole)  # all ranks call it; rank 0 has the result
        if rank == 0:
            state = {"model": weights, "optimizer": momentum, "epoch": epoch + 1}
            torch.save(state, "checkpoint.tmp")
            os.replace("checkpoint.tmp", "checkpoint.pt")  # always a whole one
            top1 = 100 * correct.item() / len(val_set)
            print(f"epoch {epoch}: loss {mean_loss:.3f}, top-1 {top1:.1f} %, {speed:.1f} images/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
