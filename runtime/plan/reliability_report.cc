#include "runtime/plan/reliability_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/core/text.h"
#include "runtime/core/units.h"
#include "runtime/plan/plan_report.h"

namespace holdfast::plan {
namespace {

std::string percent(double share) {
  const double value = 100.0 * share;
  constexpr double least = 0.001;
  if (value > 0.0 && value < least) return "under 0.001 %";
  if (value >= 99.995 || value < 0.005) return fmt::format("{:.3g} %", value);
  return fmt::format("{:.{}f} %", value, value < 0.1 || value > 99.9 ? 3 : 2);
}

// Returns "3h50m", "24d3h", "12.4 s": two units are enough for an estimate.
std::string span_text(double seconds) {
  constexpr double two_minutes = 120.0, two_days = 2 * day_seconds, most = 1e15;
  if (!(seconds < most)) return "for ever";
  if (seconds < two_minutes) return format_seconds(seconds);
  const double unit = seconds < hour_seconds ? 1.0 : seconds < two_days ? 60.0 : hour_seconds;
  if (seconds > 1000 * day_seconds) return fmt::format("{:.3g} years", seconds / (365.25 * day_seconds));
  return format_duration(std::llround(seconds / unit) * static_cast<std::int64_t>(unit) * 1000);
}

std::string note_text(const ReliabilityPlan& plan) {
  return plan.ranks_note.empty() ? "" : "  note        " + plan.ranks_note + "\n";
}

std::string rate_text(const ReliabilityPlan& plan) {
  const std::string of_ranks = fmt::format("{} rank{}", plan.ranks, plan.ranks == 1 ? "" : "s");
  const DevicePrior& published = device_prior(plan.device_kind);
  std::string why =
      fmt::format("{:.0f} h of a device, {} ({})", published.mtbf_hours, of_ranks, published.source);
  if (plan.prior.is_fixed) why = "checkpoint.mtbf";
  if (plan.prior.is_stated) why = fmt::format("hazard.mtbf_hours, {}", of_ranks);
  if (!plan.prior.is_fixed && plan.history.running_seconds > 0.0) {
    why += fmt::format("; and {} failure{} in {} of this run", plan.history.failures,
                       plan.history.failures == 1 ? "" : "s", span_text(plan.history.running_seconds));
  }
  return fmt::format("  failures    {:.3g} a day, one every {}: {}\n", failures_per_day(plan.mtbf_seconds),
                     span_text(plan.mtbf_seconds), why);
}

std::string spares_text(const ReliabilityPlan& plan) {
  const auto counted = [&](std::int64_t spares) {
    if (plan.hosts == 1) return fmt::format("{} rank{}", spares, spares == 1 ? "" : "s");
    const std::int64_t hosts = spares / plan.unit;
    return fmt::format("{} host{} ({} ranks)", hosts, hosts == 1 ? "" : "s", spares);
  };
  const auto enough = [&](std::int64_t spares, double chance) {
    const bool is_so = p_enough(plan.pool, spares / plan.unit) >= chance;
    return fmt::format("{} {}", counted(spares), is_so ? "are enough" : "are too few for");
  };
  return fmt::format("  spares      {} 95 % of the time, {} 99 %, where what failed is back after {}\n",
                     enough(plan.spares_95, 0.95), enough(plan.spares_99, 0.99),
                     span_text(plan.replacement_seconds));
}

std::string tier_text(const char* name, const TierPlan& tier) {
  if (!tier.exists) return fmt::format("  {} none\n", name);
  return fmt::format("  {} every {} ({}): {} of the time; one costs {} ({})\n", name,
                     span_text(tier.interval_seconds), tier.chosen_by, percent(tier.overhead()),
                     format_seconds(tier.cost_seconds.value), tier.cost_seconds.source);
}

std::string reaches_text(const ReliabilityPlan& plan) {
  TextTable table(
      {"when it dies", "of failures", "goes on from", "work lost", "at most", "recovery", "waiting"}, 1);
  for (const ReachPlan& each : plan.reaches) {
    table.add({fmt::format("a {}", each.reach.name), percent(each.reach.share), each.recovered_from,
               span_text(each.reach.lost_seconds),
               each.most_lost_seconds.has_value() ? span_text(*each.most_lost_seconds) : "all of it",
               fmt::format("{} ({})", span_text(each.reach.recovery_seconds), each.recovery_source),
               span_text(each.reach.waiting_seconds)});
  }
  return table.text();
}

std::string ettr_text(const ReliabilityPlan& plan) {
  const RunTime& time = plan.time;
  if (!std::isfinite(time.elapsed()))
    return "  elapsed     for ever: a failure undoes more than is done between two of them; save more "
           "often\n";
  const double all = time.elapsed();
  return fmt::format(
      "  elapsed     {} with {:.3g} failures: ETTR {} trains, {} saves, {} is computed again, {} recovers, "
      "{} waits "
      "for hosts\n",
      span_text(all), time.failures, percent(time.ettr()), percent(time.saves / all),
      percent(time.lost / all), percent(time.recovery / all), percent(time.waiting / all));
}

std::string hours_text(double rank_seconds) {
  const double hours = rank_seconds / hour_seconds;
  return hours < 1e4 ? fmt::format("{:.4g}", hours) : fmt::format("{:.0f}", hours);
}

std::string cost_text(const ReliabilityPlan& plan, const CostConfig& cost) {
  const double elapsed = plan.time.elapsed();
  const bool priced = cost.per_rank_hour > 0.0;
  const auto money = [&](double rank_seconds) {
    return money_text(rank_seconds, cost.per_rank_hour, cost.currency);
  };
  std::string text;
  if (std::isfinite(elapsed)) {
    text += fmt::format("  in all      {} rank hours", hours_text(plan.rank_seconds(elapsed)));
    text += priced
                ? fmt::format(": {}, of which {} for saves and failures\n", money(plan.rank_seconds(elapsed)),
                              money(plan.rank_seconds(elapsed - plan.training_seconds)))
                : std::string("; cost.per_rank_hour gives their price\n");
  }
  for (const Alternative& each : plan.others) {
    text += fmt::format("              {}: {}", each.name, span_text(each.elapsed_seconds));
    constexpr double never_s = 1e15;
    if (each.elapsed_seconds < never_s) {
      text += fmt::format(", ETTR {}", percent(each.ettr));
      if (priced) text += ", " + money(each.elapsed_seconds * each.ranks);
    }
    text += "\n";
  }
  return text;
}

}  // namespace

std::string reliability_text(const ReliabilityPlan& plan, const CostConfig& cost) {
  std::string text = "reliability and cost";
  if (!plan.step_seconds.has_value()) {
    return text + "\n" + note_text(plan) + rate_text(plan) + spares_text(plan) +
           "  the time of a step is not known here: give --gpu, or --peak-tflops and --memory-gbs\n";
  }
  text += fmt::format(" of the whole run\n  training    {} steps of {} ({}): {}, {}tokens\n",
                      std::llround(plan.training_seconds / plan.step_seconds->value),
                      format_seconds(plan.step_seconds->value), plan.step_seconds->source,
                      span_text(plan.training_seconds), count_text(static_cast<double>(plan.tokens)));
  text += note_text(plan) + rate_text(plan);
  text += fmt::format("  no failure  in the whole run: {}\n", percent(plan.p_no_failure));
  text += tier_text("checkpoints", plan.disk) + tier_text("snapshots  ", plan.ram);
  if (plan.disk.chosen_by == "Young, Daly" && plan.saving_mtbf_seconds < 0.99 * plan.mtbf_seconds) {
    text +=
        fmt::format("              the run saves as if it failed every {} until its history says otherwise\n",
                    span_text(plan.saving_mtbf_seconds));
  }
  if (const std::optional<double> most = plan.beyond_promise_seconds(); most.has_value()) {
    text += fmt::format(
        "  promise     checkpoint.lose_at_most = {} cannot be kept: up to {} of work is lost (below)\n",
        span_text(plan.lose_at_most_seconds), std::isfinite(*most) ? span_text(*most) : std::string("all"));
  }
  return text + spares_text(plan) + ettr_text(plan) + cost_text(plan, cost) + "\n" + reaches_text(plan);
}

Json reliability_json(const ReliabilityPlan& plan, const CostConfig& cost) {
  const auto finite = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
  const bool timed = plan.step_seconds.has_value(), priced = cost.per_rank_hour > 0.0;
  const auto price = [&](double seconds) {
    return timed && priced ? finite(price_of(plan.rank_seconds(seconds), 1.0, cost.per_rank_hour)) : Json();
  };
  const double elapsed = plan.time.elapsed();
  Json json = {{"mtbf_hours", plan.mtbf_seconds / hour_seconds},
               {"mtbf_from", plan.prior.is_fixed    ? "checkpoint.mtbf"
                             : plan.prior.is_stated ? "hazard.mtbf_hours"
                                                    : std::string(device_prior(plan.device_kind).source)},
               {"failures_so_far", plan.history.failures},
               {"running_seconds_so_far", plan.history.running_seconds},
               {"failures_per_day", failures_per_day(plan.mtbf_seconds)},
               {"spares_95", plan.spares_95},
               {"spares_99", plan.spares_99},
               {"replacement_seconds", plan.replacement_seconds},
               {"p_no_failure", timed ? Json(plan.p_no_failure) : Json()},
               {"ettr", timed ? Json(plan.time.ettr()) : Json()},
               {"cost_total", price(elapsed)},
               {"cost_training", price(plan.training_seconds)},
               {"currency", cost.currency}};
  if (!timed) return json;
  const auto tier_json = [](const TierPlan& tier) -> Json {
    if (!tier.exists) return nullptr;
    return {{"interval_seconds", tier.interval_seconds},
            {"chosen_by", tier.chosen_by},
            {"overhead", tier.overhead()},
            {"cost_seconds", tier.cost_seconds.value},
            {"cost_from", tier.cost_seconds.source}};
  };
  Json reaches = Json::array(), others = Json::array();
  for (const ReachPlan& each : plan.reaches) {
    reaches.push_back(
        {{"reach", std::string(each.reach.name)},
         {"share", each.reach.share},
         {"lost_seconds", each.reach.lost_seconds},
         {"most_lost_seconds", each.most_lost_seconds.has_value() ? Json(*each.most_lost_seconds) : Json()},
         {"recovery_seconds", each.reach.recovery_seconds},
         {"recovery_from", each.recovery_source},
         {"waiting_seconds", each.reach.waiting_seconds}});
  }
  for (const Alternative& each : plan.others) {
    others.push_back(
        {{"name", each.name},
         {"elapsed_seconds", finite(each.elapsed_seconds)},
         {"ettr", each.ettr},
         {"ranks", each.ranks},
         {"cost", priced ? finite(price_of(each.elapsed_seconds, each.ranks, cost.per_rank_hour)) : Json()}});
  }
  const RunTime& time = plan.time;
  json.update({{"step_seconds", plan.step_seconds->value},
               {"step_from", plan.step_seconds->source},
               {"tokens", plan.tokens},
               {"training_seconds", plan.training_seconds},
               {"elapsed_seconds", finite(elapsed)},
               {"rank_hours", finite(plan.rank_seconds(elapsed) / hour_seconds)},
               {"failures", finite(time.failures)},
               {"parts",
                {{"training", time.ettr()},
                 {"saves", finite(time.saves / elapsed)},
                 {"lost", finite(time.lost / elapsed)},
                 {"recovery", finite(time.recovery / elapsed)},
                 {"waiting", finite(time.waiting / elapsed)}}},
               {"checkpoints", tier_json(plan.disk)},
               {"snapshots", tier_json(plan.ram)},
               {"lose_at_most_kept",
                plan.lose_at_most_seconds > 0.0 ? Json(!plan.beyond_promise_seconds().has_value()) : Json()},
               {"reaches", reaches},
               {"others", others}});
  return json;
}

}  // namespace holdfast::plan
