#include "runtime/plan/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/core/text.h"
#include "runtime/core/units.h"
#include "runtime/measure/report.h"
#include "runtime/model/adapter_spec.h"
#include "runtime/save/save_cadence.h"

namespace holdfast::plan {

std::string count_text(double count) {
  struct Unit {
    double size;
    const char* name;
  };
  for (const Unit unit :
       {Unit{1e18, "E"}, Unit{1e15, "P"}, Unit{1e12, "T"}, Unit{1e9, "G"}, Unit{1e6, "M"}, Unit{1e3, "k"}}) {
    if (count >= unit.size) return fmt::format("{} {}", digits(count / unit.size), unit.name);
  }
  return fmt::format("{} ", digits(count));
}

namespace {

std::string seconds_text(double seconds) {
  return seconds < 1.0 ? fmt::format("{} ms", digits(seconds * 1e3)) : fmt::format("{} s", digits(seconds));
}

double tokens_per_second(const LayoutPlan& plan) {
  return static_cast<double>(plan.tokens_per_step()) / plan.time->seconds();
}

std::string shape_text(const LayoutPlan& plan) {
  return fmt::format("{} data x {} pipeline x {} tensor", plan.shape.data, plan.shape.pipeline,
                     plan.shape.tensor);
}

std::string schedule_text(const LayoutPlan& plan) {
  const ParallelConfig& parallel = plan.config.parallel;
  if (parallel.pipeline == 1) return "one stage";
  std::string text = fmt::format("{} in {} stages", parallel.pipeline_schedule, parallel.pipeline);
  if (parallel.pipeline_chunks > 1) text += fmt::format(" of {} chunks", parallel.pipeline_chunks);
  return text;
}

// "embedding, layers 0-3", of all chunks.
std::string parts_text(const RankPlan& rank) {
  std::vector<std::string> words;
  for (const ModelPart& part : rank.parts) {
    if (part.has_embedding) words.emplace_back("embedding");
    if (part.layers() == 1) words.push_back(fmt::format("layer {}", part.first_layer));
    if (part.layers() > 1) words.push_back(fmt::format("layers {}-{}", part.first_layer, part.end_layer - 1));
    if (part.has_head) words.emplace_back("head");
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

std::uint64_t state_bytes(const Config& config) {
  return state_bytes(make_model_spec(config), config.optimizer);
}

// Returns the bytes of so many checkpoints. With checkpoint.delta they share the frozen tensors.
std::uint64_t kept_bytes(const Config& config, std::int64_t checkpoints) {
  const ModelSpec spec = make_model_spec(config);
  const auto kept = static_cast<std::uint64_t>(checkpoints);
  const std::uint64_t frozen = (parameter_count(spec) - trained_parameter_count(spec)) * sizeof(float);
  return state_bytes(config) * kept - (config.checkpoint.delta ? frozen * (kept - 1) : 0);
}

double step_flops(const Config& config) {
  return flops_per_token(make_model_spec(config), config.training.sequence_length) *
         static_cast<double>(tokens_per_step(config));
}

std::string checkpoints_text(const Config& config) {
  const CheckpointNumbers most = most_checkpoints(config);
  std::string text = fmt::format(
      "  checkpoint  {}; up to {} are there at once ({}): {} of checkpoint.keep, one that is written",
      format_bytes(state_bytes(config)), most.all(), format_bytes(kept_bytes(config, most.all())),
      most.newest);
  if (most.to_return_to > 0)
    text += fmt::format(", {} that the run may have to go back to", most.to_return_to);
  if (most.for_good > 0) text += fmt::format(", {} of checkpoint.keep_every_steps", most.for_good);
  return text + "\n";
}

std::string layout_text(const LayoutPlan& plan) {
  return fmt::format("  lanes       {} on a rank at most; recompute {}\n  schedule    {}, bubble {:.1f} %\n",
                     plan.waves, plan.config.training.recompute, schedule_text(plan),
                     100.0 * plan.bubble_share);
}

// Returns for each stage the rank that needs most memory.
std::vector<const RankPlan*> largest_of_stages(const LayoutPlan& plan, const PlannedMachine& machine) {
  std::vector<const RankPlan*> stages(static_cast<std::size_t>(plan.shape.pipeline), nullptr);
  for (const RankPlan& rank : plan.ranks) {
    const RankPlan*& largest = stages[static_cast<std::size_t>(rank.coordinate.pipeline)];
    if (largest == nullptr || rank.needed_bytes(machine) > largest->needed_bytes(machine)) largest = &rank;
  }
  return stages;
}

std::string memory_text(const LayoutPlan& plan, const PlannedMachine& machine) {
  std::vector<std::string> header = {"memory of a rank"};
  for (std::size_t i = 0; i < memory_class_count; ++i)
    header.emplace_back(name_of(static_cast<MemoryClass>(i)));
  const bool has_snapshots = plan.shared_bytes() > 0;
  if (has_snapshots) header.emplace_back("RAM snapshots");
  header.insert(header.end(), {"kernels", "total"});
  TextTable table(std::move(header), 1);
  for (const RankPlan* rank : largest_of_stages(plan, machine)) {
    const std::string name = plan.shape.pipeline == 1 ? std::string("every layer") : parts_text(*rank);
    std::vector<std::string> row = {name};
    for (const std::uint64_t bytes : rank->class_bytes) row.push_back(format_bytes(bytes));
    if (has_snapshots) row.push_back(format_bytes(rank->shared_bytes));
    row.push_back(machine.kernels != nullptr ? format_bytes(rank->kernel_bytes) : "?");
    row.push_back(format_bytes(rank->needed_bytes(machine)));
    table.add(std::move(row));
  }
  return table.text();
}

std::string room_text(const LayoutPlan& plan, const PlannedMachine& machine) {
  const std::optional<std::uint64_t> room = machine.bytes_for_rank(plan.shape.ranks());
  if (!room.has_value()) return "how much memory a rank has is not known here: give --memory-gib\n";
  const std::uint64_t needed = plan.largest(machine).needed_bytes(machine);
  return fmt::format("{}: {} of {} for a rank{}\n", plan.fits(machine) ? "fits" : "DOES NOT FIT",
                     format_bytes(needed), format_bytes(*room),
                     machine.rank_bytes.has_value()
                         ? ""
                         : fmt::format(" ({} on this machine / {} ranks)", format_bytes(*machine.host_bytes),
                                       machine.ranks_on_host(plan.shape.ranks())));
}

std::string process_text(const PlannedMachine& machine) {
  if (!machine.host_sees_memory) return {};
  return fmt::format("the program itself: at most {} more of a rank (heap, MPI, stacks, buffers of a save)\n",
                     format_bytes(process_bytes));
}

// Describes the shared memory, in which RAM snapshots outlive their process.
std::string shared_text(const LayoutPlan& plan, const PlannedMachine& machine) {
  const std::uint64_t needed = plan.shared_bytes_of_host(machine);
  if (needed == 0) return {};
  const int on_host = machine.ranks_on_host(plan.shape.ranks());
  std::string text =
      fmt::format("RAM snapshots: {} of /dev/shm {}", format_bytes(needed),
                  on_host == plan.shape.ranks() ? "where all ranks are on one host"
                                                : fmt::format("on a host of {} ranks", on_host));
  if (!machine.shared_bytes.has_value()) return text + "\n";
  text += fmt::format(", {} free here\n", format_bytes(*machine.shared_bytes));
  if (needed > *machine.shared_bytes)
    text += "  DO NOT FIT: the run would go on without them; make /dev/shm larger\n";
  return text;
}

struct TrafficRow {
  std::string name;
  Traffic StepTraffic::*of;
};
std::vector<TrafficRow> traffic_rows() {
  return {{"data: gradients", &StepTraffic::gradients},
          {"  of these with other hosts", &StepTraffic::gradients_between_hosts},
          {"data: parameters", &StepTraffic::parameters},
          {"  of those with other hosts", &StepTraffic::parameters_between_hosts},
          {"pipeline: boundaries", &StepTraffic::boundaries},
          {"pipeline: tied weight", &StepTraffic::tied},
          {"tensor: slices", &StepTraffic::slices},
          {"votes", &StepTraffic::votes}};
}

std::string traffic_text(const LayoutPlan& plan) {
  TextTable table({"traffic of a rank and step", "sent", "messages", "received", "messages"}, 1);
  for (const TrafficRow& row : traffic_rows()) {
    Traffic most;
    for (const RankPlan& rank : plan.ranks) {
      const Traffic& traffic = rank.traffic.*row.of;
      most.bytes_sent = std::max(most.bytes_sent, traffic.bytes_sent);
      most.messages_sent = std::max(most.messages_sent, traffic.messages_sent);
      most.bytes_received = std::max(most.bytes_received, traffic.bytes_received);
      most.messages_received = std::max(most.messages_received, traffic.messages_received);
    }
    if (most == Traffic{}) continue;
    table.add({row.name, format_bytes(most.bytes_sent), std::to_string(most.messages_sent),
               format_bytes(most.bytes_received), std::to_string(most.messages_received)});
  }
  return table.text();
}

// Returns whether a step is estimated to multiply faster than the peak that its MFU refers to.
bool beats_peak(const LayoutPlan& plan, const PlannedMachine& machine) {
  return plan.model_flops_utilization(machine).value_or(0.0) > 1.0;
}
constexpr const char* beaten_peak_text =
    "  MFU over 100 % says that the peak is too low: large products were measured while this machine was "
    "busy; plan "
    "again when it is idle\n";

std::string mfu_clause(const LayoutPlan& plan, const PlannedMachine& machine) {
  const std::optional<double> mfu = plan.model_flops_utilization(machine);
  if (!mfu.has_value()) return {};
  return fmt::format(", MFU {:.1f} % of {}FLOP/s for a rank", 100.0 * *mfu,
                     count_text(machine.prices->flops_per_second()));
}

std::string hidden_text(const StepTime& time, const PlannedMachine& machine) {
  if (!machine.has_links()) return {};
  if (!machine.overlaps_messages) {
    return "  nothing of the communication is hidden: the processors that compute move it\n";
  }
  std::vector<std::string> words;
  const auto add = [&](double seconds, const char* name) {
    if (seconds > 0.0) words.push_back(fmt::format("{} of {}", seconds_text(seconds), name));
  };
  add(time.hidden.gradients, "gradients behind the backward");
  add(time.hidden.parameters, "parameters behind the next forward");
  add(time.hidden.boundaries, "stage boundaries behind other microbatches");
  add(time.hidden.snapshot, "a RAM snapshot behind the next step");
  if (words.empty()) return {};
  return fmt::format("  hidden beside that: {}\n", fmt::join(words, ", "));
}

std::string time_text(const LayoutPlan& plan, const PlannedMachine& machine) {
  if (!plan.time.has_value()) {
    return "step time: not estimated; give --peak-tflops and --memory-gbs of what a rank computes on\n";
  }
  const StepTime& time = *plan.time;
  std::string parts = fmt::format("{} forward and backward", seconds_text(time.compute));
  const auto add = [&](double seconds, const char* name) {
    if (seconds >= 1e-3 * time.seconds()) parts += fmt::format(" + {} {}", seconds_text(seconds), name);
  };
  add(time.bubble, "bubble");
  add(time.waiting, "waiting for a processor");
  add(time.sums, "gradient sums");
  add(time.update, "update");
  add(time.communication, "communication that nothing hides");
  return fmt::format("step time: {}, {}tokens/s{}\n  = {}\n{}{}  from {}\n", seconds_text(time.seconds()),
                     count_text(tokens_per_second(plan)), mfu_clause(plan, machine), parts,
                     beats_peak(plan, machine) ? beaten_peak_text : "", hidden_text(time, machine),
                     machine.prices->description());
}

std::string smaller_text(const RunPlan& plan, const PlannedMachine& machine) {
  TextTable table({"ranks", "replicas", "lanes on a rank", "memory", "step", "tokens/s"}, 0);
  const auto add = [&](const LayoutPlan& layout) {
    table.add({std::to_string(layout.shape.ranks()), std::to_string(layout.shape.data),
               std::to_string(layout.waves), format_bytes(layout.largest(machine).needed_bytes(machine)),
               layout.time.has_value() ? seconds_text(layout.time->seconds()) : "?",
               layout.time.has_value() ? count_text(tokens_per_second(layout)) : "?"});
  };
  add(plan.layout);
  std::uint64_t most = 0;
  for (const LayoutPlan& smaller : plan.smaller) {
    add(smaller);
    most = std::max(most, smaller.largest(machine).needed_bytes(machine));
  }
  const std::uint64_t now = plan.layout.largest(machine).needed_bytes(machine);
  return fmt::format(
      "{}to go on with {} replica{} (elastic.min_data_parallel) a rank must have {}, {} more than now\n",
      table.text(), plan.smaller.back().shape.data, plan.smaller.back().shape.data == 1 ? "" : "s",
      format_bytes(std::max(most, now)), format_bytes(most > now ? most - now : 0));
}

Json time_json(const LayoutPlan& plan, const PlannedMachine& machine) {
  const std::optional<double> mfu = plan.model_flops_utilization(machine);
  if (!plan.time.has_value()) return nullptr;
  const StepTime& time = *plan.time;
  return {{"step_ms", time.seconds() * 1e3},
          {"compute_ms", time.compute * 1e3},
          {"bubble_ms", time.bubble * 1e3},
          {"waiting_ms", time.waiting * 1e3},
          {"gradient_sums_ms", time.sums * 1e3},
          {"update_ms", time.update * 1e3},
          {"communication_ms", time.communication * 1e3},
          {"hidden_ms",
           {{"gradients", time.hidden.gradients * 1e3},
            {"parameters", time.hidden.parameters * 1e3},
            {"boundaries", time.hidden.boundaries * 1e3},
            {"snapshot", time.hidden.snapshot * 1e3}}},
          {"mfu", mfu.has_value() ? Json(*mfu) : Json()},
          {"tokens_per_sec", tokens_per_second(plan)}};
}

Json traffic_json(const Traffic& traffic) {
  return {{"bytes_sent", traffic.bytes_sent},
          {"messages_sent", traffic.messages_sent},
          {"bytes_received", traffic.bytes_received},
          {"messages_received", traffic.messages_received}};
}

Json rank_json(const RankPlan& rank, const PlannedMachine& machine) {
  Json classes = Json::object();
  for (std::size_t i = 0; i < memory_class_count; ++i) {
    classes[std::string(name_of(static_cast<MemoryClass>(i)))] = rank.class_bytes[i];
  }
  return {{"data", rank.coordinate.data},
          {"pipeline", rank.coordinate.pipeline},
          {"parts", parts_text(rank)},
          {"memory_bytes", rank.needed_bytes(machine)},
          {"class_bytes", classes},
          {"shared_memory_bytes", rank.shared_bytes},
          {"kernel_bytes", machine.kernels != nullptr ? Json(rank.kernel_bytes) : Json()},
          {"traffic",
           {{"data", traffic_json(rank.traffic.data())},
            {"gradients_between_hosts", traffic_json(rank.traffic.gradients_between_hosts)},
            {"parameters_between_hosts", traffic_json(rank.traffic.parameters_between_hosts)},
            {"pipeline", traffic_json(rank.traffic.pipeline())},
            {"tensor", traffic_json(rank.traffic.slices)},
            {"votes", traffic_json(rank.traffic.votes)}}}};
}

Json settings_json(const std::vector<Setting>& settings) {
  Json json = Json::object();
  for (const Setting& setting : settings) json[setting.key] = Json::parse(setting.value);
  return json;
}

Json layout_json(const LayoutPlan& plan, const PlannedMachine& machine) {
  const std::optional<std::uint64_t> room = machine.bytes_for_rank(plan.shape.ranks());
  return {{"ranks", plan.shape.ranks()},
          {"data", plan.shape.data},
          {"pipeline", plan.shape.pipeline},
          {"tensor", plan.shape.tensor},
          {"schedule", plan.config.parallel.pipeline_schedule},
          {"chunks", plan.config.parallel.pipeline_chunks},
          {"recompute", plan.config.training.recompute},
          {"lanes_on_a_rank", plan.waves},
          {"bubble_share", plan.bubble_share},
          {"memory_bytes", plan.largest(machine).needed_bytes(machine)},
          {"process_bytes", machine.host_sees_memory ? Json(process_bytes) : Json()},
          {"shared_memory_bytes", plan.shared_bytes()},
          {"available_shared_memory_bytes",
           machine.shared_bytes.has_value() ? Json(*machine.shared_bytes) : Json()},
          {"available_bytes", room.has_value() ? Json(*room) : Json()},
          {"fits", room.has_value() ? Json(plan.fits(machine)) : Json()},
          {"time", time_json(plan, machine)}};
}

}  // namespace

std::string run_text(const Config& config) {
  const ModelSpec spec = make_model_spec(config);
  const TrainingConfig& training = config.training;
  std::string text = fmt::format(
      "  model       {} style, {} layers, width {}, vocabulary {}: {} parameters, {}\n", config.model.style,
      spec.layers, spec.width, spec.vocabulary, parameter_count(spec), training.precision);
  const std::uint64_t trained = trained_parameter_count(spec), all = parameter_count(spec);
  if (trained < all) {
    text += fmt::format("  trained     {} of them ({:.1f} %); {}\n", trained,
                        100.0 * static_cast<double>(trained) / static_cast<double>(all),
                        spec.lora.is_on() ? text_of(spec.lora)
                                          : fmt::format("frozen: {}", fmt::join(config.model.freeze, ", ")));
  }
  text += fmt::format("  step        {} tokens in {} lanes of {} x {} samples\n", tokens_per_step(config),
                      config.parallel.lanes, training.microbatches_per_lane, training.microbatch_size);
  text += fmt::format("  compute     {}FLOP per token, {}FLOP per step\n",
                      count_text(flops_per_token(spec, training.sequence_length)),
                      count_text(step_flops(config)));
  return text + checkpoints_text(config);
}

std::string plan_text(const RunPlan& plan, const PlannedMachine& machine) {
  const LayoutPlan& layout = plan.layout;
  std::string text = fmt::format("{} rank{}: {}\n", layout.shape.ranks(),
                                 layout.shape.ranks() == 1 ? "" : "s", shape_text(layout));
  text += layout_text(layout) + "\n" + memory_text(layout, machine) + room_text(layout, machine);
  text += process_text(machine) + shared_text(layout, machine);
  if (layout.shape.ranks() > 1) text += "\n" + traffic_text(layout);
  text += "\n" + time_text(layout, machine);
  if (!plan.smaller.empty()) text += "\n" + smaller_text(plan, machine);
  return text;
}

Json plan_json(const RunPlan& plan, const PlannedMachine& machine) {
  const LayoutPlan& layout = plan.layout;
  const ModelSpec spec = make_model_spec(layout.config);
  Json ranks = Json::array(), smaller = Json::array();
  for (const RankPlan& rank : layout.ranks) ranks.push_back(rank_json(rank, machine));
  for (const LayoutPlan& each : plan.smaller) smaller.push_back(layout_json(each, machine));
  return {{"parameters", parameter_count(spec)},
          {"flops_per_token", flops_per_token(spec, layout.config.training.sequence_length)},
          {"flops_per_step", step_flops(layout.config)},
          {"tokens_per_step", layout.tokens_per_step()},
          {"checkpoint_bytes", state_bytes(layout.config)},
          {"checkpoints_at_once", most_checkpoints(layout.config).all()},
          {"checkpoints_at_once_bytes", kept_bytes(layout.config, most_checkpoints(layout.config).all())},
          {"prices", machine.prices != nullptr ? Json(machine.prices->description()) : Json()},
          {"layout", layout_json(layout, machine)},
          {"ranks", ranks},
          {"smaller", smaller}};
}

std::string settings_text(const std::vector<Setting>& settings) {
  std::vector<std::string> words;
  for (const Setting& setting : settings) words.push_back(fmt::format("{} = {}", setting.key, setting.value));
  return fmt::format("{}", fmt::join(words, ", "));
}

namespace {

// Returns a text on why the first layout of a search is faster than the second.
std::string why_text(const LayoutSearch& search) {
  const LayoutPlan& first = search.plans.front();
  std::string text = fmt::format("why: it takes {}", seconds_text(first.time->seconds()));
  if (search.plans.size() == 1) return text + "; no other layout was found that fits\n";
  const LayoutPlan& second = search.plans[1];
  const StepTime &one = *first.time, &other = *second.time;
  text += fmt::format(", {} less than {}", seconds_text(other.seconds() - one.seconds()), shape_text(second));
  std::vector<std::string> words;
  const auto compare = [&](double StepTime::*part, const char* name) {
    const double less = other.*part - one.*part;
    if (std::abs(less) < 1e-3 * one.seconds()) return;
    words.push_back(
        fmt::format("{} {} {}", seconds_text(std::abs(less)), less > 0.0 ? "less" : "more", name));
  };
  compare(&StepTime::compute, "forward and backward");
  compare(&StepTime::bubble, "bubble");
  compare(&StepTime::waiting, "waiting");
  compare(&StepTime::sums, "gradient sums");
  compare(&StepTime::update, "update");
  compare(&StepTime::communication, "exposed communication");
  if (!words.empty()) text += fmt::format(": {}", fmt::join(words, ", "));
  return text + "\n";
}

// Returns a line that proposes a lane block, or nothing where the one of the config is the best.
std::string lane_block_text(const LayoutPlan& plan, const PlannedMachine& machine) {
  const std::int64_t best = best_lane_block(plan, machine), given = plan.config.parallel.lane_block;
  if (best == 1 || best == given) return {};
  return fmt::format(
      "\nfor a run that begins, add --parallel.lane_block={} (now {}; it decides bits): gradients of {} "
      "ranks of a host are "
      "added before they leave it",
      best, given, best);
}

// Returns what no candidate has, and why. Each would be another run: it decides bits.
std::vector<std::string> not_searched(const Config& config, int ranks) {
  std::vector<std::string> all;
  const ParallelConfig& parallel = config.parallel;
  if (parallel.tensor_lanes == 1 && ranks > 1) {
    all.push_back(
        "tensor parallelism, because parallel.tensor_lanes is 1; for a run that begins, give "
        "--parallel.tensor_lanes=2, 4, 8 or 16 (it decides bits)");
  } else if (parallel.tensor_lanes > 1) {
    all.push_back(fmt::format("more than {} tensor ranks, because parallel.tensor_lanes is {}",
                              parallel.tensor_lanes, parallel.tensor_lanes));
  }
  if (parallel.lanes < ranks) {
    all.push_back(
        fmt::format("more than {} data-parallel ranks, because parallel.lanes is {}; for a run that "
                    "begins, give more lanes (they decide bits)",
                    parallel.lanes, parallel.lanes));
  }
  all.push_back("gpipe, which takes the time of 1f1b and more memory; other microbatches, which decide bits");
  return all;
}

std::string counts_text(const LayoutSearch& search) {
  return fmt::format(
      "{} candidates: {} seen not to fit, {} priced, {} left alone; memory of {} ranks counted, ops of {} "
      "parts of the model priced\n",
      search.tried, search.too_large, search.priced, search.slower, search.counts.ranks_planned,
      search.counts.parts_priced);
}

}  // namespace

std::string search_text(const LayoutSearch& search, const Config& config, int ranks,
                        const PlannedMachine& machine) {
  TextTable table({"data x pipeline x tensor", "schedule", "recompute", "bubble", "memory", "exposed",
                   "hidden", "step", "tokens/s", "MFU"},
                  3);
  for (const LayoutPlan& plan : search.plans) {
    const bool timed = plan.time.has_value();
    const std::optional<double> mfu = plan.model_flops_utilization(machine);
    table.add({fmt::format("{} x {} x {}", plan.shape.data, plan.shape.pipeline, plan.shape.tensor),
               schedule_text(plan), plan.config.training.recompute,
               fmt::format("{:.1f} %", 100.0 * plan.bubble_share),
               format_bytes(plan.largest(machine).needed_bytes(machine)),
               timed ? seconds_text(plan.time->communication) : "?",
               timed ? seconds_text(plan.time->hidden.sum()) : "?",
               timed ? seconds_text(plan.time->seconds()) : "?",
               timed ? count_text(tokens_per_second(plan)) : "?",
               mfu.has_value() ? fmt::format("{:.1f} %", 100.0 * *mfu) : "?"});
  }
  std::string text = fmt::format(
      "layouts of {} rank{} that fit, {} first\n{}", ranks, ranks == 1 ? "" : "s",
      machine.prices != nullptr ? "the fastest" : "those with the fewest FLOP and bubbles in a row",
      table.text());
  text += counts_text(search);
  for (const std::string& each : not_searched(config, ranks)) text += fmt::format("not searched: {}\n", each);
  if (std::ranges::any_of(search.plans, [&](const LayoutPlan& plan) { return beats_peak(plan, machine); }))
    text += beaten_peak_text;
  if (machine.prices != nullptr) text += "\n" + why_text(search);
  text += "the first one:";
  for (const Setting& setting : layout_settings(search.plans.front())) {
    text += fmt::format(" --{}={}", setting.key, setting.value);
  }
  text += lane_block_text(search.plans.front(), machine);
  if (machine.prices != nullptr) text += fmt::format("\ntimes are from {}", machine.prices->description());
  return text + "\n";
}

Json search_json(const LayoutSearch& search, const Config& config, int ranks, const PlannedMachine& machine) {
  Json layouts = Json::array();
  for (const LayoutPlan& plan : search.plans) {
    Json layout = layout_json(plan, machine);
    layout["settings"] = settings_json(layout_settings(plan));
    layout["best_lane_block"] = best_lane_block(plan, machine);
    layouts.push_back(layout);
  }
  return {{"tried", search.tried},
          {"too_large", search.too_large},
          {"priced", search.priced},
          {"left_alone", search.slower},
          {"ranks_planned", search.counts.ranks_planned},
          {"parts_priced", search.counts.parts_priced},
          {"not_searched", not_searched(config, ranks)},
          {"layouts", layouts}};
}

std::string remedy_text(const Remedy& remedy, int ranks, const PlannedMachine& machine) {
  const std::uint64_t needed = remedy.plan.largest(machine).needed_bytes(machine);
  return fmt::format("with {}{} it would: {} for a rank{}",
                     remedy.ranks == ranks ? "" : fmt::format("{} ranks and ", remedy.ranks),
                     settings_text(remedy.settings), format_bytes(needed),
                     remedy.new_run ? " (a change for a new run, not for one that has begun)" : "");
}

Json remedy_json(const Remedy& remedy, const PlannedMachine& machine) {
  return {{"ranks", remedy.ranks},
          {"settings", settings_json(remedy.settings)},
          {"new_run", remedy.new_run},
          {"layout", layout_json(remedy.plan, machine)}};
}

}  // namespace holdfast::plan
