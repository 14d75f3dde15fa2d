# holdfast_precompile(NAME LINK target... HEADERS header...): NAME, whose precompiled headers holdfast_use_precompiled gives to
# targets that are compiled with the flags of the LINK targets. Only headers that no work on the tree changes belong here.
function(holdfast_precompile name)
  cmake_parse_arguments(ARG "" "" "LINK;HEADERS" ${ARGN})
  set(unit ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  file(CONFIGURE OUTPUT ${unit} CONTENT "// Written by cmake/HoldfastLayer.cmake.\n")
  add_library(${name} OBJECT ${unit})
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  target_link_libraries(${name} PRIVATE ${ARG_LINK})
  target_precompile_headers(${name} PRIVATE ${HOLDFAST_LAYERS} ${ARG_HEADERS})
endfunction()

# Gives the target the precompiled headers of NAME. The compiler takes them only for code of the same kind, so that programs
# are compiled as libraries are (-fPIC, not -fPIE).
function(holdfast_use_precompiled target name)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${name})
endfunction()

# holdfast_optimise_little(NAME LIST [SELDOM ALL|name...] [OFTEN name...] LINK target...): compiles the SELDOM files of the list
# (ALL: every one that is not OFTEN) in an object library NAME_little, with -O1 in a release, and puts its objects into the list
# in their place. It is for what runs at a start, at a fault, for a page or a command line: a third of the compiler's time, and
# nobody waits for its instructions.
function(holdfast_optimise_little name list)
  cmake_parse_arguments(ARG "" "" "SELDOM;OFTEN;LINK" ${ARGN})
  set(little "")
  set(rest "")
  foreach(file ${${list}})
    cmake_path(GET file STEM LAST_ONLY stem)
    if(("ALL" IN_LIST ARG_SELDOM OR stem IN_LIST ARG_SELDOM) AND NOT stem IN_LIST ARG_OFTEN)
      list(APPEND little ${file})
    else()
      list(APPEND rest ${file})
    endif()
    list(REMOVE_ITEM ARG_SELDOM ${stem})
    list(REMOVE_ITEM ARG_OFTEN ${stem})
  endforeach()
  list(REMOVE_ITEM ARG_SELDOM ALL)
  if(ARG_SELDOM OR ARG_OFTEN)
    message(FATAL_ERROR "these are to be optimised, but are not there: ${ARG_SELDOM} ${ARG_OFTEN}")
  endif()
  if(little)
    add_library(${name}_little OBJECT ${little})
    target_link_libraries(${name}_little PRIVATE hf_flags ${ARG_LINK})
    target_compile_options(${name}_little PRIVATE $<$<CONFIG:Release>:-O1>)
    holdfast_use_precompiled(${name}_little hf_headers)
    list(APPEND rest $<TARGET_OBJECTS:${name}_little>)
  endif()
  set(${list} ${rest} PARENT_SCOPE)
endfunction()

# holdfast_layer(NAME SOURCES folder... [WITHOUT name...] [FILES file...] LINK target... [SELDOM ALL|name...] [OFTEN name...]): library
# hf_NAME from the .cc files of the folders, without those of the names, and from the FILES, which another layer's folder has; which
# of them are optimised little, holdfast_optimise_little says.
function(holdfast_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;WITHOUT;FILES;LINK;SELDOM;OFTEN" ${ARGN})
  list(TRANSFORM ARG_FILES PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE files)
  foreach(folder ${ARG_SOURCES})
    file(GLOB found CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cc)
    list(APPEND files ${found})
  endforeach()
  foreach(stem ${ARG_WITHOUT})
    list(FILTER files EXCLUDE REGEX "/${stem}[.]cc$")
  endforeach()
  if(files)
    holdfast_optimise_little(hf_${name} files SELDOM ${ARG_SELDOM} OFTEN ${ARG_OFTEN} LINK ${ARG_LINK})
    add_library(hf_${name} STATIC ${files})
    set_target_properties(hf_${name} PROPERTIES LINKER_LANGUAGE CXX)
    target_link_libraries(hf_${name} PUBLIC hf_flags ${ARG_LINK})
    holdfast_use_precompiled(hf_${name} hf_headers)
  else()
    add_library(hf_${name} INTERFACE)
    target_link_libraries(hf_${name} INTERFACE hf_flags ${ARG_LINK})
  endif()
endfunction()

# Compiles the targets' files without exceptions, but for those that catch some: each call would else have a second way to go
# on, and so would the ends of all scopes behind it. Some optimisation, because without it the compiler makes ways of its own.
function(holdfast_count_branches)
  foreach(target ${ARGN})
    get_target_property(files ${target} SOURCES)
    list(FILTER files EXCLUDE REGEX "TARGET_OBJECTS")
    if(TARGET ${target}_little)
      get_target_property(little ${target}_little SOURCES)
      list(APPEND files ${little})
    endif()
    foreach(file ${files})
      file(STRINGS ${file} catches REGEX "^ *} catch " LIMIT_COUNT 1)
      if(NOT catches)
        set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS "SHELL:-include ${HOLDFAST_LAYERS}" -O1 -fno-inline -fno-exceptions -Wno-maybe-uninitialized)
        set_property(SOURCE ${file} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
      endif()
    endforeach()
  endforeach()
endfunction()

# holdfast_compile_per_isa(NAME UNIT name ISAS isa... SOURCES file... LINK target...): adds the files to target NAME once per
# instruction set, each time into a namespace of its own (HF_ISA); the device picks among them when it starts.
function(holdfast_compile_per_isa name)
  cmake_parse_arguments(ARG "" "UNIT" "ISAS;SOURCES;LINK" ${ARGN})
  # A loop that begins where a line of the cache does: elsewhere the same product of matrices took up to 8 % longer on a Zen 3,
  # by what other code in its file had moved it.
  set(flags_loops -falign-loops=64)
  set(flags_portable "")
  set(flags_avx2 -march=x86-64-v3)
  set(flags_avx512 -march=x86-64-v4 -mprefer-vector-width=512)
  set(flags_avx512_bf16 ${flags_avx512} -mavx512bf16)
  set(flags_amx ${flags_avx512_bf16} -mamx-tile -mamx-bf16)
  foreach(isa ${ARG_ISAS})
    set(unit ${name}_${ARG_UNIT}_${isa})
    add_library(${unit} OBJECT ${ARG_SOURCES})
    set_target_properties(${unit} PROPERTIES UNITY_BUILD OFF)
    target_compile_definitions(${unit} PRIVATE HF_ISA=${isa})
    target_compile_options(${unit} PRIVATE ${flags_${isa}} ${flags_loops} -Wno-psabi)
    target_link_libraries(${unit} PUBLIC hf_flags ${ARG_LINK})
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:${unit}>)
  endforeach()
endfunction()

# holdfast_kernel_lists(NAME FUNCTION function NAMESPACE cpu|cuda BUILDS namespace... SOURCES file...): adds to target NAME
# holdfast::kernels::NAMESPACE::FUNCTION(), which returns the lists of files that register kernels (kernels/cpu/register.h,
# kernels/cuda/register.h): one of each file in each of the namespaces that it is built in. The function names every list, so
# that the linker cannot leave one out. Whoever calls adds the files to the target.
function(holdfast_kernel_lists name)
  cmake_parse_arguments(ARG "" "FUNCTION;NAMESPACE" "BUILDS;SOURCES" ${ARGN})
  set(declarations "")
  set(entries "")
  foreach(file ${ARG_SOURCES})
    file(STRINGS ${file} registers REGEX HF_REGISTER_KERNELS)
    if(NOT registers)
      message(FATAL_ERROR "${file} registers no kernels: it needs HF_REGISTER_KERNELS(...), see docs/kernels.md")
    endif()
    cmake_path(GET file STEM LAST_ONLY stem)
    string(MAKE_C_IDENTIFIER kernels_of_${stem} list)
    file(RELATIVE_PATH shown ${PROJECT_SOURCE_DIR} ${file})
    set_property(SOURCE ${file} PROPERTY COMPILE_DEFINITIONS HF_KERNEL_LIST=${list} HF_KERNEL_FILE="${shown}")
    foreach(build ${ARG_BUILDS})
      string(APPEND declarations "namespace ${build} { extern const ImplementationList ${list}; }\n")
      string(APPEND entries "&${build}::${list},\n")
    endforeach()
  endforeach()
  if(ARG_SOURCES)
    set(body "static constexpr const ImplementationList* lists[] = {\n${entries}};\nreturn lists;")
  else()
    set(body "return {};")
  endif()
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/${name}_${ARG_FUNCTION}.cc)
  file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT [[
// Written by cmake/HoldfastLayer.cmake.
#include "kernels/@ARG_NAMESPACE@/lists.h"
namespace holdfast::kernels::@ARG_NAMESPACE@ {
@declarations@
std::span<const ImplementationList* const> @ARG_FUNCTION@();
std::span<const ImplementationList* const> @ARG_FUNCTION@() {
@body@
}
}  // namespace holdfast::kernels::@ARG_NAMESPACE@
]])
  target_sources(${name} PRIVATE ${generated})
endfunction()

# holdfast_cpu_kernels(NAME FUNCTION function SOURCES file... LINK target...): files that register kernels of the CPU, compiled
# into target NAME once per instruction set, and holdfast::kernels::cpu::FUNCTION() with their lists.
function(holdfast_cpu_kernels name)
  cmake_parse_arguments(ARG "" "FUNCTION" "SOURCES;LINK" ${ARGN})
  if(ARG_SOURCES)
    holdfast_compile_per_isa(${name} UNIT ${ARG_FUNCTION} ISAS ${HOLDFAST_OPS_ISAS} SOURCES ${ARG_SOURCES} LINK ${ARG_LINK})
  endif()
  holdfast_kernel_lists(${name} FUNCTION ${ARG_FUNCTION} NAMESPACE cpu BUILDS ${HOLDFAST_OPS_ISAS} SOURCES ${ARG_SOURCES})
endfunction()

# holdfast_table_lists(NAME BUILDS namespace...): adds to target NAME holdfast::kernels::cpu::table_lists() and built_isas()
# (kernels/cpu/lists.h).
function(holdfast_table_lists name)
  cmake_parse_arguments(ARG "" "" "BUILDS" ${ARGN})
  list(TRANSFORM ARG_BUILDS REPLACE "(.+)" "&\\1::table_list," OUTPUT_VARIABLE lists)
  list(TRANSFORM ARG_BUILDS REPLACE "(.+)" "CpuIsa::\\1," OUTPUT_VARIABLE isas)
  list(JOIN lists " " lists)
  list(JOIN isas " " isas)
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/${name}_table_lists.cc)
  file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT [[
// Written by cmake/HoldfastLayer.cmake.
#include "kernels/cpu/lists.h"
namespace holdfast::kernels::cpu {
std::span<const ImplementationList* const> table_lists() {
static constexpr const ImplementationList* lists[] = {@lists@};
return lists;
}
std::span<const CpuIsa> built_isas() {
static constexpr CpuIsa isas[] = {@isas@};
return isas;
}
}  // namespace holdfast::kernels::cpu
]])
  target_sources(${name} PRIVATE ${generated})
endfunction()

# holdfast_kernels(NAME SOURCES folder LINK target...): as holdfast_layer, with folder/cpu/ops compiled per instruction set,
# folder/cpu/ops_bf16 for those that multiply bf16 matrices, and whatever users put into folder/cpu/custom. The yardstick
# ops/stream.cc is no kernel, and always there for all.
function(holdfast_kernels name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  holdfast_layer(${name} SOURCES ${ARG_SOURCES} ${ARG_SOURCES}/cpu ${ARG_SOURCES}/reference LINK ${ARG_LINK})
  set_target_properties(hf_${name} PROPERTIES UNITY_BUILD OFF)
  file(GLOB ops CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${ARG_SOURCES}/cpu/ops/*.cc)
  list(REMOVE_ITEM ops ${PROJECT_SOURCE_DIR}/${ARG_SOURCES}/cpu/ops/stream.cc)
  holdfast_compile_per_isa(hf_${name} UNIT stream ISAS portable avx2 avx512 SOURCES ${ARG_SOURCES}/cpu/ops/stream.cc LINK ${ARG_LINK})
  holdfast_compile_per_isa(hf_${name} UNIT ops ISAS ${HOLDFAST_OPS_ISAS} SOURCES ${ops} LINK ${ARG_LINK})
  file(GLOB ops_bf16 CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${ARG_SOURCES}/cpu/ops_bf16/*.cc)
  holdfast_compile_per_isa(hf_${name} UNIT ops_bf16 ISAS ${HOLDFAST_OPS_BF16_ISAS} SOURCES ${ops_bf16} LINK ${ARG_LINK})
  holdfast_table_lists(hf_${name} BUILDS ${HOLDFAST_OPS_ISAS} ${HOLDFAST_OPS_BF16_ISAS})
  file(GLOB custom CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${ARG_SOURCES}/cpu/custom/*.cc)
  holdfast_cpu_kernels(hf_${name} FUNCTION custom_lists SOURCES ${custom} LINK ${ARG_LINK})
endfunction()

# holdfast_texts(NAME FUNCTION function NAMESPACE namespace FILES file... FOLDER folder): adds to target NAME
# std::string_view namespace::FUNCTION(std::string_view), which returns the text of a file by its name, of the files and of all in
# the folder; empty: there is no such file.
function(holdfast_texts name)
  cmake_parse_arguments(ARG "" "FUNCTION;NAMESPACE;FOLDER" "FILES" ${ARGN})
  list(TRANSFORM ARG_FILES PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE files)
  file(GLOB found CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${ARG_FOLDER}/*)
  set(rows "")
  foreach(file ${files} ${found})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(READ ${file} text)
    cmake_path(GET file FILENAME shown)
    # A literal may not be too long for a compiler that counts: pieces that stand side by side are one.
    string(REPLACE "\n// === " ")hf\"\nR\"hf(\n// === " text "${text}")
    string(APPEND rows "{\"${shown}\",\nR\"hf(${text})hf\"},\n")
  endforeach()
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/${name}_texts.cc)
  file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT [[
// Written by cmake/HoldfastLayer.cmake.
#include <string_view>
namespace @ARG_NAMESPACE@ {
std::string_view @ARG_FUNCTION@(std::string_view name);
std::string_view @ARG_FUNCTION@(std::string_view name) {
struct File { std::string_view name, text; };
static constexpr File files[] = {
@rows@};
for (const File& each : files) {
if (each.name == name) return each.text;
}
return {};
}
}  // namespace @ARG_NAMESPACE@
]])
  target_sources(${name} PRIVATE ${generated})
endfunction()

# holdfast_program(NAME SOURCES folder LINK target...): bin/NAME. Its own files are a command line.
function(holdfast_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${ARG_SOURCES}/*.cc)
  if(files)
    holdfast_optimise_little(${name} files SELDOM ALL LINK ${ARG_LINK})
    add_executable(${name} ${files})
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
    target_link_libraries(${name} PRIVATE hf_flags ${ARG_LINK})
    holdfast_use_precompiled(${name} hf_headers)
    holdfast_find_packed_libraries(${name})
  endif()
endfunction()

# A package brings the libraries that a program needs (HoldfastPackage.cmake). The older kind of search path holds for the
# libraries of a library, too.
function(holdfast_find_packed_libraries target)
  target_link_options(${target} PRIVATE LINKER:--disable-new-dtags)
  set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/../lib")
endfunction()

# holdfast_module(NAME LAYER layer EXPORTS file [FOR program]): bin/libNAME.so, which the program loads when it needs it. It
# has copies of the layers below and shows only the symbols of the file, so that the copies never meet the program's.
function(holdfast_module name)
  cmake_parse_arguments(ARG "" "LAYER;EXPORTS;FOR" "" ${ARGN})
  set(exports ${PROJECT_SOURCE_DIR}/${ARG_EXPORTS})
  add_library(${name} MODULE $<TARGET_OBJECTS:hf_${ARG_LAYER}>)
  target_link_libraries(${name} PRIVATE hf_${ARG_LAYER})
  target_link_options(${name} PRIVATE LINKER:--as-needed LINKER:--version-script=${exports})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX LINK_DEPENDS ${exports}
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  holdfast_relative_rpath(${name})
  if(ARG_FOR)
    add_dependencies(${ARG_FOR} ${name})
  endif()
endfunction()

# VARIABLE = the path as seen from bin/ when it is in the tree, so that the tree can be moved; else as it is.
function(holdfast_path_from_bin path variable)
  cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${path}" NORMALIZE inside)
  if(inside)
    file(RELATIVE_PATH path ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} ${path})
  endif()
  set(${variable} ${path} PARENT_SCOPE)
endfunction()

# For what is linked to MPI and lies in bin/: the MPI of a package, else that of the build. No absolute path to the MPI in .deps
# may get into a binary; an MPI elsewhere does not move with the tree.
function(holdfast_relative_rpath target)
  holdfast_path_from_bin(${HOLDFAST_MPI_PREFIX}/lib rpath)
  cmake_path(IS_ABSOLUTE rpath absolute)
  if(NOT absolute)
    set(rpath "$ORIGIN/${rpath}")
  endif()
  set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/../mpi/lib;${rpath}")
endfunction()

# The paths that the build knows on this machine, for the file: absolute, or relative to the program, so that the tree can be
# moved. The Open MPI of a Python wheel is compiled for another prefix and asks OPAL_PREFIX where it lives; in .deps it is a
# relative link.
function(holdfast_build_places file)
  holdfast_path_from_bin(${HOLDFAST_MPI_PREFIX} mpi)
  holdfast_path_from_bin(${PROJECT_SOURCE_DIR}/configs/mpi tune)
  set(opal "")
  if(IS_SYMLINK ${HOLDFAST_MPI_PREFIX})
    file(READ_SYMLINK ${HOLDFAST_MPI_PREFIX} target)
    cmake_path(IS_RELATIVE target relative)
    if(relative)
      cmake_path(GET mpi PARENT_PATH parent)
      set(opal ${parent}/${target})
    endif()
  endif()
  set_property(SOURCE ${file} APPEND PROPERTY COMPILE_DEFINITIONS
    HF_MPI_PREFIX="${mpi}" HF_OPAL_PREFIX="${opal}" HF_TUNE_DIRECTORY="${tune}")
endfunction()
