# The CUDA device: runtime/device/cuda with kernels/cuda, compiled wherever nvcc is found so that it never rots, into a library
# that the program loads when a GPU is asked for. (tests/cuda_emulator compiles the same files for the CPU.)
set(HOLDFAST_CUDA AUTO CACHE STRING "CUDA device: ON, OFF, or AUTO (when there is nvcc)")
set_property(CACHE HOLDFAST_CUDA PROPERTY STRINGS AUTO ON OFF)

set(HOLDFAST_CUDA_WANTED ${HOLDFAST_CUDA})
if(HOLDFAST_NATIVE AND HOLDFAST_CUDA STREQUAL AUTO AND NOT EXISTS /dev/nvidiactl)
  set(HOLDFAST_CUDA_WANTED OFF) # it takes seconds to find out what nvcc can do
endif()

if(HOLDFAST_CUDA_WANTED)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 90) # one keeps the build short; the preset "cuda" has all
    endif()
    if(CCACHE)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
    endif()
    enable_language(CUDA)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20) # CMake 3.25 does not know that nvcc has it
    find_package(CUDAToolkit REQUIRED)
  elseif(NOT HOLDFAST_CUDA STREQUAL AUTO)
    message(FATAL_ERROR "HOLDFAST_CUDA=ON, but nvcc was not found: install the CUDA toolkit, or put nvcc in the PATH")
  endif()
endif()

# holdfast_cuda_module(NAME): bin/libNAME.so from runtime/device/cuda and kernels/cuda, where there is nvcc. With HF_NCCL it can
# use NCCL: only the header is needed here, libnccl itself is loaded when the program asks for it.
function(holdfast_cuda_module name)
  if(NOT CMAKE_CUDA_COMPILER OR NOT HOLDFAST_CUDA_WANTED)
    return()
  endif()
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cc
    ${PROJECT_SOURCE_DIR}/runtime/device/cuda/*.cc)
  file(GLOB custom CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/custom/*.cu)
  # Kernels with instructions that compute capability 9.0 alone has, and only under the name sm_90a: beside sm_90, which
  # has everything else. The registry gives them to no other GPU (Implementation::needs_gpu).
  file(GLOB sm_90a CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/sm_90a/*.cu)
  set(custom_sm_90a ${custom})
  list(FILTER custom_sm_90a INCLUDE REGEX "\\.sm_90a\\.cu$")
  list(FILTER custom EXCLUDE REGEX "\\.sm_90a\\.cu$")
  set(architectures ${CMAKE_CUDA_ARCHITECTURES})
  set(has_sm_90a FALSE)
  if("90" IN_LIST architectures OR "90a" IN_LIST architectures)
    set(has_sm_90a TRUE)
    list(APPEND architectures 90a)
    list(REMOVE_DUPLICATES architectures)
  else()
    set(custom_sm_90a "")
  endif()
  foreach(file ${custom_sm_90a})
    file(STRINGS ${file} says REGEX "needs_gpu = 90")
    if(NOT says)
      message(FATAL_ERROR "${file} must register its kernels with .needs_gpu = 90: no other GPU runs what is built for sm_90a")
    endif()
  endforeach()
  add_library(hf_cuda STATIC ${files} ${custom})
  set_target_properties(hf_cuda PROPERTIES UNITY_BUILD OFF)
  holdfast_kernel_lists(hf_cuda FUNCTION custom_lists NAMESPACE cuda BUILDS custom SOURCES ${custom} ${custom_sm_90a})
  list(TRANSFORM architectures PREPEND "sm_" OUTPUT_VARIABLE built_for)
  list(JOIN built_for ", " built_for)
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/runtime/device/cuda/trial.cc PROPERTY COMPILE_DEFINITIONS HF_CUDA_BUILT_FOR="${built_for}")
  # --fmad=false, as -ffp-contract=off for the host: products and sums are fused where the source says fmaf. By itself nvcc fuses
  # what inlining and unrolling happen to bring together, even 1 + e^x with the last product inside of expf(). That is the same
  # in every run of one build, but two instances of a template that must have the same bits (whole and ragged rows, forward and
  # its recomputation), two toolkits, and the emulator may then differ. Sums of products say fmaf, so no inner loop gets longer.
  set(cuda_warnings $<$<BOOL:${HOLDFAST_WARNINGS_AS_ERRORS}>:--Werror=all-warnings>)
  set(cuda_options $<$<COMPILE_LANGUAGE:CUDA>:${cuda_warnings} --fmad=false -lineinfo --ptxas-options=-v --threads=2>)
  target_compile_options(hf_cuda PRIVATE ${cuda_options})
  if(has_sm_90a)
    add_library(hf_cuda_sm_90a OBJECT ${sm_90a} ${custom_sm_90a})
    set_target_properties(hf_cuda_sm_90a PROPERTIES CUDA_ARCHITECTURES 90a UNITY_BUILD OFF)
    target_compile_options(hf_cuda_sm_90a PRIVATE ${cuda_options})
    target_link_libraries(hf_cuda_sm_90a PRIVATE hf_flags hf_kernels CUDA::cudart_static)
    target_sources(hf_cuda PRIVATE $<TARGET_OBJECTS:hf_cuda_sm_90a>)
    set_property(SOURCE ${PROJECT_SOURCE_DIR}/runtime/device/cuda/trial.cc ${PROJECT_SOURCE_DIR}/kernels/cuda/table.cc
      APPEND PROPERTY COMPILE_DEFINITIONS HF_CUDA_SM_90A)
  endif()
  target_link_libraries(hf_cuda PUBLIC hf_flags hf_kernels hf_device CUDA::cudart_static CUDA::cublasLt ${CMAKE_DL_LIBS})
  find_path(HOLDFAST_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(HOLDFAST_NCCL_INCLUDE)
    set_property(SOURCE ${PROJECT_SOURCE_DIR}/runtime/device/cuda/nccl_loader.cc APPEND PROPERTY COMPILE_DEFINITIONS HF_NCCL)
    target_include_directories(hf_cuda SYSTEM PRIVATE ${HOLDFAST_NCCL_INCLUDE})
  endif()
  holdfast_module(${name} LAYER cuda EXPORTS runtime/device/cuda/cuda_module.map)
  # cuBLASLt stays where the toolkit is, which the system's linker often does not know.
  set_property(TARGET ${name} APPEND PROPERTY INSTALL_RPATH ${CUDAToolkit_LIBRARY_DIR})
endfunction()
