# SPDX-License-Identifier: MIT
#
# CUDA and NCCL, from a toolkit's folder or from the nvidia-* packages of Python, which have the
# same folders inside but neither lib64 nor lib*.so without a number. Sets
#
#     TAM_HAVE_CUDA, TAM_HAVE_NCCL                   whether that part is built
#     TAM_CUDA_INCLUDE_DIR, TAM_NCCL_INCLUDE_DIR     wherever headers are found, built or not:
#                                                    tests need only these
#     CUDA::cudart, NCCL::nccl                       the shared libraries, with their headers
#     tam_nvtx                                       ranges for profilers, if NVTX's headers are there
include(CheckLanguage)

set(TAMIS_CUDA_ROOT "" CACHE PATH "CUDA: a toolkit, or .../site-packages/nvidia/cu13")
set(TAMIS_NCCL_ROOT "" CACHE PATH "NCCL: what holds include and lib, or .../nvidia/nccl")
if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;90-virtual" CACHE STRING
        "Processors that kernels are compiled for; -virtual: PTX, for all later ones")
endif()

# Folders to look into, best first.
find_program(TAM_PYTHON python3 DOC "Asked where its nvidia-* packages are")
if(TAM_PYTHON)
    execute_process(COMMAND ${TAM_PYTHON} -c "import nvidia; print(*nvidia.__path__, sep=';')"
                    OUTPUT_VARIABLE packages ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
find_program(nvcc_in_path nvcc NO_CACHE)
if(nvcc_in_path)
    file(REAL_PATH ${nvcc_in_path} cuda_of_path)
    cmake_path(SET cuda_of_path NORMALIZE ${cuda_of_path}/../..)
endif()
set(cuda_roots $ENV{CUDA_HOME} $ENV{CUDA_PATH} ${cuda_of_path} /usr/local/cuda)
set(nccl_roots $ENV{NCCL_HOME} ${cuda_roots})
foreach(folder IN LISTS packages)
    list(APPEND cuda_roots ${folder}/cu13)
    list(APPEND nccl_roots ${folder}/nccl)
    list(APPEND nvtx_roots ${folder}/nvtx ${folder}/cu13)
endforeach()
if(TAMIS_CUDA_ROOT)
    set(cuda_roots ${TAMIS_CUDA_ROOT})
    list(PREPEND nccl_roots ${TAMIS_CUDA_ROOT})
endif()
if(TAMIS_NCCL_ROOT)
    set(nccl_roots ${TAMIS_NCCL_ROOT})
endif()

# tam_read_version(<header> <macro> <out>): the number that a macro of a header gives.
function(tam_read_version header macro out)
    set(number 0)
    if(EXISTS "${header}")
        file(STRINGS "${header}" line REGEX "^#define ${macro} +[0-9]+" LIMIT_COUNT 1)
        string(REGEX MATCH "[0-9]+$" number "${line}")
    endif()
    set(${out} ${number} PARENT_SCOPE)
endfunction()

# tam_shared_library(<target> <file> <include>): a library that comes without a CMake package.
function(tam_shared_library target file include)
    add_library(${target} UNKNOWN IMPORTED)
    set_target_properties(${target} PROPERTIES
        IMPORTED_LOCATION ${file} INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${include}"
        INTERFACE_INCLUDE_DIRECTORIES "${include}")
endfunction()

# tam_find_header(<variable> <file> <given root> <roots>): where the user says, else anywhere.
function(tam_find_header variable file given roots)
    find_path(${variable} ${file} HINTS ${roots} PATH_SUFFIXES include NO_DEFAULT_PATH)
    if(NOT given)
        find_path(${variable} ${file})
    endif()
endfunction()

# -- CUDA: headers, then the runtime and a compiler that works -----------------------------------
tam_find_header(TAM_CUDA_INCLUDE_DIR cuda_runtime_api.h "${TAMIS_CUDA_ROOT}" "${cuda_roots}")
cmake_path(GET TAM_CUDA_INCLUDE_DIR PARENT_PATH cuda_root)
tam_read_version("${TAM_CUDA_INCLUDE_DIR}/cuda_runtime_api.h" CUDART_VERSION cuda_version)

set(cuda_found OFF)
if(NOT TAM_CUDA_INCLUDE_DIR)
    unset(TAM_CUDA_INCLUDE_DIR)
    set(cuda_missing "no cuda_runtime_api.h was found (TAMIS_CUDA_ROOT says where).")
elseif(cuda_version LESS 12000)
    set(cuda_missing "CUDA in ${cuda_root} is older than 12.0.")
elseif(TAMIS_CUDA)
    find_library(TAM_CUDART_LIBRARY NAMES cudart libcudart.so.13 libcudart.so.12 NAMES_PER_DIR
                 HINTS ${cuda_root} PATH_SUFFIXES lib64 lib lib/x86_64-linux-gnu)
    find_library(TAM_CUDART_ARCHIVE NAMES cudart_static # for Python alone
                 HINTS ${cuda_root} PATH_SUFFIXES lib64 lib lib/x86_64-linux-gnu)
    find_path(TAM_CUB_INCLUDE_DIR cub/block/block_scan.cuh
              HINTS ${TAM_CUDA_INCLUDE_DIR}/cccl ${TAM_CUDA_INCLUDE_DIR})
    find_program(TAM_NVCC nvcc HINTS ${cuda_root}/bin)
    set(cuda_parts TAM_CUDART_LIBRARY TAM_CUDART_ARCHIVE TAM_CUB_INCLUDE_DIR TAM_NVCC)
    if(NOT TAM_NVCC)
        set(cuda_missing "headers are in ${cuda_root}, but no nvcc.")
    elseif(NOT TAM_CUDART_LIBRARY)
        set(cuda_missing "no shared libcudart was found beside ${TAM_CUDA_INCLUDE_DIR}.")
    elseif(NOT TAM_CUB_INCLUDE_DIR)
        set(cuda_missing "no cub/block/block_scan.cuh was found beside ${TAM_CUDA_INCLUDE_DIR}.")
    else()
        # A trial in a project of its own: a compiler that is broken, or has no host compiler that
        # it accepts, must not end this one.
        if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
            set(ENV{CUDACXX} ${TAM_NVCC})
        endif()
        if(NOT EXISTS ${cuda_root}/lib64 AND NOT DEFINED ENV{CUDAFLAGS})
            set(ENV{CUDAFLAGS} -L${cuda_root}/lib) # nvcc itself looks into lib64 only
        endif()
        check_language(CUDA)
        set(cuda_found ${CMAKE_CUDA_COMPILER})
        set(cuda_missing "${TAM_NVCC} cannot compile a program; CMakeFiles/CMakeError.log says why.")
    endif()
    mark_as_advanced(${cuda_parts})
endif()
tam_decide(CUDA "${cuda_found}" "${cuda_missing}")

if(TAM_HAVE_CUDA)
    # The runtime is linked as a shared library, by us; what nvcc would add (the static one, a
    # device linker's library, libstdc++) stays out.
    set(CMAKE_CUDA_RUNTIME_LIBRARY None)
    enable_language(CUDA)
    set(CMAKE_CUDA_IMPLICIT_LINK_LIBRARIES)
    set(CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES)
    # Kernels for several processors: the smallest file. Drivers before CUDA 12.4 know one kind only.
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
        add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
    endif()
    set(CMAKE_CUDA_STANDARD 17)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
    tam_shared_library(CUDA::cudart ${TAM_CUDART_LIBRARY} "${TAM_CUDA_INCLUDE_DIR}")
endif()

# NVTX: headers alone, which load a profiler's library if one is there. Without them profilers see
# no named ranges, and that is all.
if(TAM_HAVE_CUDA)
    find_path(TAM_NVTX_INCLUDE_DIR nvtx3/nvToolsExt.h HINTS ${TAM_CUDA_INCLUDE_DIR} ${nvtx_roots}
              PATH_SUFFIXES include NO_DEFAULT_PATH)
    mark_as_advanced(TAM_NVTX_INCLUDE_DIR)
    add_library(tam_nvtx INTERFACE)
    if(TAM_NVTX_INCLUDE_DIR)
        target_compile_definitions(tam_nvtx INTERFACE TAM_HAVE_NVTX=1)
        target_include_directories(tam_nvtx SYSTEM INTERFACE ${TAM_NVTX_INCLUDE_DIR})
        set_property(TARGET CUDA::cudart PROPERTY INTERFACE_LINK_LIBRARIES ${CMAKE_DL_LIBS})
    endif()
endif()

# -- NCCL ----------------------------------------------------------------------------------------
tam_find_header(TAM_NCCL_INCLUDE_DIR nccl.h "${TAMIS_NCCL_ROOT}" "${nccl_roots}")
tam_read_version("${TAM_NCCL_INCLUDE_DIR}/nccl.h" NCCL_MAJOR nccl_major)
tam_read_version("${TAM_NCCL_INCLUDE_DIR}/nccl.h" NCCL_MINOR nccl_minor)

set(nccl_found OFF)
if(NOT TAM_NCCL_INCLUDE_DIR)
    unset(TAM_NCCL_INCLUDE_DIR)
    set(nccl_missing "no nccl.h was found (TAMIS_NCCL_ROOT says where).")
elseif(nccl_major EQUAL 2 AND nccl_minor LESS 18)
    set(nccl_missing "NCCL in ${TAM_NCCL_INCLUDE_DIR} is older than 2.18.")
elseif(NOT TAM_HAVE_CUDA)
    set(nccl_missing "it works on device memory only, and CUDA is off.")
elseif(TAMIS_NCCL)
    cmake_path(GET TAM_NCCL_INCLUDE_DIR PARENT_PATH nccl_root)
    find_library(TAM_NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR
                 HINTS ${nccl_root} PATH_SUFFIXES lib64 lib lib/x86_64-linux-gnu)
    mark_as_advanced(TAM_NCCL_LIBRARY)
    set(nccl_found ${TAM_NCCL_LIBRARY})
    set(nccl_missing "nccl.h is in ${TAM_NCCL_INCLUDE_DIR}, but no libnccl was found beside it.")
endif()
tam_decide(NCCL "${nccl_found}" "${nccl_missing}")
if(TAM_HAVE_NCCL)
    tam_shared_library(NCCL::nccl ${TAM_NCCL_LIBRARY}
        "${TAM_NCCL_INCLUDE_DIR};${TAM_CUDA_INCLUDE_DIR}")
endif()
mark_as_advanced(TAM_PYTHON TAM_CUDA_INCLUDE_DIR TAM_NCCL_INCLUDE_DIR)
