# The CUDA device: kernels/cuda, compiled wherever nvcc is found so that it never rots, into a library that the program loads
# when a GPU is asked for. (tests/cuda_emulator compiles the same files for the CPU.)
set(HOLDFAST_CUDA AUTO CACHE STRING "CUDA device: ON, OFF, or AUTO (when there is nvcc)")
set_property(CACHE HOLDFAST_CUDA PROPERTY STRINGS AUTO ON OFF)

if(HOLDFAST_CUDA)
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

# holdfast_cuda_module(NAME FOR program): bin/libNAME.so from kernels/cuda, where there is nvcc. With HF_NCCL it can use NCCL:
# only the header is needed here, libnccl itself is loaded when the program asks for it.
function(holdfast_cuda_module name)
  cmake_parse_arguments(ARG "" "FOR" "" ${ARGN})
  if(NOT CMAKE_CUDA_COMPILER OR NOT HOLDFAST_CUDA)
    return()
  endif()
  file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cc)
  file(GLOB custom CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/custom/*.cu)
  add_library(hf_cuda STATIC ${files} ${custom})
  holdfast_kernel_lists(hf_cuda FUNCTION custom_lists NAMESPACE cuda BUILDS custom SOURCES ${custom})
  list(TRANSFORM CMAKE_CUDA_ARCHITECTURES PREPEND "sm_" OUTPUT_VARIABLE built_for)
  list(JOIN built_for ", " built_for)
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/kernels/cuda/trial.cc PROPERTY COMPILE_DEFINITIONS HF_CUDA_BUILT_FOR="${built_for}")
  # --fmad=false, as -ffp-contract=off for the host: products and sums are fused where the source says fmaf. By itself nvcc fuses
  # what inlining and unrolling happen to bring together, even 1 + e^x with the last product inside of expf(). That is the same
  # in every run of one build, but two instances of a template that must have the same bits (whole and ragged rows, forward and
  # its recomputation), two toolkits, and the emulator may then differ. Sums of products say fmaf, so no inner loop gets longer.
  target_compile_options(hf_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings --fmad=false -lineinfo
    --ptxas-options=-v --threads=2>)
  target_link_libraries(hf_cuda PUBLIC hf_flags hf_kernels CUDA::cudart_static CUDA::cublasLt ${CMAKE_DL_LIBS})
  find_path(HOLDFAST_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(HOLDFAST_NCCL_INCLUDE)
    set_property(SOURCE ${PROJECT_SOURCE_DIR}/kernels/cuda/nccl_loader.cc APPEND PROPERTY COMPILE_DEFINITIONS HF_NCCL)
    target_include_directories(hf_cuda SYSTEM PRIVATE ${HOLDFAST_NCCL_INCLUDE})
  endif()
  holdfast_module(${name} LAYER cuda EXPORTS kernels/cuda/cuda_module.map FOR ${ARG_FOR})
  # cuBLASLt stays where the toolkit is, which the system's linker often does not know.
  set_property(TARGET ${name} APPEND PROPERTY INSTALL_RPATH ${CUDAToolkit_LIBRARY_DIR})
endfunction()
