# SPDX-License-Identifier: MIT
#
# What is built. Every optional part is AUTO, ON or OFF; AUTO says what it decided and why.

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()

option(BUILD_SHARED_LIBS "Build libtamis as a shared library" ON)
option(TAMIS_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TAMIS_BENCH "Build tamis_train, tamis_perf and tamis_info" ${PROJECT_IS_TOP_LEVEL})
option(TAMIS_WERROR "Treat compiler warnings as errors" OFF)

foreach(part MPI OPENMP CUDA NCCL PYTHON)
    set(TAMIS_${part} AUTO CACHE STRING "AUTO, ON or OFF")
    set_property(CACHE TAMIS_${part} PROPERTY STRINGS AUTO ON OFF)
    if(NOT TAMIS_${part} MATCHES "^(AUTO|ON|OFF)$")
        message(FATAL_ERROR "TAMIS_${part}=${TAMIS_${part}} is none of AUTO, ON, OFF.")
    endif()
endforeach()

# tam_decide(<part> <found> <why it is missing>): sets TAM_HAVE_<part>.
function(tam_decide part found missing)
    if(found)
        message(STATUS "${part}: on (TAMIS_${part}=${TAMIS_${part}}, found)")
        set(TAM_HAVE_${part} ON PARENT_SCOPE)
        return()
    endif()
    if(NOT TAMIS_${part} STREQUAL "AUTO" AND TAMIS_${part})
        message(FATAL_ERROR "TAMIS_${part}=${TAMIS_${part}} cannot be fulfilled: ${missing}")
    endif()
    if(TAMIS_${part} STREQUAL "AUTO")
        message(STATUS "${part}: off: ${missing}")
    else()
        message(STATUS "${part}: off (TAMIS_${part}=${TAMIS_${part}})")
    endif()
    set(TAM_HAVE_${part} OFF PARENT_SCOPE)
endfunction()

find_package(Threads REQUIRED)

find_package(PkgConfig QUIET)
if(NOT PKG_CONFIG_FOUND)
    message(FATAL_ERROR "pkg-config was not found (Debian: apt-get install pkg-config).")
endif()
pkg_check_modules(XXHASH QUIET IMPORTED_TARGET libxxhash)
if(NOT XXHASH_FOUND)
    message(FATAL_ERROR "libxxhash was not found (Debian: apt-get install libxxhash-dev).")
endif()

if(TAMIS_MPI)
    find_package(MPI QUIET COMPONENTS C)
endif()
tam_decide(MPI "${MPI_C_FOUND}" "no MPI was found (Debian: apt-get install libopenmpi-dev).")

if(TAMIS_OPENMP)
    find_package(OpenMP QUIET COMPONENTS C)
endif()
tam_decide(OPENMP "${OpenMP_C_FOUND}"
           "the compiler ${CMAKE_C_COMPILER} has no OpenMP (clang on Debian: libomp-dev).")

include(cmake/cuda.cmake)
include(cmake/python.cmake)
