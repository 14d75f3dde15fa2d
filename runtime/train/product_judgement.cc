#include "runtime/train/product_judgement.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <span>
#include <string>

#include "parallel/comm/device_wait.h"
#include "parallel/comm/gather.h"
#include "runtime/integrity/hardware_findings.h"
#include "runtime/rank/watch.h"

namespace holdfast::train {
namespace {

// ProductRecord says what the test of one rank found; no shape: nothing.
struct ProductRecord {
  std::string host = {};
  int rank = 0;  // global
  int data = 0;  // coordinate
  std::string shape = {};
  bool lasts = false;
  std::uint64_t sound_step = 0;  // newest step after which it is known to have computed right
  OwnHardware hardware = {};

  bool is_wrong() const { return !shape.empty(); }
  static void visit_fields(auto& self, auto&& visit) {
    visit("host", self.host);
    visit("rank", self.rank);
    visit("data", self.data);
    visit("shape", self.shape);
    visit("lasts", self.lasts);
    visit("sound_step", self.sound_step);
    visit("hardware", self.hardware);
  }
};

Result<std::vector<ProductRecord>> gather_records(Worker& worker) {
  const Communicator& all = worker.rank().communicator;
  ProductRecord record{.host = worker.rank().env.host_name(),
                       .rank = all.global_rank(all.rank()),
                       .data = worker.rank().coordinate.data,
                       .hardware = own_hardware(worker.rank())};
  if (const std::optional<WrongProduct>& found = worker.checks().products.finding()) {
    record.shape = found->shape;
    record.lasts = found->lasts;
    record.sound_step = std::max(worker.sound_step(), found->right_step);
  }
  worker.checks().products.forget();
  return gather(worker.rank().communicator, worker.rank().waiter, record);
}

// Returns the ranks whose finding lasts; none where they are of more than one copy of the model, without which the
// run may not be able to go on.
std::vector<int> ranks_to_blame(std::span<const ProductRecord> records) {
  std::set<int> copies;
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    if (!records[rank].is_wrong() || !records[rank].lasts) continue;
    copies.insert(records[rank].data);
    ranks.push_back(static_cast<int>(rank));
  }
  return copies.size() == 1 ? ranks : std::vector<int>();
}

}  // namespace

void test_products(Worker& worker) {
  const RankContext& rank = worker.rank();
  const std::uint64_t bytes = worker.workload().buckets.gradient_elements() * sizeof(float);
  worker.checks().products.run({.device = rank.device,
                                .access = worker.state_view().host_access,
                                .scratch = {reinterpret_cast<std::byte*>(worker.stage().gradients()), bytes},
                                .wait = [&rank] { wait_for_device(rank.device, rank.communicator); }},
                               worker.state().step, [&rank] { mark(rank.watch); });
}

Result<AuditedStep> judge_products(Worker& worker, const Attempt& attempt) {
  HF_TRY(const std::vector<ProductRecord> records, gather_records(worker));
  AuditedStep step{
      .attempt = attempt, .sound_step = worker.state().step, .to_blame = ranks_to_blame(records)};
  const ProductRecord* worst = nullptr;
  std::vector<std::string> names;
  for (const ProductRecord& record : records) {
    if (!record.is_wrong()) continue;
    names.push_back(
        fmt::format("rank {} (host {}) computed a product {} wrong", record.rank, record.host, record.shape));
    step.lasts |= record.lasts;
    if (record.lasts) step.sound_step = std::min(step.sound_step, record.sound_step);
    if (worst == nullptr || (record.lasts && !worst->lasts)) worst = &record;
  }
  HF_CHECK(worst != nullptr);
  step.report = {.step = worker.state().step + 1,
                 .what = "corruption",
                 .of = "grad_norm",
                 .value = attempt.grad_norm,
                 .attempts = 1,
                 .differing_ranks = static_cast<int>(names.size()),
                 .op = name_of(OpId::matmul)};
  step.report.reason = fmt::format(
      "step {}: {}, whose result is known{}", step.report.step, fmt::join(names, ", "),
      step.lasts ? fmt::format(", and again when it was made again; weights may be wrong since step {}",
                               step.sound_step)
                 : ", but right when it was made again");
  if (names.size() > 1) {
    for (const ProductRecord& record : records) {
      if (!record.is_wrong()) continue;
      note_finding(worker.rank(), record.host, record.hardware,
                   record.lasts ? finding_kinds::lasts : finding_kinds::once, step.report.step);
    }
    return step;
  }
  step.report.rank = worst->rank;
  step.report.host = worst->host;
  step.is_repeated = worst->hardware.earlier_findings > 0;
  if (!step.lasts)
    step.to_blame = {
        static_cast<int>(std::ranges::find(records, worst->rank, &ProductRecord::rank) - records.begin())};
  note_finding(worker.rank(), worst->hardware, step.lasts ? finding_kinds::lasts : finding_kinds::once,
               step.report);
  return step;
}

Result<std::vector<int>> ranks_with_wrong_products(Worker& worker) {
  test_products(worker);
  HF_TRY(const std::vector<ProductRecord> records, gather_records(worker));
  return ranks_to_blame(records);
}

}  // namespace holdfast::train
