"""Stand-ins for what takes no tensor without data. Each demands of its tensors what the real one does: the device above
all."""

import contextlib
import copy
import importlib.metadata
import sys
import types

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import pipelining
from torch.testing._internal.distributed.fake_pg import FakeStore


class Bare(nn.Module):
    """For DistributedDataParallel and DataParallel: the module itself, and their demands on devices."""

    def __init__(self, module, device_ids=None, bucket_cap_mb=None, **options):
        super().__init__()
        self.module, self.device_ids = module, device_ids
        self.bucket_bytes_cap, self.require_forward_param_sync = int((bucket_cap_mb or 25) * 2**20), True
        homes = {parameter.device for parameter in module.parameters()}
        assert device_ids is None or homes == {*device_ids}, homes

    def forward(self, *inputs):
        return self.module(*inputs)

    def no_sync(self):
        return contextlib.nullcontext()

    def register_comm_hook(self, *_) -> None:
        pass

    def disable_allreduce(self) -> None:
        pass

    enable_allreduce = disable_allreduce


class BareApex(Bare):
    """It goes from address to address: memory must be in contiguous order."""

    def __init__(self, module, **options):
        super().__init__(module, **options)
        assert all(parameter.is_contiguous() for parameter in module.parameters()), "Apex would scramble gradients"


class BareStage:
    """Stands for PipelineStage: this rank's layers."""

    def __init__(self, submodule, index, num_stages, device, input_args=None, output_args=None):
        self.layers, self.index, self.num_stages, self.device = submodule, index, num_stages, device
        self.received, self.handed_on = input_args, output_args


class BareSchedule:
    """GPipe and 1F1B: micro-batches one after the other, and rows from nowhere for those that are sent."""

    def __init__(self, stage, num_microbatches, loss_fn, scale_grads=True):
        self.stage, self.num_microbatches, self.loss_fn = stage, num_microbatches, loss_fn

    def step(self, *inputs, target, losses):
        stage, outputs = self.stage, []
        assert bool(inputs) == (stage.index == 0)
        for n, part in enumerate(target.chunk(self.num_microbatches)):
            if inputs:
                rows = inputs[0].chunk(self.num_microbatches)[n]
            else:
                rows = torch.empty_like(stage.received, device=stage.device).requires_grad_()
            outputs.append(stage.layers(rows))
            made, reported = outputs[-1], stage.handed_on
            assert (made.dtype, made.shape) == (reported.dtype, reported.shape), (
                f"{made.dtype} {made.shape}, not {reported}"
            )
            if stage.index == stage.num_stages - 1:
                losses.append(self.loss_fn(outputs[-1], part))
                losses[-1].backward()
            else:
                torch.autograd.backward(outputs[-1], torch.empty_like(outputs[-1]))
        return torch.cat(outputs)


def horovod() -> types.ModuleType:
    """An optimizer that has nobody to wait for."""

    class Optimizer:
        """Of the class of the one that it is made of, as Horovod's is."""

        def __new__(cls, optimizer, named_parameters, compression):
            optimizer.set_backward_passes_per_step = lambda passes: None
            optimizer.skip_synchronize = contextlib.nullcontext
            optimizer._handles = {}
            return optimizer

    def allreduce(tensor, name=None, op=None):
        checked(tensor)
        return tensor.clone()

    module = types.ModuleType("horovod.torch")
    module.nccl_built = lambda: True
    module.init = module.shutdown = lambda: None
    module.broadcast_parameters = lambda state, root_rank: [checked(tensor) for tensor in state.values()]
    module.DistributedOptimizer, module.allreduce, module.Sum = Optimizer, allreduce, "sum"
    module.Compression = types.SimpleNamespace(none=None, fp16=None)
    return module


def apex() -> tuple[types.ModuleType, types.ModuleType]:
    """apex.amp, without its patches, and apex.parallel."""
    amp, parallel = types.ModuleType("apex.amp"), types.ModuleType("apex.parallel")
    amp.initialize = lambda net, optimizer, opt_level, verbosity: (net, optimizer)
    amp.scale_loss = lambda loss, optimizer: contextlib.nullcontext(loss)
    amp.state_dict = dict
    parallel.DistributedDataParallel = BareApex
    return amp, parallel


BARE = {
    nn.parallel.DistributedDataParallel: Bare,
    nn.DataParallel: Bare,
    pipelining.PipelineStage: BareStage,
    pipelining.Schedule1F1B: BareSchedule,
    pipelining.ScheduleGPipe: BareSchedule,
}


NO_STAND_IN = {
    "fsdp": "fully_shard reads its tensors (DataDependentOutputException: aten._local_scalar_dense)",
    "local_sgd": "new_subgroups ends the process under torch's fake group (segmentation fault)",
    "ddp_compile": "the compiler asks for a real GPU (BackendCompilerFailed)",
}
"""What cannot be made to run on fake GPUs, and the error that it gives."""


def put_bare(patch, script) -> None:
    """Also where a script has them in a table of its own, and among imports."""
    patch.setattr(nn, "DataParallel", BARE[nn.DataParallel])
    for name, value in list(vars(script).items()):
        if isinstance(value, dict):
            patch.setattr(script, name, {key: _bare(item) for key, item in value.items()})
        else:
            patch.setattr(script, name, _bare(value))
    amp, parallel = apex()
    whole = types.ModuleType("apex")
    whole.amp, whole.parallel = amp, parallel
    hvd = types.ModuleType("horovod")
    hvd.torch = horovod()
    modules = {"apex": whole, "apex.amp": amp, "apex.parallel": parallel, "horovod": hvd, "horovod.torch": hvd.torch}
    for name, module in modules.items():
        patch.setitem(sys.modules, name, module)
    patch.setattr(importlib.metadata, "version", lambda name: "stand-in")


def _bare(value):
    """Also for a class that a script derives from a library's."""
    if not isinstance(value, type):
        return value
    return next((BARE[kind] for kind in value.__mro__ if kind in BARE), value)


# --- tensors without data -----------------------------------------------------------------------------------------


def to(module, device=None, *, memory_format=None):
    """Stands for Module.to, which cannot swap such parameters."""
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                layout = {"memory_format": memory_format} if memory_format and tensor.dim() == 4 else {}
                moved = tensor.detach().to(device, **layout)
                tensors[name] = nn.Parameter(moved) if tensors is part._parameters else moved
    return module


def backward(tensors, grad_tensors=None, *_, **__) -> None:
    """Gradients for whatever the graph reaches."""
    roots = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    waiting, seen = [root.grad_fn for root in roots], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [after for after, _ in node.next_functions]
        if hasattr(node, "variable"):
            node.variable.grad = torch.empty_like(node.variable)


def fused_sgd(params, grads, momenta, *, is_first_step, found_inf=None, **_) -> None:
    """It goes from address to address, and from unwritten memory in its first step."""
    for group in zip(params, grads, *([momenta] if momenta else []), strict=True):
        assert len({(tensor.device, tensor.stride()) for tensor in group}) == 1, group
    assert found_inf is None or not is_first_step, "momentum of memory that nobody has written"


def checked(tensor: torch.Tensor) -> torch.Tensor:
    """NCCL takes dense tensors of GPUs only; gloo those of CPUs."""
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert tensor.device.type == expected, f"a collective of a tensor on {tensor.device}"
    assert tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
    return tensor


def deepcopy(module: nn.Module) -> nn.Module:
    """It would read the data of such parameters: a copy has them on `meta`."""
    memo = {}
    for tensor in (*module.parameters(), *module.buffers()):
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        memo[id(tensor)] = nn.Parameter(empty) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(module, memo)


class WithoutDriver(FakeTensorMode):
    """Asks no driver for anything, although torch.cuda.is_available() says that there is one."""

    avoid_device_init = True


def start_fake_group(start, rank: int, num_ranks: int) -> None:
    start(backend="fake", store=FakeStore(), rank=rank, world_size=num_ranks)


class Done:
    def wait(self) -> None:
        pass


def done(_) -> Done:
    return Done()
