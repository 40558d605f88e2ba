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

    density, options   those of tamis.torch.attach. Trainer clips (max_grad_norm), scales and
                       accumulates as ever: gradients are the rank's own

    `state` is the SparseState. Beside each checkpoint every rank saves its own as tamis-rank<r>.pt,
    with its optimizer's moments, for Trainer saves those of rank 0; a run that is resumed from one
    takes it from there.
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
        self.state = attach(ddps[0], self.density, optimizer=parts["optimizer"], **self.options)
        saved = self._file(args, state)
        if state.global_step and saved.exists():  # Trainer has loaded the optimizer before
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
