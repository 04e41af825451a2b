"""A CUDA that is not there and knows what comes before what: streams, events and copies, over tensors without data.

    order = Order()
    put_cuda(monkeypatch, order, num_gpus=2)     # after see_gpus of tests/fake_gpus.py
    with Ordered(order): ...                     # operations of torch

Every stream, and the host, has a vector clock (Mattern, 1989): what of each other one is known to have ended. A kernel
comes after what its stream was given before, after what its stream waited for, and after what the host knew when it
asked. Each operation of torch reads and writes storages on the current stream of its device. Disordered is raised where

- an operation reads what another stream may not have written yet, or writes what another may still read or write;
- memory goes back to its stream while another stream, of which no record_stream told, may still use it;
- a stream waits for an event that nobody has recorded, or a time is asked of events that the GPUs may not have reached,
  or of two GPUs;
- the host waits for a GPU between Order.forbid_waits and Order.allow_waits: synchronize, or a copy to the host.

A copy between GPUs is a kernel of the source's stream, before and after which the target's stream is waited for, and
waits, as in torch (aten/src/ATen/native/cuda/Copy.cu). A copy from page-locked memory returns before it is done.

What this cannot see: the backward pass, which fake GPUs do not run (its stand-in makes gradients on the current
stream); DataParallel's replicas; what libraries' own streams do (NCCL, nvJPEG, CUDA graphs, DDP's buckets); threads
that really run beside each other; kernels that read outside of their tensors; values; and time. That a test passes says
that the suite's own waits are enough by CUDA's rules as they are written above, and not that a GPU keeps them.
"""

import contextlib
import itertools
import weakref
from collections import defaultdict

import torch
from stand_ins import WithoutDriver
from torch.utils._pytree import tree_leaves

HOST = "the host"
TO, COPY = torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default


class Disordered(AssertionError):
    pass


class Storage:
    """Who used the memory of some tensors: by stream, its last moments that read and that wrote."""

    def __init__(self, home, what: str):
        self.home, self.what, self.kept = home, what, set()
        self.read: dict = {}
        self.written: dict = {}


class Order:
    """The clocks of all streams and of the host, and who used which storage when."""

    def __init__(self):
        self.clocks: dict = defaultdict(lambda: defaultdict(int))
        self.storages: dict[int, Storage] = {}
        self.default: dict[int, Stream] = {}
        self.current: dict[int, Stream] = {}
        self.pinned: set[int] = set()
        self.waits_forbidden = False
        self.num_kernels = self.num_waits = 0
        self.numbers = itertools.count()
        self.failures: list[str] = []
        """What was found where memory went back, which cannot raise there."""

    def stream(self, device) -> "Stream":
        """The current stream of a GPU."""
        index = torch.device(device).index or 0
        if index not in self.current:
            self.current[index] = self.default[index] = Stream(torch.device("cuda", index), self)
        return self.current[index]

    def learn(self, who, clock: dict) -> None:
        """From here on `who` comes after all that `clock` knows."""
        for other, moment in clock.items():
            self.clocks[who][other] = max(self.clocks[who][other], moment)

    def host_waits(self, stream: "Stream", why: str) -> None:
        self.num_waits += 1
        if self.waits_forbidden:
            raise Disordered(f"the host waits for {stream} in a timed window: {why}")
        self.learn(HOST, self.clocks[stream])

    def forbid_waits(self) -> None:
        self.waits_forbidden = True

    def allow_waits(self) -> None:
        self.waits_forbidden = False

    def assert_idle(self, knows=HOST) -> None:
        """All streams have done all that they were given, as far as `knows` can tell: the host, or an event's clock."""
        known = self.clocks[HOST] if knows is HOST else knows
        for stream in [who for who in self.clocks if who is not HOST]:
            if known[stream] < self.clocks[stream][stream]:
                raise Disordered(f"{stream} may not be done")

    def storage_of(self, tensor: torch.Tensor, maker) -> Storage:
        memory = tensor.untyped_storage()
        key = memory._cdata
        if key not in self.storages:
            made = Storage(maker, f"{tuple(tensor.shape)} on {tensor.device}")
            self.storages[key] = made

            def ended() -> None:
                self.pinned.discard(key)
                self.free(self.storages.pop(key))

            weakref.finalize(memory, ended)
        return self.storages[key]

    def free(self, storage: Storage) -> None:
        if storage.home is HOST:  # torch's pool of page-locked memory keeps what a copy still reads
            return
        for users in (storage.read, storage.written):
            for who, moment in users.items():
                if who not in (storage.home, HOST, *storage.kept) and self.clocks[storage.home][who] < moment:
                    self.failures.append(f"{storage.what} goes back to {storage.home}, and {who} may still use it")

    def run(self, who, reads, writes) -> None:
        """An operation of a stream or of the host on these storages."""
        if who is not HOST:
            self.learn(who, self.clocks[HOST])
            self.num_kernels += 1
        clock = self.clocks[who]
        for storage in reads:
            self._after(who, storage.written, storage, "reads", "written")
        for storage in writes:
            self._after(who, storage.written, storage, "writes", "written")
            self._after(who, storage.read, storage, "writes", "read")
        clock[who] += 1
        for storage in reads:
            storage.read[who] = clock[who]
        for storage in writes:
            storage.written[who] = clock[who]
        if self.failures:
            raise Disordered(self.failures[0])

    def _after(self, who, users: dict, storage: Storage, does: str, done: str) -> None:
        for other, moment in users.items():
            if other is not who and self.clocks[who][other] < moment:
                raise Disordered(f"{who} {does} {storage.what}, which {other} may not have {done} yet")


class Stream:
    """Stands for torch.cuda.Stream."""

    def __init__(self, device, order: Order):
        self.device, self.order = torch.device(device), order
        self.number = next(order.numbers)
        order.clocks[self]  # known from here on

    def __repr__(self) -> str:
        return f"stream {self.number} of {self.device}"

    def wait_stream(self, other: "Stream") -> None:
        self.order.learn(self, self.order.clocks[other])

    def record_event(self) -> "Event":
        event = Event(self.order)
        event.record(self)
        return event

    def wait_event(self, event: "Event") -> None:
        if event.clock is None:
            raise Disordered(f"{self} waits for an event that nobody has recorded")
        self.order.learn(self, event.clock)

    def synchronize(self) -> None:
        self.order.host_waits(self, "Stream.synchronize")


class Event:
    """Stands for torch.cuda.Event."""

    def __init__(self, order: Order, enable_timing: bool = False):
        self.order, self.timed, self.clock, self.stream = order, enable_timing, None, None

    def record(self, stream: Stream | None = None) -> None:
        self.stream = stream or self.order.stream(torch.cuda.current_device())
        self.order.learn(self.stream, self.order.clocks[HOST])
        self.clock = defaultdict(int, self.order.clocks[self.stream])

    def elapsed_time(self, other: "Event") -> float:
        for event in (self, other):
            if event.clock is None or not event.timed:
                raise Disordered("a time between events that are not recorded, or have none")
            if event.clock[event.stream] > self.order.clocks[HOST][event.stream]:
                raise Disordered(f"a time of an event that {event.stream} may not have reached")
        if self.stream.device != other.stream.device:
            raise Disordered("a time between events of two GPUs")
        return 1.0


def put_cuda(patch, order: Order, num_gpus: int) -> None:
    """Have torch.cuda be this one, and keep what see_gpus tells of the machine."""
    used: list[int] = [0]

    @contextlib.contextmanager
    def on(stream: Stream):
        index = stream.device.index
        before = order.stream(stream.device)
        order.current[index] = stream
        yield
        order.current[index] = before

    def synchronize(device=None) -> None:
        index = torch.device("cuda", device).index if isinstance(device, int) else torch.device(device).index
        for stream in [who for who in order.clocks if isinstance(who, Stream) and who.device.index == index]:
            order.host_waits(stream, "torch.cuda.synchronize")

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        pinned = tensor.clone()
        order.pinned.add(pinned.untyped_storage()._cdata)
        return pinned

    def record_stream(tensor: torch.Tensor, stream: Stream) -> None:
        assert stream.device == tensor.device
        order.storage_of(tensor, stream).kept.add(stream)

    reported = {
        "Stream": lambda device: Stream(device, order),
        "Event": lambda enable_timing=False: Event(order, enable_timing),
        "current_stream": lambda device=None: order.stream(used[0] if device is None else device),
        "stream": on,
        "synchronize": synchronize,
        "set_device": lambda device: used.__setitem__(0, torch.device(device).index),
        "current_device": lambda: used[0],
        "memory_reserved": lambda index: int(index < num_gpus),
        "reset_peak_memory_stats": lambda index: None,
    }
    for name, value in reported.items():
        patch.setattr(torch.cuda, name, value)
    patch.setattr(torch.Tensor, "pin_memory", pin_memory)
    patch.setattr(torch.Tensor, "record_stream", record_stream)


class Ordered(WithoutDriver):
    """Tensors without data, whose operations are put in order."""

    def __init__(self, order: Order):
        super().__init__(allow_non_fake_inputs=True)
        self.order, self.depth = order, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.depth += 1
        try:
            made = super().__torch_dispatch__(function, types, args, kwargs)
        finally:
            self.depth -= 1
        if self.depth:  # a part of how such tensors are made, which is no operation of a GPU's
            return made
        if isinstance(function, torch._ops.OpOverload) and not function.is_view:
            self._put_in_order(function, args, kwargs, made)
        return made

    def _put_in_order(self, function, args, kwargs, made) -> None:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        results = [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        written = [
            leaf
            for place, argument in enumerate(function._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
            for leaf in tree_leaves(args[place] if place < len(args) else kwargs.get(argument.name))
            if isinstance(leaf, torch.Tensor)
        ]
        if any(tensor.device.type == "meta" for tensor in (*given, *results)):
            return
        if function in (TO, COPY):
            source, target = (args[1], args[0]) if function is COPY else (args[0], made)
            if source.device != target.device:
                self._copy(source, target, bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False)))
                return
        devices = {tensor.device for tensor in (*results, *given) if tensor.device.type == "cuda"}
        who = self.order.stream(max(devices, key=str)) if devices else HOST
        new = [tensor for tensor in results if tensor.untyped_storage()._cdata not in self.order.storages]
        storages = {id(tensor): self.order.storage_of(tensor, who) for tensor in (*given, *results)}
        fills = not function.__name__.startswith(("empty", "new_empty"))
        self.order.run(
            who,
            [storages[id(tensor)] for tensor in given],
            [storages[id(tensor)] for tensor in (*written, *(new if fills else ()))],
        )

    def _copy(self, source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> None:
        order = self.order
        on_gpus = [tensor for tensor in (source, target) if tensor.device.type == "cuda"]
        who = order.stream(on_gpus[0].device)
        there = order.stream(target.device) if target.device.type == "cuda" else HOST
        if len(on_gpus) == 2:
            who.wait_stream(there)
        order.run(who, [order.storage_of(source, HOST)], [order.storage_of(target, there)])
        if len(on_gpus) == 2:
            there.wait_stream(who)
        pinned = source.untyped_storage()._cdata in order.pinned
        if there is HOST or (source.device.type == "cpu" and not (non_blocking and pinned)):
            order.host_waits(who, "a copy from or to memory that is not page-locked")
