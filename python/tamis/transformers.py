# SPDX-License-Identifier: MIT
"""Sparse exchange for the Trainer of transformers.

    trainer = transformers.Trainer(model, args, ..., callbacks=[SparseCallback()])
"""

import pathlib
import warnings
from typing import TYPE_CHECKING, Any, Dict, Optional

from transformers import TrainerCallback

from .torch import SparseState, attach
from .torch._parameters import ddps_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .torch._options import AttachOptions


class SparseCallback(TrainerCallback):
    """Attaches to the DistributedDataParallel that Trainer makes, with Trainer's optimizer.

    density, options   those of tamis.torch.attach. Trainer clips (max_grad_norm), scales and
                       accumulates as ever: gradients are the rank's own

    `state` is the SparseState. Beside each checkpoint every rank saves its own as tamis-rank<r>.pt,
    with its optimizer's moments, for Trainer saves those of rank 0; a run that is resumed from one,
    by as many ranks or others, takes it from there.
    """

    def __init__(self, density: Optional[float] = None, **options: "Unpack[AttachOptions]") -> None:
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
        if state.global_step:  # Trainer has loaded the optimizer before
            self._resume(self._folder(args, state))

    def _resume(self, folder: pathlib.Path) -> None:
        assert self.state is not None
        try:
            self.state.load(folder)
        except FileNotFoundError as error:
            if any(folder.glob("tamis-rank*.pt")):
                raise
            warnings.warn(f"{error}: a dense run's? Its residual begins at zero", RuntimeWarning)

    def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.state is not None:
            self.state.save(self._folder(args, state))

    def on_log(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        if self.state is not None and parts.get("logs") is not None:
            parts["logs"].update(self.state.scalars())

    def _folder(self, args: Any, state: Any) -> pathlib.Path:
        return pathlib.Path(args.output_dir, f"checkpoint-{state.global_step}")
