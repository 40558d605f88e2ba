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
    """Attaches to the DistributedDataParallel that the strategy makes, with the optimizers.

    density, options   those of tamis.torch.attach. The Trainer clips (gradient_clip_val), scales and
                       accumulates as ever: gradients are the rank's own

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
        if not isinstance(ddp, DistributedDataParallel):
            raise RuntimeError(
                f"the strategy {type(trainer.strategy).__name__} has a {type(ddp).__name__}: tamis"
                ' exchanges in place of one DistributedDataParallel; write strategy="ddp"'
            )
        optimizers = list(trainer.optimizers)
        self.state = attach(ddp, self.density, optimizer=optimizers, **self.options)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if self.state is not None and trainer.logger is not None:
            if trainer.global_step % trainer.log_every_n_steps == 0 and trainer.is_global_zero:
                trainer.logger.log_metrics(self.state.scalars(), step=trainer.global_step)
