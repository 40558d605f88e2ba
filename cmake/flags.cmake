# SPDX-License-Identifier: MIT
#
# How things are compiled. tam_common is for every target of the project, tam_internal for those
# that may see private headers, which are included relative to the top folder ("lib/base/base.h").
include(CheckCCompilerFlag)

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# -ffp-contract=off, -fmad=false: a fused multiply-add rounds once where the contract of the kernels
# says twice. -lineinfo costs nothing at run time and lets profilers and sanitizers name lines.
# -fno-threadsafe-statics: else nvcc's launch functions want libstdc++.
add_library(tam_common INTERFACE)
set(flags -ffp-contract=off -Wall -Wextra -Wshadow)
set(cuda_flags -fmad=false -lineinfo -Xptxas=--warn-on-spills
    -Xcompiler=-ffp-contract=off,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall)
if(TAMIS_WERROR)
    list(APPEND flags -Werror)
    list(APPEND cuda_flags "SHELL:-Werror all-warnings" -Xptxas=--warning-as-error)
endif()
target_compile_options(tam_common INTERFACE
    "$<$<COMPILE_LANGUAGE:C,CXX>:${flags}>"
    "$<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes;-Wmissing-prototypes>"
    "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_flags}>")

add_library(tam_internal INTERFACE)
target_link_libraries(tam_internal INTERFACE tam_common Threads::Threads PkgConfig::XXHASH)
target_compile_definitions(tam_internal INTERFACE _GNU_SOURCE) # pthread_timedjoin_np, mkostemp
target_include_directories(tam_internal INTERFACE
    ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)

set(TAM_AVX2_FLAGS -mavx2)
set(TAM_AVX512_FLAGS -mavx512f -mavx512dq -mavx512bw -mavx512vl -mbmi)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    check_c_compiler_flag("${TAM_AVX2_FLAGS}" TAM_COMPILES_AVX2)
    string(JOIN " " flags ${TAM_AVX512_FLAGS})
    check_c_compiler_flag("${flags}" TAM_COMPILES_AVX512)
endif()
if(TAM_COMPILES_AVX2 AND TAM_COMPILES_AVX512)
    set(TAM_HAVE_X86_KERNELS ON)
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    set(TAM_HAVE_NEON_KERNELS ON)
endif()

foreach(part MPI UCX OPENMP CUDA NCCL X86_KERNELS NEON_KERNELS)
    if(TAM_HAVE_${part})
        target_compile_definitions(tam_internal INTERFACE TAM_HAVE_${part}=1)
    endif()
endforeach()

# tam_objects(<name> <source>...): an object target of the library, tam_<name>: a project that includes
# this one may have a target <name>.
function(tam_objects name)
    set(target tam_${name})
    add_library(${target} OBJECT ${ARGN})
    target_link_libraries(${target} PRIVATE tam_internal)
    set_property(GLOBAL APPEND PROPERTY TAM_OBJECTS $<TARGET_OBJECTS:${target}>)
endfunction()

# tam_folder(<name> <folder> [EXCEPT <file>...]): all sources of a folder as one object target.
function(tam_folder name folder)
    cmake_parse_arguments(PARSE_ARGV 2 arg "" "" EXCEPT)
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.c
                                        ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cu)
    list(TRANSFORM arg_EXCEPT PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/)
    list(REMOVE_ITEM sources ${arg_EXCEPT})
    tam_objects(${name} ${sources})
endfunction()
