// The layers of the tree, each a namespace that sees the names of those before it (docs/architecture.md). The
// build includes this file before every other (cmake/HoldfastFlags.cmake), so that code names a type of a lower
// layer as it is, and a layer's code never finds a name of a higher one.
#pragma once

// clang-format off
namespace holdfast {
namespace core {}
namespace os { using namespace core; }
namespace hazard { using namespace os; }
namespace kernels { using namespace hazard; }
namespace config { using namespace kernels; }
namespace device { using namespace config; }
namespace checkpoint { using namespace device; }
namespace watchdog { using namespace checkpoint; }
namespace parallel { using namespace watchdog; }
namespace run { using namespace parallel; }
namespace health { using namespace run; }
namespace metrics { using namespace health; }
namespace report { using namespace metrics; }
namespace data { using namespace report; }
namespace text { using namespace data; }
namespace model { using namespace text; }
namespace optim { using namespace model; }
namespace interop { using namespace optim; }
namespace rank { using namespace interop; }
namespace integrity { using namespace rank; }
namespace save { using namespace integrity; }
namespace train { using namespace save; }
namespace measure { using namespace train; }
namespace elastic { using namespace measure; }
namespace inference { using namespace elastic; }
namespace replay { using namespace inference; }
namespace plan { using namespace replay; }
namespace launch { using namespace plan; }
namespace bench { using namespace launch; }
namespace chaos { using namespace bench; }
namespace cli { using namespace chaos; }
namespace test { using namespace cli; }
namespace fuzz { using namespace test; }
}  // namespace holdfast
// clang-format on
