# SPDX-License-Identifier: MIT
#
# For 64-bit Arm, on another machine: Debian's gcc-aarch64-linux-gnu, with its C library; programs of
# the build run under qemu-user. Other libraries are found where PKG_CONFIG_LIBDIR and
# PKG_CONFIG_SYSROOT_DIR say (tests/arm64.sh).
#
#     cmake -S . -B build/arm64 --toolchain cmake/aarch64.cmake
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++) # need not be there: without it there are fewer tests
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu $ENV{PKG_CONFIG_SYSROOT_DIR})
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64;-L;/usr/aarch64-linux-gnu)
