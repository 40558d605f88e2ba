# SPDX-License-Identifier: MIT
"""Sparse exchange for the Trainer of Lightning.

    Trainer(strategy="ddp", devices=4, callbacks=[SparseCallback()])

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

    from .torch._options import AttachOptions


class SparseCallback(Callback):
    """Attaches to the DistributedDataParallel that the strategy makes, with the optimizers.

    density, options   those of tamis.torch.attach. The Trainer clips (gradient_clip_val), scales and
                       accumulates as ever: gradients are the rank's own

    `state` is the SparseState. Checkpoints of Lightning, which rank 0 writes, hold that of all ranks,
    gathered; a run that is resumed from one, by as many ranks or others, takes it from there.
    """

    def __init__(self, density: Optional[float] = None, **options: "Unpack[AttachOptions]") -> None:
        self.density = density
        self.options: Dict[str, Any] = dict(options)
        self.state: Optional[SparseState] = None
        self._saved: Dict[str, Any] = {}

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
        if self._saved:  # Lightning has loaded the optimizers before
            self.state.load_state_dict(self._saved)
            self._saved = {}

    def state_dict(self) -> Dict[str, Any]:
        return {} if self.state is None else self.state.gathered().state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self._saved = state_dict

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if self.state is not None and trainer.logger is not None:
            if trainer.global_step % trainer.log_every_n_steps == 0 and trainer.is_global_zero:
                trainer.logger.log_metrics(self.state.scalars(), step=trainer.global_step)
