# Packages: a relocatable tarball, a .deb and what tools/package makes a Python wheel of, by `cmake --install` and cpack.
# Everything is in one folder, which may be moved as a whole:
#
#   bin/holdfast                 link to lib/holdfast/bin/holdfast
#   lib/holdfast/bin             programs, and the modules that they load
#   lib/holdfast/built_from      which source this is: commit, and a digest of what was built
#   lib/holdfast/mpi             Open MPI, where .deps/mpi is one that can be moved
#   lib/holdfast/configs/mpi     settings for mpirun
#   lib/holdfast/lib             libraries of this system but the C library; not in the .deb, which depends on their packages
#   lib/systemd/system           unit for runs as a service
#   share/holdfast/configs       examples
#   share/bash-completion        completion of commands and keys
#   share/doc/holdfast           README.md, docs, licences of lib/holdfast/lib and of Open MPI
include(GNUInstallDirs)
set(home ${CMAKE_INSTALL_LIBDIR}/holdfast)
if(CMAKE_INSTALL_LIBDIR MATCHES "/") # Debian's folder of one architecture is for libraries
  set(home lib/holdfast)
endif()
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY TRUE) # the tests are not installed: whoever packages builds the programs
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME programs)

set(programs holdfast holdfast-bench holdfast-chaos holdfast-kernel holdfast-simulate)
set(modules holdfast_mpi)
if(TARGET holdfast_cuda)
  list(APPEND modules holdfast_cuda)
endif()
add_custom_target(programs DEPENDS ${programs} ${modules})
# What `holdfast --version` tells of the source: as it was when the program was linked, and when a package was made.
set(tell_source python3 ${PROJECT_SOURCE_DIR}/tools/gpu_check/source.py)
add_custom_command(TARGET holdfast POST_BUILD COMMAND ${tell_source} > ${CMAKE_BINARY_DIR}/built_from || ${CMAKE_COMMAND} -E true)
install(TARGETS ${programs} ${modules}
  RUNTIME DESTINATION ${home}/bin LIBRARY DESTINATION ${home}/bin)
install(CODE "
  file(MAKE_DIRECTORY \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/bin\")
  file(CREATE_LINK ../${home}/bin/holdfast \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/bin/holdfast\" SYMBOLIC)
  execute_process(COMMAND ${tell_source}
    OUTPUT_FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${home}/built_from\" COMMAND_ERROR_IS_FATAL ANY)")
install(DIRECTORY configs/mpi DESTINATION ${home}/configs)
install(DIRECTORY configs/ DESTINATION share/holdfast/configs USE_SOURCE_PERMISSIONS
  PATTERN mpi EXCLUDE PATTERN completion EXCLUDE PATTERN systemd EXCLUDE)
install(FILES configs/systemd/holdfast@.service DESTINATION lib/systemd/system)
install(FILES configs/completion/holdfast.bash DESTINATION share/bash-completion/completions RENAME holdfast)
install(FILES README.md DESTINATION share/doc/holdfast)
install(DIRECTORY docs/ DESTINATION share/doc/holdfast/docs PATTERN internals EXCLUDE)

# A system's Open MPI knows one place only: it stays there, and the package needs it.
set(mpi_moves FALSE)
set(mpi_prefix ${HOLDFAST_MPI_PREFIX})
if(IS_SYMLINK ${HOLDFAST_MPI_PREFIX})
  set(mpi_moves TRUE)
  file(REAL_PATH ${HOLDFAST_MPI_PREFIX} mpi_prefix)
  install(DIRECTORY ${mpi_prefix}/ DESTINATION ${home}/mpi USE_SOURCE_PERMISSIONS
    PATTERN include EXCLUDE REGEX "/bin/(mpi(CC|cc|cxx|c\\+\\+)|opal_wrapper)$" EXCLUDE REGEX "-wrapper-data.txt$" EXCLUDE)
endif()

# The libraries of this system that the programs and Open MPI ask for; its plugins, which find no network here that they are for, do
# not count. Open MPI looks for them among its own alone.
list(TRANSFORM programs PREPEND ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/ OUTPUT_VARIABLE linked_programs)
set(linked_module ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/libholdfast_mpi.so)
set(linked_mpi "")
set(of_mpi "")
if(mpi_moves)
  file(GLOB linked_mpi ${mpi_prefix}/lib/*.so.* ${mpi_prefix}/lib/openmpi/*.so.*)
  list(JOIN linked_mpi " " list_of_mpi)
  set(of_mpi "install_libraries_of(\"\${into}/${home}/mpi/lib/openmpi\" \"\${licences}\" \"${mpi_prefix}\" LIBRARIES ${list_of_mpi})")
endif()
install(CODE "
  include(${CMAKE_CURRENT_LIST_DIR}/InstallLibraries.cmake)
  set(into \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
  set(licences \"\${into}/share/doc/holdfast/licences\")
  install_libraries_of(\"\${into}/${home}/lib\" \"\${licences}\" \"${mpi_prefix}\"
    PROGRAMS ${linked_programs} LIBRARIES ${linked_module})
  ${of_mpi}" COMPONENT libraries)

set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_NAME holdfast)
set(CPACK_PACKAGE_VENDOR Holdfast)
set(CPACK_PACKAGE_CONTACT "the developers of Holdfast <holdfast@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains transformers and keeps training when things fail")
set(CPACK_PACKAGE_DESCRIPTION "A training runtime for transformers with data, tensor and pipeline parallelism, started by mpirun.
 A finished run has the same bits as if nothing had ever failed.")
set(CPACK_PACKAGE_FILE_NAME holdfast-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_VERBATIM_VARIABLES TRUE)
set(CPACK_THREADS 0)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/PackageKinds.cmake)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
if(NOT mpi_moves)
  set(CPACK_HOLDFAST_NEEDS "openmpi-bin (>= 5)")
endif()
set(CPACK_HOLDFAST_LINKED ${linked_programs} ${linked_module} ${linked_mpi})
set(CPACK_HOLDFAST_OWN_LIBRARIES ${mpi_prefix}/lib ${mpi_prefix}/lib/openmpi)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS openssh-client)
include(CPack)
