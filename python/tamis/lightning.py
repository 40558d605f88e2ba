# SPDX-License-Identifier: MIT
"""Sparse exchange for the Trainer of Lightning.

    Trainer(strategy="ddp", devices=4, callbacks=[SparseCallback(density=0.03)])

Lightning's own ddp_comm_hook and ddp_comm_state are registered on CUDA devices only.
"""

from typing import TYPE_CHECKING, Any, Dict, Optional

from torch.nn.parallel import DistributedDataParallel

from .torch import SparseState, attach

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback  # type: ignore[assignment]

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .torch._options import StateOptions


class SparseCallback(Callback):
    """Attaches to the DistributedDataParallel that the strategy makes, with the one optimizer.

    density, options   those of tamis.torch.attach. clip_norm is the Trainer's gradient_clip_val,
                       which the Trainer then leaves alone: in update mode it would clip steps

    `state` is the SparseState. A checkpoint of Lightning, which rank 0 writes, does not hold it:
    every rank saves state.state_dict() itself.
    """

    def __init__(self, density: float = 0.01, **options: "Unpack[StateOptions]") -> None:
        self.density = density
        self.options: Dict[str, Any] = dict(options)
        self.state: Optional[SparseState] = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        ddp = trainer.strategy.model
        if trainer.world_size == 1:
            return
        if not isinstance(ddp, DistributedDataParallel) or len(trainer.optimizers) != 1:
            raise RuntimeError(
                f"the strategy {type(trainer.strategy).__name__} has {len(trainer.optimizers)}"
                f" optimizers and a {type(ddp).__name__}: tamis exchanges in place of one"
                ' DistributedDataParallel with one optimizer; write strategy="ddp"'
            )
        options = dict(self.options)
        if trainer.gradient_clip_val:
            if str(trainer.gradient_clip_algorithm or "norm").rsplit(".")[-1].lower() != "norm":
                raise RuntimeError("tamis clips by norm: write gradient_clip_algorithm='norm'")
            options.setdefault("clip_norm", trainer.gradient_clip_val)
            trainer.gradient_clip_val = None
        self.state = attach(ddp, self.density, optimizer=trainer.optimizers[0], **options)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if self.state is not None and trainer.logger is not None:
            if trainer.global_step % trainer.log_every_n_steps == 0 and trainer.is_global_zero:
                trainer.logger.log_metrics(self.state.scalars(), step=trainer.global_step)
