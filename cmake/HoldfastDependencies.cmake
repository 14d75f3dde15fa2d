# Every library outside this tree. tools/bootstrap installs them; a missing one names that command.
set(HOLDFAST_HINT "run tools/bootstrap, which installs everything the build needs")

find_package(Threads REQUIRED)
foreach(package fmt nlohmann_json tomlplusplus GTest)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "${package} was not found: ${HOLDFAST_HINT}")
  endif()
endforeach()

# A library that ships no CMake package: header and shared object become an imported target.
function(holdfast_find_library name header library)
  find_path(${name}_INCLUDE ${header})
  find_library(${name}_LIBRARY ${library})
  if(NOT ${name}_INCLUDE OR NOT ${name}_LIBRARY)
    message(FATAL_ERROR "${name} (${header}, lib${library}) was not found: ${HOLDFAST_HINT}")
  endif()
  add_library(${name}::${name} UNKNOWN IMPORTED)
  set_target_properties(${name}::${name} PROPERTIES
    IMPORTED_LOCATION ${${name}_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${${name}_INCLUDE})
endfunction()
holdfast_find_library(xxhash xxhash.h xxhash)
holdfast_find_library(sodium sodium.h sodium)
holdfast_find_library(liburing liburing.h uring)
holdfast_find_library(zstd zstd.h zstd)
holdfast_find_library(pcre2 pcre2.h pcre2-8)
holdfast_find_library(utf8proc utf8proc.h utf8proc)
holdfast_find_library(fuse fuse3/fuse.h fuse3)
holdfast_find_library(dnnl oneapi/dnnl/dnnl.hpp dnnl)

# MPI: the prefix that tools/bootstrap chose (a link in .deps), so that plain cmake needs no environment.
set(HOLDFAST_MPI_PREFIX ${PROJECT_SOURCE_DIR}/.deps/mpi CACHE PATH "Prefix of the Open MPI to build against")
find_path(mpi_INCLUDE mpi-ext.h PATHS ${HOLDFAST_MPI_PREFIX}/include NO_DEFAULT_PATH)
find_library(mpi_LIBRARY mpi PATHS ${HOLDFAST_MPI_PREFIX}/lib NO_DEFAULT_PATH)
if(NOT mpi_INCLUDE OR NOT mpi_LIBRARY)
  message(FATAL_ERROR "Open MPI was not found under ${HOLDFAST_MPI_PREFIX}: ${HOLDFAST_HINT}")
endif()
add_library(mpi::mpi UNKNOWN IMPORTED)
set_target_properties(mpi::mpi PROPERTIES
  IMPORTED_LOCATION ${mpi_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${mpi_INCLUDE})
