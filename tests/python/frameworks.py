# SPDX-License-Identifier: MIT
"""Trains by the Trainers of others, as a user would; test_torch_frameworks.py starts the ranks.

    frameworks.py transformers|accelerate|lightning|hsdp[:wrapper]...
    frameworks.py transformers_resumed|accelerate_resumed|lightning_resumed...

A line for each says how many steps tamis made and whether the replicas are identical, or with which
words it was refused. `wrapper`: a DistributedOptimizer, on a model that is put into a DDP.
"""

import os
import sys
import tempfile

import torch

# What Lightning asks of torch's version, Debian's 1.13.0a0 is, but does not say.
if torch.__version__.startswith("1.13.0a0"):
    torch.__version__ = "1.13.1"

import tamis
import tamis.torch

STEPS = 50


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(20, 96), torch.nn.GELU(), torch.nn.Linear(96, 5)
        )

    def forward(self, x, labels=None):
        found = self.layers(x)
        if labels is None:
            return found
        return {"loss": torch.nn.functional.cross_entropy(found, labels), "logits": found}


class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(16 * 2 * STEPS, 20, generator=torch.Generator().manual_seed(2))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "labels": self.x[index, :5].argmax()}


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.003, betas=(0.0, 0.99))


def trainer_of(model, optimizer, callbacks, folder):
    import transformers

    cpu = "use_cpu" if hasattr(transformers.TrainingArguments, "use_cpu") else "no_cuda"
    args = transformers.TrainingArguments(
        folder, max_steps=STEPS, per_device_train_batch_size=16, report_to=[], save_steps=25,
        logging_steps=25, disable_tqdm=True, ddp_backend="gloo", **{cpu: True},
    )  # fmt: skip
    return transformers.Trainer(
        model, args, train_dataset=Data(), callbacks=callbacks, optimizers=(optimizer, None)
    )


def by_transformers(wrapper, folder):
    from tamis.transformers import SparseCallback

    model, callbacks = Model(), [SparseCallback(density=0.03)]
    optimizer = adamw(model)
    if wrapper:
        callbacks = []
        optimizer = tamis.torch.DistributedOptimizer(optimizer, model, reduce="step")
    trainer = trainer_of(model, optimizer, callbacks, folder)
    trainer.train()
    if trainer.args.max_grad_norm != 1.0 or callbacks[0].state.limits:
        raise RuntimeError("clipping is not Trainer's own any more")
    return model, callbacks[0].state


def shared_folder():
    """A folder, the same on all ranks."""
    return os.path.join(tempfile.gettempdir(), "tamis-run-" + os.environ["MASTER_PORT"])


def check_equal_bits(one, other):
    for a, b in zip(one.parameters(), other.parameters()):
        if not torch.equal(a, b):
            raise RuntimeError("the resumed run has other bits")


def by_transformers_resumed(wrapper, folder):
    """Twice: whole, and from the checkpoint of half of its steps, with the same bits."""
    from tamis.transformers import SparseCallback

    folder = shared_folder()
    models = []
    for checkpoint in (None, folder + "/checkpoint-25"):
        callback = SparseCallback(density=0.03)
        models.append(Model())
        trainer = trainer_of(models[-1], adamw(models[-1]), [callback], folder)
        trainer.train(resume_from_checkpoint=checkpoint)
    check_equal_bits(*models)
    return models[1], callback.state


def by_accelerate(wrapper, folder):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Model()
    optimizer = adamw(model)
    if wrapper:
        optimizer = tamis.torch.DistributedOptimizer(optimizer, model, reduce="step")
    ddp, prepared, loader = accelerator.prepare(
        model, optimizer, torch.utils.data.DataLoader(Data(), 16)
    )
    state = None if wrapper else tamis.torch.attach(ddp, density=0.03, optimizer=prepared)
    for batch in loader:
        prepared.zero_grad()
        accelerator.backward(ddp(**batch)["loss"])
        prepared.step()
    return model, state


def accelerated(batches, load, save):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = Model()
    loader = torch.utils.data.DataLoader(Data(), 16)
    ddp, optimizer, loader = accelerator.prepare(model, adamw(model), loader)
    state = tamis.torch.attach(ddp, density=0.03, optimizer=optimizer)
    accelerator.register_for_checkpointing(state.gathered())
    if load:
        accelerator.load_state(load)
    for number, batch in enumerate(loader):
        if number in batches:
            optimizer.zero_grad()
            accelerator.backward(ddp(**batch)["loss"])
            optimizer.step()
    if save:
        accelerator.save_state(save)
    return model, state


def by_accelerate_resumed(wrapper, folder):
    folder = shared_folder() + "-accelerate"
    whole, _ = accelerated(range(STEPS), None, None)
    accelerated(range(25), None, folder)
    model, state = accelerated(range(25, STEPS), folder, None)
    check_equal_bits(whole, model)
    return model, state


def by_hsdp(wrapper, folder):
    """The recipe of docs/python.md: FSDP inside a node, of one rank here, and tamis across nodes."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("across", "inside"))
    group, made = mesh["across"].get_group(), []

    def sparse_across(density):
        def hook(shard):
            if not made:
                layout = tamis.Layout([("shard", shard.numel())])
                made.append(tamis.Reducer(tamis.torch.carrier(group), layout, density=density))
            made[0].start(shard)
            made[0].wait()

        return hook

    model = Model()
    fully_shard(model, mesh=mesh["inside"])
    model.set_all_reduce_hook(sparse_across(0.03))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = Data()
    for step in range(STEPS):
        batch = [data[2 * (16 * step + i) + dist.get_rank()] for i in range(16)]
        x, labels = torch.stack([row["x"] for row in batch]), [row["labels"] for row in batch]
        optimizer.zero_grad()
        model(x, torch.stack(labels))["loss"].backward()
        optimizer.step()
    model.steps = made[0].stats()["steps"]
    whole = [parameter.full_tensor() for parameter in model.parameters()]
    return whole, model


def lightning_run(wrapper, folder, **options):
    """The Trainer, and the model that it is to train."""
    import lightning.pytorch as lightning

    from tamis.lightning import SparseCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, _):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            optimizer = adamw(self.model)
            if wrapper:
                return tamis.torch.DistributedOptimizer(optimizer, self.model, reduce="step")
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    callbacks = [] if wrapper else [SparseCallback(density=0.03)]
    trainer = lightning.Trainer(
        strategy="ddp", accelerator="cpu", devices=2, callbacks=callbacks, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        gradient_clip_val=None if wrapper else 1.0, default_root_dir=folder, **options,
    )  # fmt: skip
    return trainer, Module(), callbacks


def by_lightning(wrapper, folder):
    trainer, module, callbacks = lightning_run(wrapper, folder, max_steps=STEPS)
    trainer.fit(module, torch.utils.data.DataLoader(Data(), 16))
    return module.model, callbacks[0].state


def by_lightning_resumed(wrapper, folder):
    """Two epochs of 25 steps, whole and with a stop between."""
    path, models = shared_folder() + ".ckpt", []
    for epochs, load in ((2, None), (1, None), (2, path)):
        trainer, module, callbacks = lightning_run(
            wrapper, folder, max_epochs=epochs, limit_train_batches=25
        )
        trainer.fit(module, torch.utils.data.DataLoader(Data(), 16), ckpt_path=load)
        if epochs == 1:
            trainer.save_checkpoint(path)
        models.append(module.model)
    check_equal_bits(models[0], models[2])
    return models[2], callbacks[0].state


def main():
    for case in sys.argv[1:]:
        name, _, wrapper = case.partition(":")
        with tempfile.TemporaryDirectory() as folder:
            try:
                model, state = globals()["by_" + name](wrapper, folder)
            except (tamis.Error, RuntimeError, TypeError, ValueError) as error:
                print(f"\n{case}: refused: {error}", flush=True)
                continue
        same = tamis.torch.replicas_identical(model)
        print(f"\n{case}: {state.steps} steps, identical: {same}", flush=True)


if __name__ == "__main__":
    main()
