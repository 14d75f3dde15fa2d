#include "runtime/report/playbook.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "runtime/core/check.h"

namespace holdfast::report {
namespace {

constexpr auto entries = std::to_array<PlaybookEntry>({
    {.kind = "rank-died",
     .what = "The process of a rank ended: a crash, a signal, or the kernel for want of memory.",
     .run_does =
         "The others continue in place if a whole copy of the model is left, and get a new rank later; "
         "otherwise the launcher starts the run again.",
     .you_do = "Nothing. If the same rank dies repeatedly, look at its host: signal 9 that nobody sent is "
               "mostly the kernel's (`dmesg`); exit codes are in errors.md.",
     .chaos = "kill,two_kills,kill_in_recovery,kill_at_point,crash",
     .page = "internals/elastic.md"},
    {.kind = "rank-hangs",
     .what = "A rank passed its deadline without a sign of life, or computes for ever.",
     .run_does = "The watchdog writes flight records and kills it; then as after a death.",
     .you_do =
         "Nothing. `holdfast flight RUN` says what it was at. If it was only slow, raise `watchdog.floor`.",
     .chaos = "hang,livelock",
     .page = "watchdog.md"},
    {.kind = "gpu-failed",
     .what = "A GPU gave up a process: an error of memory, of the bus, or of a kernel.",
     .run_does =
         "Its rank leaves and is replaced by a new process; a place whose new ranks die six times in a "
         "row is left alone.",
     .you_do = "If it repeats: `nvidia-smi -q`, `dmesg | grep Xid`, `holdfast health`.",
     .chaos = "gpu_fault",
     .page = "health.md"},
    {.kind = "rank-evicted",
     .what = "A rank left because of a verdict on its numbers.",
     .run_does =
         "The others go back to a state from before it, and the bits are those of an undisturbed run.",
     .you_do =
         "What the kind of the verdict asks for: `holdfast report RUN --incident N`, where the log has it.",
     .chaos = "",
     .page = "verdict.md#wrong-numbers-that-look-right"},
    {.kind = "host-lost",
     .what = "All ranks of a host are gone, or it does not answer: power, kernel, network.",
     .run_does =
         "The others continue in place where they can, else the launcher starts again on the others, from "
         "replicas in RAM or the newest checkpoint.",
     .you_do = "Repair it; the run takes it back by itself.",
     .chaos = "lost_host,host_killed,cut_link,deaf_host,mute_host,cut_pair,stopped_host,replaced_host",
     .page = "launch.md#unreachable-hosts"},
    {.kind = "start-ended",
     .what = "A start ended with an error: too few ranks were left, `mpirun` was killed, or no host was fit.",
     .run_does = "The launcher starts the run again, without hosts that are to blame. After five starts that "
                 "reach no new step, or three that end at one step in the same way, it gives up with 76.",
     .you_do = "Nothing while it goes on; where it gives up, what its message names.",
     .chaos = "all_killed,mpirun_killed,unfit_host",
     .page = "launch.md"},
    {.kind = "ended-without-a-word",
     .what = "A start wrote no end: the launcher or the whole job was killed, or the machine lost its power.",
     .run_does = "The next start goes on from RAM snapshots if they are there, else from the newest whole "
                 "checkpoint. A damaged one is named and skipped.",
     .you_do = "Start it again with the same command, or let a scheduler do it (137 and 76 mean: again).",
     .chaos = "job_killed,ram_lost,damaged_checkpoint,load_error",
     .page = "operations.md#signals-and-exit-codes"},
    {.kind = "save-failed",
     .what = "A checkpoint could not be written: a full disk, a quota, an error of the storage.",
     .run_does = "Training continues, the older checkpoints stay, and the next save is another try.",
     .you_do = "Make room, or mend the storage.",
     .chaos = "full_disk,write_error",
     .page = "checkpoints.md#a-full-disk"},
    {.kind = "storage-stalls",
     .what = "The file system does not answer.",
     .run_does = "The ranks wait, the watchdog says so, and kills nothing before `watchdog.ceiling`.",
     .you_do = "Check the file server.",
     .chaos = "stalled_disk,slow_storage,read_error",
     .page = "watchdog.md"},
    {.kind = "shared-memory-full",
     .what = "`/dev/shm` is full or small.",
     .run_does = "No RAM snapshots, or no watchdog, with a message; training continues.",
     .you_do = "Enlarge it, as the message says.",
     .chaos = "",
     .page = "operations.md#disk-and-devshm"},
    {.kind = "replica-failed",
     .what = "A RAM snapshot could not be copied to another host.",
     .run_does = "Training continues, with the replica of the snapshot before; the next one is another try.",
     .you_do = "If it repeats: the link between the two hosts, and `/dev/shm` of the other one.",
     .chaos = "lossy_link",
     .page = "checkpoints.md"},
    {.kind = "upload-failed",
     .what = "`checkpoint.upload_command` failed.",
     .run_does = "It is tried again; training continues, and the checkpoint stays where it is.",
     .you_do = "What its output says.",
     .chaos = "",
     .page = "checkpoints.md"},
    {.kind = "spare-died",
     .what = "The process of a spare ended: a rank that had nothing to compute.",
     .run_does = "Training continues; there is one spare less until new ranks join, or the next start.",
     .you_do = "Nothing. If it repeats, look at its host.",
     .chaos = "",
     .page = "operations.md"},
    {.kind = "growth-failed",
     .what = "New ranks did not join.",
     .run_does = "Training continues with the ranks that there are; the pause before the next try doubles.",
     .you_do = "Look at the host that it was started on.",
     .chaos = "unfit_host",
     .page = "launch.md"},
    {.kind = "not-finite",
     .what = "The loss or a gradient is not finite, or many times the usual one.",
     .run_does =
         "The step is computed again; with the same bits it is skipped, at most 3 times in 128 steps; then "
         "the run goes back to before them and leaves their batches out, at most 3 times in 500 steps, "
         "and then it ends with 20.",
     .you_do =
         "The message names the first op whose result is not finite, and its samples: check the data and "
         "the learning rate. `holdfast replay RUN --step S --checks` has more.",
     .chaos = "nan,bad_sample,wrong_rate",
     .page = "verdict.md#going-back"},
    {.kind = "loss-jumps",
     .what = "The loss or the gradient norm jumps, drifts upwards, or does not move any more.",
     .run_does = "A step that jumps is computed again; with the same bits the run says so and continues.",
     .you_do =
         "Nothing if it is rare; `verdict.on_spike = \"rollback\"` goes back and leaves the batches out.",
     .chaos = "bad_sample,wrong_rate",
     .page = "verdict.md#what-it-means-and-what-to-do"},
    {.kind = "memory-changed",
     .what = "Weights or moments changed in memory without an update.",
     .run_does = "Found by digests at the next update: that rank leaves, the others go back to a state from "
                 "before, and the bits are those of an undisturbed run.",
     .you_do = "Nothing; test the host if it happens twice (`holdfast preflight --host HOST`).",
     .chaos = "flip_weights,flip_moments,flip_parameters",
     .page = "verdict.md#wrong-numbers-that-look-right"},
    {.kind = "computed-wrong",
     .what = "A rank computed other bits than the same step has elsewhere, or a second time.",
     .run_does =
         "A third attempt decides; the rank and its host are named, and at the second time in a day it "
         "leaves. One that computes wrongly for good is found at the next audit.",
     .you_do = "Drain the host and test it (`holdfast preflight --host HOST`).",
     .chaos = "wrong_product,wrong_product_always,flip_activations",
     .page = "verdict.md#a-second-finding"},
    {.kind = "link-changed-bits",
     .what = "A link between replicas changed gradients.",
     .run_does =
         "Found by digests of both ends at the steps of audits; they are sent again. If it lasts, the rank "
         "that is an end of all such links leaves, else the run ends with 20 and names them.",
     .you_do = "Test the cable, the network card and the switch, or the path between GPUs.",
     .chaos = "flip_gradients",
     .page = "verdict.md#wrong-numbers-that-look-right"},
    {.kind = "slow-rank",
     .what = "A rank computes, or gets its data, more slowly than the others, and all wait for it.",
     .run_does =
         "It is named; with `health.preset = \"guard\"` its host is left once it has cost more than a "
         "start.",
     .you_do = "`holdfast stragglers RUN`; then the clocks, the heat and what else runs on the host.",
     .chaos = "slow_rank",
     .page = "stragglers.md"},
    {.kind = "slow-link",
     .what = "Two hosts wait for each other, or all ranks are slower alike.",
     .run_does = "The link is named.",
     .you_do = "`holdfast preflight --hostfile F` measures it; then cable, card and switch.",
     .chaos = "slow_link",
     .page = "stragglers.md"},
    {.kind = "host-sick",
     .what = "A sensor, counter or log of a host says that something is wrong with it.",
     .run_does = "It is told; with `health.preset = \"guard\"` the run leaves the host.",
     .you_do = "What the rule asks for (health.md).",
     .chaos = "sick_host",
     .page = "health.md"},
    {.kind = "unknown",
     .what = "The event does not say what it was: a log of an older version.",
     .run_does = "What its sentence says.",
     .you_do = "Read the sentence of the fault.",
     .chaos = "",
     .page = "events.md"},
});

const PlaybookEntry& entry(std::string_view kind) {
  const auto* const found = std::ranges::find(entries, kind, &PlaybookEntry::kind);
  HF_CHECK(found != entries.end());
  return *found;
}

}  // namespace

std::span<const PlaybookEntry> playbook() {
  return entries;
}

const PlaybookEntry& playbook_entry(const VerdictEvent& verdict) {
  if (verdict.what == name_of(VerdictKind::nonfinite) || verdict.what == name_of(VerdictKind::exploded))
    return entry("not-finite");
  if (verdict.what != name_of(VerdictKind::corruption)) return entry("loss-jumps");
  if (verdict.of == "state") return entry("memory-changed");
  return entry(verdict.of == "links" ? "link-changed-bits" : "computed-wrong");
}

const PlaybookEntry& playbook_entry(const FaultEntry& fault, const VerdictEvent* verdict, bool lost_host) {
  if (verdict != nullptr) return playbook_entry(*verdict);
  const bool is_of_host = lost_host && fault.cause == FaultCause::rank_died;  // its other ranks followed
  return entry(name_of(is_of_host ? FaultCause::host_lost : fault.cause));
}

std::string playbook_page() {
  std::string page =
      "# Playbook\n\n"
      "What each kind of incident means, what the run does by itself, and what is left to you. `holdfast "
      "report "
      "RUN --incident N` names\nthe kind of an incident. Messages are in [operations.md](operations.md) and "
      "[errors.md](errors.md). Made by `holdfast report --playbook`.\n\n"
      "To see one before it counts, make it: `holdfast chaos run.toml --faults NAME` "
      "([chaos.md](chaos.md)).\n\n"
      "| kind | what it means | what the run does | what you do | chaos | more "
      "|\n|---|---|---|---|---|---|\n";
  for (const PlaybookEntry& each : entries) {
    fmt::format_to(std::back_inserter(page), "| `{}` | {} | {} | {} | {} | [{}]({}) |\n", each.kind,
                   each.what, each.run_does, each.you_do,
                   each.chaos.empty() ? "" : fmt::format("`{}`", each.chaos),
                   each.page.substr(0, each.page.find('#')), each.page);
  }
  return page;
}

}  // namespace holdfast::report
