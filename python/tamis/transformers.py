# SPDX-License-Identifier: MIT
"""Sparse exchange for the Trainer of transformers.

    trainer = transformers.Trainer(model, args, ..., callbacks=[SparseCallback(density=0.03)])
"""

import pathlib
from typing import TYPE_CHECKING, Any, Dict, Optional

import torch
from transformers import TrainerCallback

from .torch import SparseState, attach
from .torch._parameters import ddps_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .torch._options import StateOptions


class SparseCallback(TrainerCallback):
    """Attaches to the DistributedDataParallel that Trainer makes, with Trainer's optimizer.

    density, options   those of tamis.torch.attach. clip_norm is Trainer's max_grad_norm, which
                       Trainer then leaves alone: in update mode it would clip steps

    `state` is the SparseState. Beside each checkpoint every rank saves its own as tamis-rank<r>.pt,
    and a run that is resumed from one takes it from there.
    """

    def __init__(self, density: float = 0.01, **options: "Unpack[StateOptions]") -> None:
        self.density = density
        self.options: Dict[str, Any] = dict(options)
        self.state: Optional[SparseState] = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if args.world_size == 1:
            return
        known = frozenset(id(parameter) for parameter in parts["model"].parameters())
        ddps = ddps_of(known)
        if len(ddps) != 1:
            raise RuntimeError(
                f"Trainer put the model into {len(ddps)} DistributedDataParallel: tamis exchanges"
                " in place of one; start with torchrun, without FSDP and DeepSpeed"
            )
        options = dict(self.options)
        if args.max_grad_norm:
            options.setdefault("clip_norm", args.max_grad_norm)
            args.max_grad_norm = 0
        self.state = attach(ddps[0], self.density, optimizer=parts["optimizer"], **options)
        if self.state._attached is not None:
            self.state._attached.by_value = True  # Trainer clips to infinity, to log the norm
        saved = self._file(args, state)
        if state.global_step and saved.exists():
            self.state.load_state_dict(torch.load(saved))

    def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.state is not None:
            saved = self._file(args, state)
            saved.parent.mkdir(parents=True, exist_ok=True)
            torch.save(self.state.state_dict(), saved)

    def on_log(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.state is not None and parts.get("logs") is not None:
            parts["logs"].update(self.state.scalars())

    def _file(self, args: Any, state: Any) -> pathlib.Path:
        folder = pathlib.Path(args.output_dir, f"checkpoint-{state.global_step}")
        return folder / f"tamis-rank{args.process_index}.pt"
