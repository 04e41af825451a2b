"""A checkpoint that a run resumes from: it is loaded whole, or one sentence says why not."""

import copy
import functools
import io
import os
import pickle
import zipfile
from pathlib import Path
from types import SimpleNamespace

import torch
import torchvision
from fuzz.edits import PLACES, edited
from hypothesis import strategies as st

from benchmarks.common.config.config import Config
from benchmarks.common.dist.devices import RankContext
from benchmarks.common.dist.layout import Layout
from benchmarks.common.system.errors import UserError
from benchmarks.common.train.checkpoint import Checkpointer
from benchmarks.common.train.meters import Meter
from benchmarks.common.train.strategy import Strategy, TrainingState

NUM_CLASSES, NUM_STEPS = 4, 10
ODD = [
    -5, 0, 2**40, 2**70, 1e308, float("nan"), None, "", "x", [], {}, (), True,
    torch.zeros(0), torch.full((4, 3), float("nan")), torch.full((4,), float("inf")), torch.zeros(3, 4),
    torch.zeros(4, 3, dtype=torch.int8), torch.zeros(1).expand(2**40), torch.zeros(4, 3).to_sparse(),
    torch.zeros(5056, dtype=torch.uint8), torch.empty(3, device="meta"),
]  # fmt: skip


class Payload:
    def __reduce__(self):
        return os.mkdir, ("/tmp/executed",)


@functools.cache
def _parts() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """One model for all inputs: taking up a checkpoint writes over all of it, or over nothing."""
    model = torchvision.models.resnet18(num_classes=NUM_CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return model, optimizer


def _thin(value: object) -> object:
    """`value` whose tensors hold one number each, shown in every place: 20 kB instead of 90 MB."""
    if isinstance(value, torch.Tensor):
        return torch.zeros(1, dtype=value.dtype).expand(value.shape) if value.dim() else value
    if isinstance(value, dict):
        return {key: _thin(item) for key, item in value.items()}
    return [_thin(item) for item in value] if isinstance(value, list) else value


def _checkpointer(folder: Path) -> Checkpointer:
    model, optimizer = _parts()
    config = Config(arch="resnet18", checkpoint_dir=str(folder), resume=True)
    worker = RankContext(torch.device("cpu"), rank=0, world_size=1)

    def save() -> dict:
        return {"model": _thin(model.state_dict()), "optimizer": _thin(optimizer.state_dict())}

    classes = [str(number) for number in range(NUM_CLASSES)]
    strategy = Strategy(
        config,
        worker,
        model=model,
        optimizer=optimizer,
        loaders=SimpleNamespace(train=SimpleNamespace(classes=classes)),
        criterion=torch.nn.CrossEntropyLoss(),
        step=None,
        layout=Layout(),
        state=TrainingState(sync=lambda: None, save=save),
    )
    return Checkpointer(strategy)


def seeds(folder: Path) -> list[bytes]:
    """What a run saves, and a pickle that is code."""
    checkpointer = _checkpointer(folder)
    sums = Meter(torch.device("cpu")).sums
    checkpointer.save("last.pt", {"epoch": 1, "step": 2, "best_acc1": 12.5, "train_sums": sums})
    return [(folder / "last.pt").read_bytes(), pickle.dumps({"model": Payload(), "about": {}})]


def inputs(found: list[bytes]) -> st.SearchStrategy[bytes]:
    whole = torch.load(io.BytesIO(found[0]), weights_only=True)
    changed = st.lists(st.tuples(PLACES, st.sampled_from([*ODD, "delete"])), min_size=1, max_size=2)
    of_pickle = edited([zipfile.ZipFile(io.BytesIO(found[0])).read(_pickle_in(found[0]))])
    return (
        st.builds(_with_values, st.just(whole), changed)
        | st.builds(_with_pickle, st.just(found[0]), of_pickle)
        | edited(found)
    )


def _paths(value: object, path: tuple = ()) -> list[tuple]:
    """Of everything in nested dictionaries and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [one for key, item in items for one in ((*path, key), *_paths(item, (*path, key)))]


def _with_values(whole: dict, changes: list[tuple]) -> bytes:
    """Saved again with other values in some places."""
    out = io.BytesIO()
    torch.save(whole, out)
    state = torch.load(io.BytesIO(out.getvalue()), weights_only=True)
    for place, value in changes:
        value = copy.copy(value) if isinstance(value, list | dict) else value
        paths = _paths(state) + [(key,) for key in state] * 5  # where training stands, as often as the weights
        if not paths:
            break
        *path, last = paths[place * len(paths) >> 16]
        holder = state
        for key in path:
            holder = holder[key]
        if isinstance(value, str) and value == "delete":
            del holder[last]
        else:
            holder[last] = value
    out = io.BytesIO()
    torch.save(state, out)
    return out.getvalue()


def _pickle_in(content: bytes) -> str:
    return next(name for name in zipfile.ZipFile(io.BytesIO(content)).namelist() if name.endswith("data.pkl"))


def _with_pickle(content: bytes, pickled: bytes) -> bytes:
    """The archive with another data.pkl, whose checksum is right."""
    out, name = io.BytesIO(), _pickle_in(content)
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, pickled if info.filename == name else old.read(info))
    return out.getvalue()


def attempt(content: bytes, folder: Path) -> str:
    (folder / "last.pt").write_bytes(content)
    checkpointer, (model, _) = _checkpointer(folder), _parts()
    meter = Meter(torch.device("cpu"))
    try:
        at, _ = checkpointer.resume(NUM_STEPS)
    except UserError as error:
        assert len(str(error)) < 1000, "a message of pages"
        return "refused"
    meter.sums.copy_(at["train_sums"])  # what engine.py does with it
    assert type(at["epoch"]) is int and at["epoch"] >= 0, f"epoch {at['epoch']!r} is loaded"
    assert type(at["step"]) is int and at["step"] >= 0, f"step {at['step']!r} is loaded"
    assert at["best_acc1"] >= 0, f"best_acc1 {at['best_acc1']!r} is loaded"
    assert all(torch.isfinite(each).all() for each in model.parameters()), "weights that are not finite are loaded"
    return "resumed"
