#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Linear regression on several processes with NumPy alone: no torch.

    mpirun -np 4 python3 examples/numpy_regression.py

Each rank has its own samples of one unknown linear function; 10 % of the gradient's entries travel
per step.
"""

import sys

import numpy as np

import tamis

LENGTH, SAMPLES, STEPS, RATE = 1000, 4000, 400, 0.1

comm = tamis.comm()
random = np.random.default_rng([7, comm.rank])
hidden = np.random.default_rng(7).standard_normal(LENGTH).astype(np.float32)
inputs = random.standard_normal((SAMPLES, LENGTH), dtype=np.float32)
outputs = inputs @ hidden

weights = np.zeros(LENGTH, dtype=np.float32)
tamis.check_equal(comm, weights)  # with other start values replicas would never agree
reducer = tamis.Reducer(comm, tamis.Layout([("weights", LENGTH)]), density=0.1)
for step in range(STEPS):
    gradient = inputs.T @ (inputs @ weights - outputs) / SAMPLES
    reducer.start(gradient)
    reducer.wait()  # gradient: the mean of the chosen entries, zero elsewhere
    weights -= RATE * gradient

error = np.linalg.norm(weights - hidden) / np.linalg.norm(hidden)
if comm.rank == 0:
    print(f"{comm.nranks} ranks over {comm.transport}: relative error {error:.2e}")
sys.exit(0 if error < 1e-3 else 1)
