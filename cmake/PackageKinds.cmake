# Read by cpack for each kind of package (CPACK_PROJECT_CONFIG_FILE of HoldfastPackage.cmake). A tarball holds the libraries that
# the programs need; a .deb names their packages. In a .deb the prefix is Debian's.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_COMPONENTS_ALL programs)
  # cpack itself would ask for what all plugins of Open MPI need, of which a host has those for its network.
  set(folder ${CPACK_TOPLEVEL_DIRECTORY}/shlibdeps)
  file(WRITE ${folder}/debian/control "Source: holdfast\n\nPackage: holdfast\nArchitecture: any\n")
  list(TRANSFORM CPACK_HOLDFAST_OWN_LIBRARIES PREPEND -l OUTPUT_VARIABLE own)
  foreach(folder_of_own ${CPACK_HOLDFAST_OWN_LIBRARIES})
    file(GLOB names RELATIVE ${folder_of_own} ${folder_of_own}/*.so.*)
    foreach(name ${names})  # the package brings it, so it does not need Debian's
      execute_process(COMMAND dpkg-query --search "*/${name}" OUTPUT_VARIABLE owner ERROR_QUIET)
      string(REGEX MATCH "^[^:,]+" package "${owner}")
      if(package)
        list(APPEND own -x${package})
      endif()
    endforeach()
  endforeach()
  execute_process(COMMAND dpkg-shlibdeps -O --ignore-missing-info ${own} ${CPACK_HOLDFAST_LINKED} WORKING_DIRECTORY ${folder}
    OUTPUT_VARIABLE needs ERROR_VARIABLE said RESULT_VARIABLE code)
  if(NOT code EQUAL 0 OR NOT needs MATCHES "Depends=([^\n]+)")
    message(FATAL_ERROR "dpkg-shlibdeps does not say which packages the programs need (is dpkg-dev installed?): ${said}")
  endif()
  list(PREPEND CPACK_HOLDFAST_NEEDS ${CMAKE_MATCH_1})
  list(JOIN CPACK_HOLDFAST_NEEDS ", " CPACK_DEBIAN_PACKAGE_DEPENDS)
endif()
