// Classifies error codes of the CUDA runtime by their effect on the process that got them. Pure, and without
// CUDA's headers, so that it is tested everywhere.
#pragma once

#include <string_view>

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

// Returns what a user can do about a code that says something about the machine rather than the program, as the
// end of a sentence that begins with "; "; empty for all others.
constexpr std::string_view remedy_of_cuda_error(int code) {
  switch (code) {
    case 46:  // cudaErrorDevicesUnavailable
      return "; another process has this GPU for itself, or it waits for a reset: look at `nvidia-smi -q -d "
             "COMPUTE,PAGE_RETIREMENT`, and end that process or reset the GPU";
    case 802:  // cudaErrorSystemNotReady
      return "; on a host with NVSwitch the fabric manager is not running or has another version than the "
             "driver: look at `systemctl status nvidia-fabricmanager`, and start it";
    case 803:  // cudaErrorSystemDriverMismatch
      return "; the driver of the kernel and that of the libraries are of different versions, as after an "
             "update: restart the host";
    case 999:  // cudaErrorUnknown
      return "; the driver gives no reason: look at `dmesg | grep -i -e nvrm -e xid`, and load the module "
             "nvidia-uvm (`modprobe nvidia-uvm`) if it is not there";
    default:
      return "";
  }
}

}  // namespace holdfast::device
