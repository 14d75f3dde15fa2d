# Compiler flags of every target. Bits are a promise: no fast-math, no contraction of a*b+c behind our back.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  # What ccache asks for before it keeps objects that were compiled with precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
endif()

# Preset "release" compiles several files as one, where a local variable may have the name of a constant of another file; so
# there only locals that hide locals are warned of. All other presets compile each file by itself with -Wshadow, "tsan" and
# "fuzz" without precompiled headers as well, so that every file includes what it needs. Kernels are always compiled file by
# file: each is compiled for several instruction sets.
set(shadow -Wshadow)
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(shadow -Wshadow=local)
endif()

add_library(hf_flags INTERFACE)
target_compile_options(hf_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:
  -Wall -Wextra ${shadow} -Wfloat-equal -Wold-style-cast -Wconversion $<$<BOOL:${HOLDFAST_WARNINGS_AS_ERRORS}>:-Werror>
  -fno-fast-math -ffp-contract=off>)
# GCC 12 sees an overlap in std::string assignment that is not there (GCC bug 105651), and, where headers are precompiled and
# their lines no longer count as a system's, the same in other words.
target_compile_options(hf_flags INTERFACE
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread>)
# Clang 19 blames a call of std::stable_sort for what GCC 12's library does in it.
target_compile_options(hf_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-deprecated-declarations>)
if(CCACHE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(hf_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
endif()
# By itself GCC collects garbage from 128 MiB on, a seventh of its time for the larger files; so they take up to 1 GB.
target_compile_options(hf_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>)
target_include_directories(hf_flags INTERFACE ${PROJECT_SOURCE_DIR})
# The namespaces of the layers, and which sees which, before all else; where headers are precompiled, they begin with it.
set(HOLDFAST_LAYERS "${PROJECT_SOURCE_DIR}/runtime/core/layers.h")
set(precompiled $<BOOL:$<TARGET_PROPERTY:PRECOMPILE_HEADERS>$<TARGET_PROPERTY:PRECOMPILE_HEADERS_REUSE_FROM>>)
if(CMAKE_DISABLE_PRECOMPILE_HEADERS)
  set(precompiled 0)
endif()
target_compile_options(hf_flags INTERFACE "$<$<NOT:${precompiled}>:SHELL:-include ${HOLDFAST_LAYERS}>")
if(HOLDFAST_SANITIZE)
  # Instrumented code confuses the compiler's flow analysis: maybe-uninitialized would name correct lines.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${HOLDFAST_SANITIZE}> -fno-omit-frame-pointer
    $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all> $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  add_link_options(-fsanitize=${HOLDFAST_SANITIZE})
  if(HOLDFAST_SANITIZE MATCHES thread)
    # Fences order shared memory for a process that finds it later, of which ThreadSanitizer, within one process, knows nothing.
    add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-tsan>)
  endif()
endif()
if(HOLDFAST_FUZZER)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()
