# SPDX-License-Identifier: MIT
"""Update mode: an optimizer's rule, which the library takes over, and the step that it still makes.

    w   a parameter    lr, wd   as they stand in its param_group now
    g = gradient + wd w                                   Adam, SGD: weight decay is in the gradient
    x = the library's update of g: moments, residual, mean over ranks of what was chosen
    w = w - lr wd w                                                                           AdamW
    w = w - lr x
"""

from typing import TYPE_CHECKING, Any, Dict, List

import torch

if TYPE_CHECKING:
    from ._group import Place

# Other options of an optimizer that change the gradient or the step.
UNKNOWN = ("amsgrad", "maximize", "nesterov", "dampening", "differentiable")
# The options of each param_group that the library takes over.
TAKEN = {
    torch.optim.AdamW: ("betas", "eps"),
    torch.optim.Adam: ("betas", "eps"),
    torch.optim.SGD: ("momentum",),
}


def rule(optimizer: torch.optim.Optimizer, groups: List[Dict[str, Any]]) -> Dict[str, Any]:
    """The options with which the library does what the optimizer would.

    groups  the optimizer's param_groups, or saved ones
    Errors: TypeError, ValueError naming the group
    """
    names = TAKEN.get(type(optimizer))
    if names is None:
        raise TypeError(
            'reduce="update" knows the rules of torch.optim.AdamW, Adam, and SGD with momentum, not'
            f" that of {type(optimizer).__name__}{_nearest(optimizer)}. With reduce=\"gradient\" it"
            " steps itself, from sparse means"
        )
    for number, group in enumerate(groups):
        _check(f"param_groups[{number}]", group, groups[0], names)
    if "betas" not in names:
        return dict(rule="momentum", beta1=float(groups[0]["momentum"]))
    beta1, beta2 = groups[0]["betas"]
    return dict(
        rule="adam", beta1=float(beta1), beta2=float(beta2), epsilon=float(groups[0]["eps"])
    )


def _nearest(optimizer: torch.optim.Optimizer) -> str:
    """What to write instead.

    RMSprop is Adam without a first moment and without bias correction. Its step t is
    1 / sqrt(1 - alpha^t) times as long: with alpha 0.99 10 times at first, the same later.
    """
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        return (
            ", which divides moments among the ranks: in update mode each rank's are its own. Use"
            " the optimizer that it was given"
        )
    group = optimizer.param_groups[0]
    if type(optimizer) is not torch.optim.RMSprop or group["momentum"] or group["centered"]:
        return ""
    return (
        f": torch.optim.Adam with betas=(0.0, {group['alpha']:g}) makes the same steps but for its"
        " bias correction, which keeps the first ones from being longer"
    )


def _check(where: str, group: Dict[str, Any], first: Dict[str, Any], names: Any) -> None:
    for name in UNKNOWN:
        if group.get(name):
            raise ValueError(
                f'{where} has {name}={group[name]}, which reduce="update" does not support:'
                " create the optimizer without"
            )
    for name in names:
        if group[name] != first[name]:
            raise ValueError(
                f"{where} has {name} {group[name]}, param_groups[0] has {first[name]}: with"
                ' reduce="update" one rule serves all parameters, so all groups must have the same'
            )
    if group.get("momentum") == 0:
        raise ValueError(
            f"{where} is SGD without momentum, whose update is the gradient: leave"
            ' reduce="update" out'
        )


def _decoupled(optimizer: torch.optim.Optimizer, group: Dict[str, Any]) -> bool:
    """Whether weight decay is a separate step. Since torch 2.7 Adam has the option."""
    return type(optimizer) is torch.optim.AdamW or group.get("decoupled_weight_decay", False)


@torch.no_grad()
def step(optimizer: torch.optim.Optimizer) -> None:
    """Apply the updates, which are in the gradients."""
    for group in optimizer.param_groups:
        rate = float(group["lr"])
        keep = 1.0 - rate * group["weight_decay"] if _decoupled(optimizer, group) else 1.0
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            if keep != 1.0:
                parameter.mul_(keep)
            parameter.add_(parameter.grad, alpha=-rate)


class Hidden:
    """Takes the gradients away while the optimizer steps: nothing moves, but schedulers count it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._rows = [(p, p.grad) for group in optimizer.param_groups for p in group["params"]]
        for parameter, _ in self._rows:
            parameter.grad = None

    def restore(self) -> None:
        for parameter, gradient in self._rows:
            parameter.grad = gradient


class Taken:
    """An optimizer whose rule the library has taken over."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.rule = rule(optimizer, optimizer.param_groups)
        if optimizer.state:
            raise ValueError(
                "the optimizer has already made steps, and its moments would be lost: hand it over"
                " for update mode before its first step"
            )
        self._number = {
            id(parameter): number
            for number, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
        }

    def check(self) -> None:
        """Some schedulers change more than the learning rate."""
        now = rule(self.optimizer, self.optimizer.param_groups)
        if now != self.rule:
            raise RuntimeError(
                f"the param_groups now say {now}, but the library was given {self.rule}: in update"
                " mode these stay; a scheduler may change lr alone (OneCycleLR, CyclicLR:"
                " cycle_momentum=False)"
            )

    @torch.no_grad()
    def decay(self, place: "Place", scale: float) -> bool:
        """Add the gradient of weight decay to that of the loss, which is multiplied by `scale`.
        Returns whether anything was added."""
        added = False
        for segment, tensor in zip(place.segments, place.tensors):
            parameter = place.group.parameters[segment]
            number = self._number.get(id(parameter))
            if number is None:
                continue
            group = self.optimizer.param_groups[number]
            if group["weight_decay"] and not _decoupled(self.optimizer, group):
                # A tensor of another shape is a flat view of the gradient of the parameter.
                gradient = tensor if tensor.shape == parameter.shape else parameter.grad
                assert gradient is not None
                gradient.add_(parameter, alpha=scale * group["weight_decay"])
                added = True
        return added

    def step(self) -> None:
        """Apply the updates, which are in the gradients."""
        self.check()
        step(self.optimizer)
