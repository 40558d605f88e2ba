# SPDX-License-Identifier: MIT
"""Recipe for Spack 1.0 and later, to be copied into packages/tamis of a repository of one's own
(`spack repo create`). It has been read by Python alone: no Spack has built it yet.

Meters of energy are no variant: all are always built, and NVML is loaded when it is asked for.
"""
from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Tamis(CMakePackage, CudaPackage):
    """Sparse gradient exchange for data-parallel training: ranks send only the largest entries of
    their accumulated gradients, and keep the rest for later steps."""

    # A release will have a URL, and a line here the SHA-256 of its tarball (packaging/release.sh).
    # There is none yet: give the tree, by `spack develop --path TREE tamis@0.1.0`.
    license("MIT")

    version("0.1.0")

    variant("shared", default=True, description="A shared library, not an archive")
    variant("mpi", default=True, description="Communicators over MPI")
    variant("ucx", default=False, description="Communicators over UCX")
    variant("openmp", default=True, description="Kernels with several threads")
    variant("nccl", default=False, when="+cuda", description="Communicators over NCCL")
    variant("python", default=False, description="The Python package")
    variant("tools", default=True, description="tamis_train, tamis_perf and other programs")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("xxhash")
    depends_on("mpi@3.1:", when="+mpi")
    depends_on("ucx@1.13:", when="+ucx")
    depends_on("cuda@12:", when="+cuda")
    depends_on("nccl@2.18:", when="+nccl")
    depends_on("python@3.9:", type=("build", "link", "run"), when="+python")
    depends_on("py-numpy", type="run", when="+python")
    depends_on("jansson", when="+tools")
    depends_on("openblas", when="+tools")
    depends_on("zlib-api", when="+tools")
    extends("python", when="+python")

    generator("ninja")

    def cmake_args(self):
        args = [
            self.define("TAMIS_TESTS", False),
            self.define_from_variant("BUILD_SHARED_LIBS", "shared"),
            self.define_from_variant("TAMIS_MPI", "mpi"),
            self.define_from_variant("TAMIS_UCX", "ucx"),
            self.define_from_variant("TAMIS_OPENMP", "openmp"),
            self.define_from_variant("TAMIS_CUDA", "cuda"),
            self.define("TAMIS_NCCL", self.spec.satisfies("+nccl")),
            self.define_from_variant("TAMIS_PYTHON", "python"),
            self.define_from_variant("TAMIS_BENCH", "tools"),
        ]
        if self.spec.satisfies("+mpi"):
            args.append(self.define("MPI_C_COMPILER", self.spec["mpi"].mpicc))
        if self.spec.satisfies("+cuda"):
            args.append(self.define("TAMIS_CUDA_ROOT", self.spec["cuda"].prefix))
            archs = self.spec.variants["cuda_arch"].value
            if "none" not in archs:
                args.append(self.define("CMAKE_CUDA_ARCHITECTURES", ";".join(archs)))
        if self.spec.satisfies("+nccl"):
            args.append(self.define("TAMIS_NCCL_ROOT", self.spec["nccl"].prefix))
        if self.spec.satisfies("+python"):
            args.append(self.define("Python3_EXECUTABLE", self.spec["python"].command.path))
            args.append(self.define("TAMIS_PYTHON_DIR", python_platlib))
        return args
