"""Pipeline parallel: each rank has one stage of the layers, and works on one of several micro-batches at a time.

torchrun --standalone --nproc-per-node 4 examples/pipeline.py /path/to/imagenet --epochs 90

--batch-size has to be a multiple of the 2 micro-batches for each rank.
"""

import itertools
import math
import os
import time
from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import ImageFolder
from torchvision.models import ResNet, get_model
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


def cut_into_stages(model: ResNet, num_stages: int) -> list[nn.Sequential]:
    """The model's own layers, each stage with about equally many residual blocks."""
    blocks = [*model.layer1, *model.layer2, *model.layer3, *model.layer4]
    cuts = [len(blocks) * number // num_stages for number in range(num_stages + 1)]
    stages = [blocks[first:end] for first, end in itertools.pairwise(cuts)]
    stages[0] = [model.conv1, model.bn1, model.relu, model.maxpool, *stages[0]]
    stages[-1] = [*stages[-1], model.avgpool, nn.Flatten(1), model.fc]
    return [nn.Sequential(*layers) for layers in stages]


class Stage(nn.Module):
    """Layers that take and hand on float32, whatever they compute in."""

    def __init__(self, layers: nn.Sequential):
        super().__init__()
        self.layers = layers

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        with autocast(activation.device):
            return self.layers(activation).float()


def make_schedule(args: Namespace, stages: list[Stage], device: torch.device) -> Schedule1F1B:
    """1F1B: in a full pipeline a rank's forward and backward passes of micro-batches take turns."""
    rank, num_microbatches = dist.get_rank(), 2 * len(stages)
    shape = (args.batch_size // num_microbatches, 3, args.image_size, args.image_size)
    between = [torch.zeros(shape, device=device)]  # what enters the first stage, then what leaves each
    with torch.no_grad():
        for stage in stages:
            between.append(stage.eval()(between[-1]))  # eval: BatchNorm's statistics stay
    taken, given = (torch.empty_like(each, device="meta", requires_grad=True) for each in between[rank : rank + 2])
    own = PipelineStage(stages[rank], rank, len(stages), device, taken, given)
    return Schedule1F1B(own, num_microbatches, cross_entropy)  # the loss is the mean over micro-batches


@torch.no_grad()
def share_stages(stages: list[Stage], optimizer: Optimizer) -> None:
    """Each rank sends its stage and momentum to the others."""
    for owner, stage in enumerate(stages):
        tensors = [*stage.state_dict().values()]
        for weight in stage.parameters():
            tensors.append(optimizer.state[weight].setdefault("momentum_buffer", torch.zeros_like(weight)))
        for tensor in tensors:
            dist.broadcast(tensor, src=owner)


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device) -> torch.Tensor:
    """Right answers."""
    model.eval()
    hits = []
    for images, target in loader:
        with autocast(device):
            scores = model(images.to(device))
        hits.append(scores.argmax(dim=1) == target.to(device))
    return torch.cat(hits).sum()


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
    args.lr *= args.batch_size / 256  # all ranks work on the same images
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
    train = in_batches(train_set, shuffle=True, drop_last=True)
    if not len(train):
        raise SystemExit(f"--batch-size {args.batch_size} is more than the images of a process; lower it")
    val = in_batches(Subset(val_set, range(rank, len(val_set), world_size)))  # every image on one rank

    torch.manual_seed(0)
    # whole on each rank, for evaluation
    model = get_model(args.arch, num_classes=len(train_set.classes)).to(device)
    stages = [Stage(layers) for layers in cut_into_stages(model, world_size)]  # of the model's own layers
    schedule = make_schedule(args, stages, device)
    # skips stages of other ranks, without gradients
    optimizer = SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    first_epoch = 0
    if args.resume:
        saved = torch.load(args.resume, map_location="cpu", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first_epoch = saved["epoch"]

    for epoch in range(first_epoch, args.epochs):
        torch.manual_seed(epoch)  # the same images after --resume
        model.train()
        began, loss_sum = time.perf_counter(), torch.zeros((), device=device)
        target = torch.empty(args.batch_size, dtype=torch.int64, device=device)
        batches = iter(train) if rank == 0 else None
        for step in range(len(train)):
            inputs = []
            if batches:
                images, target = (tensor.to(device, non_blocking=True) for tensor in next(batches))
                inputs = [images]
            dist.broadcast(target, src=0)  # rank 0 reads images, and sends targets to the last rank
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(args, epoch + step / len(train))
            optimizer.zero_grad()
            losses: list[torch.Tensor] = []  # stays empty on all ranks but the last
            schedule.step(*inputs, target=target, losses=losses)  # forward and backward
            optimizer.step()
            if losses:
                loss_sum += torch.stack(losses).mean().detach()
        dist.broadcast(loss_sum, src=world_size - 1)
        mean_loss = loss_sum.item() / len(train)  # item() waits for the GPU
        speed = len(train) * args.batch_size / (time.perf_counter() - began)
        share_stages(stages, optimizer)
        correct = evaluate(model, val, device)
        dist.all_reduce(correct)
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
            torch.save(state, "checkpoint.tmp")
            os.replace("checkpoint.tmp", "checkpoint.pt")  # always a whole one
            top1 = 100 * correct.item() / len(val_set)
            print(f"epoch {epoch}: loss {mean_loss:.3f}, top-1 {top1:.1f} %, {speed:.1f} images/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
