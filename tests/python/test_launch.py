# SPDX-License-Identifier: MIT
"""Which transport under which launcher, and that a launcher that does not fit is told."""

import logging

import pytest

import tamis
from tamis import launch, launcher

import jobs
from jobs import needs_mpi, say, say_error

VARIABLES = (
    "RANK WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID OMPI_COMM_WORLD_SIZE PMI_SIZE"
    " PMI_RANK PMIX_RANK SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_NTASKS TAMIS_TRANSPORT"
).split()


@pytest.fixture
def env(monkeypatch):
    """Sets exactly the variables given, of those that launchers set."""

    def set_only(**values):
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))

    set_only()
    return set_only


# --- whole jobs


def test_a_single_process_is_local():
    job = jobs.alone(say())
    assert (job.status, job.lines) == (0, ["local 0 1"]), job


@needs_mpi
def test_mpirun_takes_mpi():
    job = jobs.mpirun(2, say())
    assert (job.status, job.lines) == (0, ["mpi 0 2", "mpi 1 2"]), job


# Each process is a job of Open MPI by itself, and two jobs that begin in one TMPDIR may fail.
OWN_FOLDER = "import os, tempfile\nos.environ['TMPDIR'] = tempfile.mkdtemp()\n"


@needs_mpi
def test_mpi_under_env_init_is_refused_on_all_ranks(tmp_path):
    job = jobs.env_init(2, OWN_FOLDER + say_error('"mpi"'), folder=tmp_path)
    assert len(job.lines) == 2, job
    for line in job.lines:
        assert "WORLD_SIZE=2, but the communicator over mpi has 1 rank" in line
        assert "mpirun -np 2 python3 job.py" in line


@needs_mpi
def test_variables_that_contradict_mpirun_are_refused_on_all_ranks():
    job = jobs.mpirun(2, say_error(), RANK=0, WORLD_SIZE=3)
    assert len(job.lines) == 2, job
    for line in job.lines:
        assert "WORLD_SIZE=3 but OMPI_COMM_WORLD_SIZE=2" in line


def test_an_unknown_setting_is_refused_with_the_values():
    job = jobs.alone(say_error(), TAMIS_TRANSPORT="tcp")
    assert "TAMIS_TRANSPORT=tcp" in job.out, job
    assert all(name in job.out for name in launch.TRANSPORTS), job


def test_a_setting_chooses():
    job = jobs.alone(say_error(), TAMIS_TRANSPORT="nccl")
    assert tamis.nccl_module() or "NCCL was requested" in job.out, job


@needs_mpi
def test_mpi4py_shares_mpi():
    pytest.importorskip("mpi4py")
    script = "from mpi4py import MPI\n" + say() + "print(tamis._core.mpi_state())\n"
    job = jobs.mpirun(2, script)
    assert (job.status, job.lines) == (0, ["foreign"] * 2 + ["mpi 0 2", "mpi 1 2"]), job


# --- the choice, by the environment alone


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"])
def test_variables_of_mpi_take_mpi(env, monkeypatch, variable):
    monkeypatch.setattr(launch, "mpi_module", lambda: "/a/module")
    env(**{variable: 1})
    assert launch.choose() == ("mpi", f"{variable} is set")


def test_mpirun_inside_a_slurm_step_counts_as_mpirun(env):
    env(OMPI_COMM_WORLD_SIZE=8, SLURM_STEP_NUM_TASKS=2, SLURM_PROCID=0, PMI_SIZE=2)
    assert launcher.announced() == {"OMPI_COMM_WORLD_SIZE": 8}


def test_srun_without_mpi_is_refused(env):
    env(SLURM_STEP_NUM_TASKS=4, SLURM_PROCID=1)
    with pytest.raises(tamis.Error, match="SLURM_STEP_NUM_TASKS=4.*srun --mpi=pmix -n 4"):
        tamis.comm()


@pytest.mark.parametrize("transport", launch.TRANSPORTS)
def test_two_copies_that_srun_started_without_mpi_do_not_train(transport, tmp_path):
    """As plain srun leaves them: numbers of Slurm's, and nothing of an MPI."""
    script = "import tamis\ntamis.comm()\nprint('trains', flush=True)\n"
    for rank in range(2):
        job = jobs.alone(
            script,
            TAMIS_TRANSPORT=transport,
            **{"SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0, "SLURM_NTASKS": 2, "SLURM_NPROCS": 2},
            **{"SLURM_STEP_NUM_TASKS": 2, "SLURM_PROCID": rank, "SLURM_LOCALID": rank},
        )
        assert job.status == 1 and "trains" not in job.out, job
        if transport in ("auto", "local"):
            assert "SLURM_STEP_NUM_TASKS=2, but the communicator over local has 1 rank" in job.err
            assert "srun --mpi=pmix -n 2" in job.err, job


def test_an_allocation_without_srun_is_one_process(env):
    env(SLURM_NTASKS=4)
    assert tamis.comm().nranks == 1


def test_local_under_a_launcher_is_refused(env):
    env(RANK=1, WORLD_SIZE=2)
    with pytest.raises(tamis.Error, match="WORLD_SIZE=2.*over local has 1 rank.*mpirun -np 2"):
        tamis.comm("local")


def test_a_variable_that_is_no_number_is_named(env):
    env(RANK=0, WORLD_SIZE="four")
    with pytest.raises(tamis.Error, match="WORLD_SIZE=four is not a number"):
        tamis.comm("local")


def test_an_unknown_transport_is_refused_with_the_names(env):
    with pytest.raises(tamis.Error, match="tcp.*auto, mpi, ucx, torch, nccl, local"):
        tamis.comm("tcp")


def test_the_choice_is_logged_with_its_reason(env, caplog):
    with caplog.at_level(logging.INFO, logger="tamis"):
        tamis.comm()
    assert "transport local, rank 0 of 1: no launcher was found" in caplog.text


@pytest.mark.parametrize("timeout_s", [0, -1, 1e9, float("nan")])
def test_a_deadline_out_of_range_is_refused(env, timeout_s):
    with pytest.raises(tamis.Error, match="timeout_s"):
        tamis.comm(timeout_s=timeout_s)


# --- what is missing


def test_a_build_without_mpi_says_what_to_install(env, monkeypatch):
    monkeypatch.setattr(launch, "mpi_module", lambda: None)
    with pytest.raises(tamis.Error, match="libopenmpi-dev") as caught:
        tamis.comm("mpi")
    assert caught.value.status == "TAMIS_E_UNSUPPORTED"
    assert caught.value.remedy in str(caught.value)


def test_a_module_that_cannot_be_loaded_is_named(env, monkeypatch, tmp_path):
    module = tmp_path / "_mpi.so"
    module.write_bytes(b"not a shared object")
    monkeypatch.setattr(launch, "mpi_module", lambda: str(module))
    with pytest.raises(tamis.Error, match=str(module)):
        tamis.comm("mpi")


def test_torch_carries_where_mpi_was_not_built(env, monkeypatch):
    monkeypatch.setattr(launch, "mpi_module", lambda: None)
    monkeypatch.setattr(launcher, "torch_initialised", lambda: True)
    env(OMPI_COMM_WORLD_SIZE=2)
    assert launch.choose().transport == jobs.CHOSEN
