# Functions for `cmake --install` (HoldfastPackage.cmake).

# install_libraries_of(FOLDER LICENCES NOT_FROM PROGRAMS program... LIBRARIES library...): installs into FOLDER the libraries of this
# system that these ask for, and those that these ask for, but the C library, CUDA's, and what lies below NOT_FROM; and into LICENCES the
# terms under which Debian distributes each. A library of no package has none there.
function(install_libraries_of folder licences not_from)
  cmake_parse_arguments(ARG "" "" "PROGRAMS;LIBRARIES" ${ARGN})
  file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${ARG_PROGRAMS} LIBRARIES ${ARG_LIBRARIES}
    RESOLVED_DEPENDENCIES_VAR found UNRESOLVED_DEPENDENCIES_VAR missing
    PRE_EXCLUDE_REGEXES "^lib(c|m|dl|rt|pthread|util|resolv)[.]so" "^ld-linux" "^libcu" "^libnv")
  if(missing)
    message(FATAL_ERROR "a package needs libraries that are not here: ${missing}")
  endif()
  foreach(path ${found})
    file(REAL_PATH ${path} real)
    cmake_path(IS_PREFIX not_from ${real} inside)
    if(inside)
      continue()
    endif()
    file(INSTALL ${path} DESTINATION ${folder} TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN)
    string(REGEX REPLACE "^/usr" "" merged ${real})  # a package may say /lib where the system has /usr/lib
    foreach(name ${path} ${real} ${merged})
      execute_process(COMMAND dpkg-query --search ${name} OUTPUT_VARIABLE owner ERROR_QUIET)
      string(REGEX MATCH "^[^:,]+" package "${owner}")
      if(package AND EXISTS /usr/share/doc/${package}/copyright)
        configure_file(/usr/share/doc/${package}/copyright ${licences}/${package} COPYONLY)
      endif()
    endforeach()
  endforeach()
endfunction()
