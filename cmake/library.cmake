# SPDX-License-Identifier: MIT
#
# The library `tamis` and, of the same objects, the archive through which tests and
# tamis_scale reach internals.
include(GNUInstallDirs)

get_property(objects GLOBAL PROPERTY TAM_OBJECTS)
set(map ${PROJECT_SOURCE_DIR}/cmake/tamis.map)

# What the library needs, and what a shared one exports.
function(tam_library_links target)
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C)
    target_link_libraries(${target} PRIVATE Threads::Threads PkgConfig::XXHASH m ${CMAKE_DL_LIBS})
    if(TAM_HAVE_MPI)
        target_link_libraries(${target} PRIVATE MPI::MPI_C)
    endif()
    if(TAM_HAVE_OPENMP)
        target_link_libraries(${target} PRIVATE OpenMP::OpenMP_C)
    endif()
    if(TAM_HAVE_CUDA)
        target_link_libraries(${target} PRIVATE CUDA::cudart)
    endif()
    if(TAM_HAVE_NCCL)
        target_link_libraries(${target} PRIVATE NCCL::nccl)
    endif()
    get_target_property(type ${target} TYPE)
    if(type STREQUAL SHARED_LIBRARY)
        target_link_options(${target} PRIVATE LINKER:--version-script=${map})
        set_property(TARGET ${target} PROPERTY LINK_DEPENDS ${map})
    endif()
endfunction()

function(tam_library target)
    target_sources(${target} PRIVATE ${objects})
    target_include_directories(${target} PUBLIC
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    tam_library_links(${target})
endfunction()

add_library(tamis)
add_library(tamis::tamis ALIAS tamis)
tam_library(tamis)
set_target_properties(tamis PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
foreach(library IN ITEMS ${TAM_CUDART_LIBRARY} ${TAM_NCCL_LIBRARY})
    cmake_path(GET library PARENT_PATH folder) # seldom one where the loader looks by itself
    set_property(TARGET tamis APPEND PROPERTY INSTALL_RPATH ${folder})
endforeach()

if(TAM_HAVE_TESTS OR TAM_HAVE_BENCH)
    add_library(tamis_static STATIC)
    tam_library(tamis_static)
endif()
