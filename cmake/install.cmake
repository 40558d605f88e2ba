# SPDX-License-Identifier: MIT
#
# Headers, library, CMake package and pkg-config file. The installed tree may be moved.
include(CMakePackageConfigHelpers)

install(FILES include/tamis/tamis.h include/tamis/callback.h include/tamis/elastic.h
              include/tamis/energy.h include/tamis/lists.h include/tamis/overlap.h
              include/tamis/state.h include/tamis/stats.h
              include/tamis/governor.h include/tamis/local.h include/tamis/pipeline.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tamis)
if(TAM_HAVE_MPI)
    install(FILES include/tamis/mpi.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tamis)
endif()
if(TAM_HAVE_UCX)
    install(FILES include/tamis/ucx.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tamis)
endif()
if(TAM_HAVE_CUDA)
    install(FILES include/tamis/cuda.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tamis)
endif()
if(TAM_HAVE_NCCL)
    install(FILES include/tamis/nccl.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tamis)
endif()
install(TARGETS tamis EXPORT tamis-targets)

set(TAM_ARCHIVE ON)
if(BUILD_SHARED_LIBS)
    set(TAM_ARCHIVE OFF)
endif()
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tamis)
install(EXPORT tamis-targets NAMESPACE tamis:: DESTINATION ${package_dir})
configure_package_config_file(cmake/tamis-config.cmake.in
    ${PROJECT_BINARY_DIR}/tamis-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tamis-config-version.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tamis-config.cmake
              ${PROJECT_BINARY_DIR}/tamis-config-version.cmake DESTINATION ${package_dir})

# For pkg-config, what a static link needs besides: other packages, and the rest by name.
set(TAM_PC_REQUIRES libxxhash)
set(TAM_PC_LIBS "-lm -pthread")
if(TAM_HAVE_MPI) # by its files: a module of pkg-config may be another MPI's
    list(JOIN MPI_C_LIBRARIES " " libraries)
    string(APPEND TAM_PC_LIBS " ${libraries}")
endif()
if(TAM_HAVE_OPENMP)
    string(APPEND TAM_PC_LIBS " ${OpenMP_C_FLAGS}")
endif()
foreach(library IN ITEMS ${TAM_CUDART_LIBRARY} ${TAM_NCCL_LIBRARY})
    cmake_path(GET library PARENT_PATH folder)
    string(APPEND TAM_PC_LIBS " ${library} -Wl,-rpath,${folder}")
endforeach()
set(TAM_PC_DIR ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH TAM_PC_TO_PREFIX /prefix/${TAM_PC_DIR} /prefix)
configure_file(cmake/tamis.pc.in tamis.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tamis.pc DESTINATION ${TAM_PC_DIR})
