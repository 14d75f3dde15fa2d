// Classifies error codes of the CUDA runtime by their effect on the process that got them. Pure, and without
// CUDA's headers, so that it is tested everywhere.
#pragma once

namespace holdfast::device {

enum class CudaErrorClass {
  none,         // cudaSuccess
  not_ready,    // cudaErrorNotReady: the answer of a query, not an error
  recoverable,  // the call failed (out of memory, bad argument); the device goes on
  sticky,       // the context is broken for good: every later call fails, and only a new process helps
};

// Returns the class of a code. Sticky errors are those for which driver_types.h says that the process must be
// terminated and launched again, and, treated the same way, an uncorrectable ECC error (214) and an NVLink
// error (220).
constexpr CudaErrorClass cuda_error_class(int code) {
  switch (code) {
    case 0:
      return CudaErrorClass::none;
    case 600:
      return CudaErrorClass::not_ready;
    case 214:  // cudaErrorECCUncorrectable
    case 220:  // cudaErrorNvlinkUncorrectable
    case 226:  // cudaErrorContained
    case 700:  // cudaErrorIllegalAddress
    case 702:  // cudaErrorLaunchTimeout
    case 710:  // cudaErrorAssert
    case 714:  // cudaErrorHardwareStackError
    case 715:  // cudaErrorIllegalInstruction
    case 716:  // cudaErrorMisalignedAddress
    case 717:  // cudaErrorInvalidAddressSpace
    case 718:  // cudaErrorInvalidPc
    case 719:  // cudaErrorLaunchFailure
    case 721:  // cudaErrorTensorMemoryLeak
    case 810:  // cudaErrorMpsClientTerminated
    case 911:  // cudaErrorExternalDevice
      return CudaErrorClass::sticky;
    default:
      return CudaErrorClass::recoverable;
  }
}

}  // namespace holdfast::device
