# SPDX-License-Identifier: MIT
"""Which parameters of a model are exchanged, and where their elements lie."""

import gc
from typing import AbstractSet, Any, Dict, Iterable, List, Tuple, Union

import torch

Parameters = Union[torch.nn.Module, "Shards", Iterable[Tuple[str, torch.Tensor]]]

DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def local(parameter: torch.Tensor) -> torch.Tensor:
    """The memory of a parameter on this rank: of one that is sharded (DTensor), its shard."""
    shard: torch.Tensor = getattr(parameter, "_local_tensor", parameter)
    return shard


def form(parameter: torch.Tensor) -> str:
    """What a residual depends on: it lies in the order of a parameter's elements in memory."""
    shard = local(parameter)
    return f"{parameter.dtype}, shape {tuple(parameter.shape)}, strides {shard.stride()}"


class Shards:
    """The parameters of a module that FSDP has sharded, the ranks that hold the same shards, and those
    that hold the other shards of this node."""

    def __init__(self, module: torch.nn.Module, group: Any, inside: Any) -> None:
        self.rows: List[Tuple[str, torch.Tensor]] = list(module.named_parameters())
        self.group, self.inside = group, inside


def collect(source: Parameters) -> List[Tuple[str, torch.Tensor]]:
    """Names and parameters, in order, of all that require a gradient and are not empty.

    Errors: TypeError, ValueError for parameters that cannot be exchanged.
    """
    sharded = isinstance(source, Shards)
    rows: List[Tuple[str, torch.Tensor]]
    if isinstance(source, Shards):
        rows = source.rows
    elif isinstance(source, torch.nn.Module):
        rows = _of_module(source)
    else:
        rows = list(source)
    if any(not isinstance(row, tuple) or len(row) != 2 for row in rows):
        raise TypeError(
            "parameters must be a module, or pairs of name and tensor: model.named_parameters(),"
            " not model.parameters()"
        )
    rows = [(name, p) for name, p in rows if p.requires_grad and local(p).numel()]
    if not rows:
        raise ValueError("no parameter has requires_grad, so nothing is exchanged")
    _refuse_repeats(rows)
    for name, parameter in rows:
        _check(name, local(parameter) if sharded else parameter)
    _check_devices(rows)
    return rows


def _of_module(module: torch.nn.Module) -> List[Tuple[str, torch.Tensor]]:
    sharded = ("FullyShardedDataParallel", "FSDPModule")
    for part in module.modules():
        if any(base.__name__ in sharded for base in type(part).__mro__):
            raise TypeError(
                "FSDP shards parameters and reduces gradients itself: write"
                " tamis.torch.attach(model, optimizer=optimizer) for fully_shard, or use"
                " DistributedDataParallel"
            )
        if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and part.sparse:
            raise TypeError(
                f"{part} has sparse gradients, which are not supported: make it with sparse=False"
            )
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        ignored = module.parameters_to_ignore
        return [row for row in module.module.named_parameters() if row[0] not in ignored]
    return list(module.named_parameters())


def _refuse_repeats(rows: List[Tuple[str, torch.Tensor]]) -> None:
    names: Dict[str, int] = {}
    seen: Dict[int, str] = {}
    for name, parameter in rows:
        if name in names:
            raise ValueError(f"two parameters are named {name!r}: names must differ")
        if id(parameter) in seen:
            raise ValueError(
                f"{name!r} and {seen[id(parameter)]!r} are the same parameter: pass it once"
            )
        names[name] = 1
        seen[id(parameter)] = name


def _check(name: str, p: torch.Tensor) -> None:
    if p.dtype not in DTYPES:
        raise TypeError(
            f"parameter {name!r} is {p.dtype}; gradients are exchanged as float32, float16 or"
            " bfloat16: convert the model, for example by model.float()"
        )
    if type(p).__name__ == "DTensor" or p.layout != torch.strided:
        raise TypeError(f"parameter {name!r} is sharded or sparse; it must be a plain tensor")
    if not is_dense(p):
        raise ValueError(
            f"parameter {name!r} has strides {tuple(p.stride())} for shape {tuple(p.shape)}, with"
            " holes or overlaps: make it contiguous"
        )


def _check_devices(rows: List[Tuple[str, torch.Tensor]]) -> None:
    first_name, first = rows[0]
    for name, parameter in rows:
        if parameter.device != first.device:
            raise ValueError(
                f"parameter {first_name!r} is on {first.device}, {name!r} on {parameter.device}:"
                " all must be on one device"
            )
    if first.device.type not in ("cpu", "cuda"):
        raise TypeError(f"parameters are on {first.device}; only cpu and cuda are supported")


WRAPPED = (
    "DistributedDataParallel wraps the same parameters and exchanges their gradients itself (as"
    " in the Trainer of transformers): write state ="
    " tamis.torch.attach(ddp, optimizer=optimizer), for Trainers callbacks=[SparseCallback()] of"
    " tamis.transformers or tamis.lightning, or leave DistributedDataParallel out"
)


def _is_ddp(found: Any) -> bool:
    """Whether it is a fully made DDP. By type(): objects that gc finds may fake isinstance."""
    ddp = torch.nn.parallel.DistributedDataParallel
    return issubclass(type(found), ddp) and "_modules" in vars(found)


def holds_ddp(source: Parameters) -> bool:
    return isinstance(source, torch.nn.Module) and any(map(_is_ddp, source.modules()))


def ddps_of(parameters: AbstractSet[int]) -> List[torch.nn.parallel.DistributedDataParallel]:
    """Every DistributedDataParallel of this process that has one of the parameters (ids)."""
    found = [item for item in gc.get_objects() if _is_ddp(item)]
    return [ddp for ddp in found if any(id(p) in parameters for p in ddp.parameters())]


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements are contiguous in some order of the axes (channels_last)."""
    expected = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape)):
        if extent == 1:
            continue
        if stride != expected:
            return False
        expected *= extent
    return True


def same_order(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of a shape have their elements in the same order in memory."""
    rows = zip(one.stride(), other.stride(), one.shape)
    return all(mine == theirs for mine, theirs, extent in rows if extent != 1)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in memory order, as DDP's buckets hold them. A view."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    return tensor.as_strided((tensor.numel(),), (1,))


def shaped(run: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A run of elements in memory order, with the shape and strides of `like`. A view."""
    return run.as_strided(like.shape, like.stride(), run.storage_offset())


def by_dtype(rows: List[Tuple[str, torch.Tensor]]) -> Dict[torch.dtype, List[Tuple[str, Any]]]:
    """Rows grouped by dtype, in the order in which dtypes first appear, the same on all ranks."""
    groups: Dict[torch.dtype, List[Tuple[str, Any]]] = {}
    for name, parameter in rows:
        groups.setdefault(parameter.dtype, []).append((name, parameter))
    return groups
