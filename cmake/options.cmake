# SPDX-License-Identifier: MIT
#
# What is built. Every optional part is AUTO, ON or OFF; AUTO says what it decided and why.

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()

# A project that includes this one (add_subdirectory, FetchContent) chooses the kind of its libraries
# itself, and gets the library alone: the rest is for who works on this project or installs it.
set(own_default OFF)
if(PROJECT_IS_TOP_LEVEL)
    set(own_default AUTO)
    option(BUILD_SHARED_LIBS "Build libtamis as a shared library" ON)
endif()
option(TAMIS_WERROR "Treat compiler warnings as errors" OFF)
option(TAMIS_LAB "Programs of bench/lab, which measure the library's own decisions" OFF)
option(TAMIS_INSTALL "Install libtamis, its headers and packages" ${PROJECT_IS_TOP_LEVEL})
foreach(part MPI UCX OPENMP CUDA NCCL)
    set(TAMIS_${part} AUTO CACHE STRING "AUTO, ON or OFF")
endforeach()
set(TAMIS_PYTHON ${own_default} CACHE STRING "The Python package: AUTO, ON or OFF")
set(TAMIS_BENCH ${own_default} CACHE STRING "tamis_train, tamis_perf, ...: AUTO, ON or OFF")
set(TAMIS_TESTS ${own_default} CACHE STRING "The tests: AUTO, ON or OFF")

foreach(part MPI UCX OPENMP CUDA NCCL PYTHON BENCH TESTS)
    set_property(CACHE TAMIS_${part} PROPERTY STRINGS AUTO ON OFF)
    if(NOT TAMIS_${part} MATCHES "^(AUTO|ON|OFF)$")
        message(FATAL_ERROR "TAMIS_${part}=${TAMIS_${part}} is none of AUTO, ON, OFF.")
    endif()
endforeach()

# tam_decide(<part> <found> <why it is missing>): sets TAM_HAVE_<part>.
function(tam_decide part found missing)
    set(TAM_HAVE_${part} OFF PARENT_SCOPE)
    if(TAMIS_${part} STREQUAL "OFF")
        message(STATUS "${part}: off (TAMIS_${part}=OFF)")
    elseif(found)
        message(STATUS "${part}: on (TAMIS_${part}=${TAMIS_${part}}, found)")
        set(TAM_HAVE_${part} ON PARENT_SCOPE)
    else()
        tam_lacks(${part} off "${missing}")
    endif()
endfunction()

# tam_lacks(<part> <what> <why>): a part, or something of it, cannot be built: one line, or an error
# where ON asks for all of it.
function(tam_lacks part what why)
    if(TAMIS_${part} STREQUAL "ON")
        message(FATAL_ERROR "TAMIS_${part}=ON cannot be fulfilled: ${why}")
    endif()
    message(STATUS "${part}: ${what}: ${why}")
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
    if(NOT CMAKE_CROSSCOMPILING)
        set(MPI_DETERMINE_LIBRARY_VERSION ON) # runs a program of it
    endif()
    find_package(MPI QUIET COMPONENTS C)
endif()
tam_decide(MPI "${MPI_C_FOUND}" "no MPI was found (Debian: apt-get install libopenmpi-dev).")
# Which one it is, in a few words: machines often have several.
string(REGEX MATCH "^[A-Za-z() ]+[ \t:vV]*[0-9][^, \n]*" TAM_MPI_VERSION "${MPI_C_LIBRARY_VERSION_STRING}")
string(REGEX REPLACE "[: \t]+" " " TAM_MPI_VERSION "${TAM_MPI_VERSION}")
if(TAM_HAVE_MPI)
    message(STATUS "MPI: ${TAM_MPI_VERSION}, ${MPI_C_COMPILER} (MPI_C_COMPILER chooses another)")
endif()
# Whether it can go on after a rank has died (User Level Failure Mitigation, as in Open MPI 5).
if(TAM_HAVE_MPI)
    include(CheckCSourceCompiles)
    set(CMAKE_REQUIRED_LIBRARIES MPI::MPI_C)
    check_c_source_compiles("
        #include <mpi.h>
        #include <mpi-ext.h>
        int main(void) {
            MPI_Comm left;
            MPI_Request request;
            MPI_Group dead;
            int flag = MPIX_FT;
            MPIX_Comm_iagree(MPI_COMM_WORLD, &flag, &request);
            MPIX_Comm_revoke(MPI_COMM_WORLD);
            MPIX_Comm_is_revoked(MPI_COMM_WORLD, &flag);
            MPIX_Comm_get_failed(MPI_COMM_WORLD, &dead);
            return MPIX_Comm_shrink(MPI_COMM_WORLD, &left);
        }" TAM_HAVE_ULFM)
    unset(CMAKE_REQUIRED_LIBRARIES)
endif()

# Its headers: the library is loaded when a communicator over it is made.
if(TAMIS_UCX)
    find_path(TAM_UCX_INCLUDE ucp/api/ucp.h PATHS ENV UCX_HOME PATH_SUFFIXES include)
    mark_as_advanced(TAM_UCX_INCLUDE)
endif()
tam_decide(UCX "${TAM_UCX_INCLUDE}" "no ucp/api/ucp.h was found (Debian: apt-get install libucx-dev).")

if(TAMIS_OPENMP)
    find_package(OpenMP QUIET COMPONENTS C)
endif()
tam_decide(OPENMP "${OpenMP_C_FOUND}"
           "the compiler ${CMAKE_C_COMPILER} has no OpenMP (clang on Debian: libomp-dev).")

include(cmake/cuda.cmake)
include(cmake/python.cmake)

# What only programs and tests need.
if(TAMIS_BENCH)
    pkg_check_modules(JANSSON QUIET IMPORTED_TARGET jansson)
    pkg_check_modules(OPENBLAS QUIET IMPORTED_TARGET openblas)
    find_package(ZLIB QUIET)
endif()
tam_decide(BENCH "${JANSSON_FOUND}"
           "jansson was not found (Debian: apt-get install libjansson-dev).")

if(TAMIS_TESTS)
    pkg_check_modules(CMOCKA QUIET IMPORTED_TARGET cmocka)
endif()
tam_decide(TESTS "${CMOCKA_FOUND}"
           "cmocka was not found (Debian: apt-get install libcmocka-dev).")
