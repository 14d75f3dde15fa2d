// The launcher asks its hosts whether they are ready for the next start and reach each other, what lives there, and
// while a run trains whether others have room for more ranks.
#include <algorithm>
#include <utility>

#include "runtime/launch/host_meeting.h"
#include "runtime/launch/host_probe.h"
#include "runtime/launch/host_ready.h"
#include "runtime/launch/launcher.h"
#include "runtime/launch/named_hosts.h"
#include "runtime/os/foreign_text.h"
#include "runtime/os/paths.h"
#include "runtime/run/requests.h"

namespace holdfast::launch {
namespace {

constexpr std::int64_t host_answer_ms = 10'000;
constexpr std::int64_t hurried_answer_ms = 2'000;  // while the notice runs; less when it is over soon
constexpr std::int64_t min_answer_ms = 200, end_reserve_ms = 100;
constexpr std::int64_t look_answer_ms = 5'000;
// Limit of a host that has begun to answer: it may read data of cold storage.
constexpr std::int64_t ready_answer_ms = 60'000;
constexpr int something_lives = 1;  // exit code of HostCommand::look

}  // namespace

// Has all hosts end what earlier starts have left there, so that no process of a host that was unreachable goes on
// beside the next start, and prove that they are ready for it, and reach each other. A run on one host asks nobody.
// Where the nonce cannot be written, because the disk is full, the hosts clean up, and prove nothing.
void Launcher::ask_before_start() {
  note_run_id();
  const bool asks = hosts_.size() > 1 || hosts_may_change(options_) || ranks_wanted().at_most;
  std::vector<HostAnswer> answers(std::max<std::size_t>(hosts_.size(), 1), HostAnswer{.code = 0});
  std::unique_ptr<HostMeeting> meeting;
  if (asks && !hosts_.empty()) {
    std::optional<ReadyQuestion> question = ready_question();
    if (question.has_value()) meeting = open_meeting(*question, hosts_.size());
    const auto cleans = [&](std::size_t) { return words_for(HostCommand::clean); };
    answers =
        ask(question.has_value() ? ready_words(*question, hosts_) : WordsOfHost(cleans), ready_answer_ms,
            /*here_too=*/true, meeting.get());
  }
  mind_->heard(env_->monotonic_ns(), answers,
               meeting == nullptr ? std::vector<LinkFault>() : meeting->faults(hosts_));
}

// Returns the question whether a host is ready (host_ready.h); none if its nonce cannot be written.
std::optional<ReadyQuestion> Launcher::ready_question() const {
  const Result<std::string> nonce = write_ready_nonce(*env_, paths_, token_);
  if (!nonce.ok()) return std::nullopt;
  const auto is_kept_back = [&](const std::string& name) {
    return may_be_secret(name) && !env_->variable(name).empty();
  };
  const bool is_comparable = std::ranges::none_of(variables_of_ranks(), is_kept_back);
  return ReadyQuestion{.token = token_,
                       .nonce = *nonce,
                       .shares_directory = hosts_share_directory(*env_, paths_),
                       .config_digest = is_comparable ? config_digest(config_) : "",
                       .ranks = ranks_wanted().ranks,
                       .directory = working_directory(),
                       .config = options_.config,
                       .overrides = options_.overrides};
}

// Opens a meeting of the hosts that are asked, and puts its words into the question. Null: one host meets nobody, or
// this host gives no port, and ranks will say so.
std::unique_ptr<HostMeeting> Launcher::open_meeting(ReadyQuestion& question, std::size_t hosts) const {
  if (hosts < 2) return nullptr;
  Result<std::unique_ptr<HostMeeting>> meeting = HostMeeting::open(*env_, question.nonce, hosts);
  if (!meeting.ok()) return nullptr;
  const std::string& file = options_.tune.empty() ? places_.several_hosts : options_.tune;
  const Result<std::string> tune = read_text_within(*env_, file, text_limits::config);
  const auto variable = [&](const std::string& name) { return env_->variable(name); };
  question.meeting = {.door = (*meeting)->door(),
                      .mpi = mpi_interfaces(variable, tune.ok() ? *tune : ""),
                      .interface = config_.network.interface};
  return std::move(meeting).value();
}

WordsOfHost Launcher::ready_words(const ReadyQuestion& question, const std::vector<LaunchHost>& hosts) const {
  return [env = env_, program = places_.program, question, hosts,
          expected = ranks_expected()](std::size_t index) {
    ReadyQuestion of_host = question;
    of_host.ranks_here = expected.at(hosts[index].name);
    of_host.meeting.place = static_cast<int>(index);
    return ready_line(*env, program, of_host);
  };
}

// Returns how many ranks a start may have on each host: as many as with all hosts, or where it has none then, which
// others may leave to it, as many as it has slots. By its name.
std::map<std::string, int> Launcher::ranks_expected() const {
  const std::vector<LaunchHost> all = mind_->named();
  const int ranks = ranks_wanted().ranks;
  std::map<std::string, int> expected = ranks_by_host(all, ranks);
  for (const LaunchHost& host : all) {
    int& here = expected.emplace(host.name, host.slots).first->second;
    here = std::clamp(here, 1, ranks);
  }
  return expected;
}

// A host that did not answer before rarely does at the end.
void Launcher::ask_at_end(HostCommand duty) {
  const bool all_answer = std::ranges::all_of(hosts_, &LaunchHost::answers);
  const auto words = [&](std::size_t) { return words_for(duty); };
  static_cast<void>(ask(words, all_answer ? host_answer_ms : look_answer_ms));
}

std::vector<std::string> Launcher::words_for(HostCommand duty) const {
  std::vector<std::string> words = arguments_of(duty, token_, duty == HostCommand::look ? "" : run_ids_);
  words.insert(words.begin(), places_.program);
  return words;
}

// Asks all hosts, with a shorter limit once a stop has been requested, even meanwhile, because this must end
// within the notice, too.
std::vector<HostAnswer> Launcher::ask(const WordsOfHost& words, std::int64_t limit_ms, bool here_too,
                                      HostMeeting* meeting) {
  const std::int64_t until_ns = env_->monotonic_ns() + limit_ms * 1'000'000;
  std::int64_t hurried_until_ns = -1;
  const auto time_left_ms = [&] {
    stop_->poll();
    const std::int64_t now_ns = env_->monotonic_ns();
    if (!stop_->requested()) return (until_ns - now_ns) / 1'000'000;
    if (hurried_until_ns < 0) {
      const std::int64_t left_ms = std::clamp<std::int64_t>(stop_->left_to_end_ms() - end_reserve_ms,
                                                            min_answer_ms, hurried_answer_ms);
      hurried_until_ns = std::min(until_ns, now_ns + left_ms * 1'000'000);
    }
    return (hurried_until_ns - now_ns) / 1'000'000;
  };
  return ask_hosts(*env_, hosts_, words, time_left_ms, here_too, meeting);
}

bool Launcher::lives_elsewhere() {
  const auto words = [&](std::size_t) { return words_for(HostCommand::look); };
  const std::vector<HostAnswer> answers = ask(words, look_answer_ms);
  // A host that was asked with the shorter limit may not have had time to answer.
  return stop_->requested() || std::ranges::any_of(answers, [](const HostAnswer& answer) {
           return answer.code == something_lives;
         });
}

// Asks the hosts without ranks whether a start could use them, beside the run. Those with ranks are in use, and some of
// them meet the others. Where ranks are on hosts that the list does not have, any host may be theirs: then all are
// asked what lives there, and nothing is ended.
void Launcher::ask_for_room() {
  const std::int64_t until_ns = env_->monotonic_ns() + ready_answer_ms * 1'000'000;
  question_ = std::make_unique<Question>();
  const auto left_ms = [env = env_, until_ns, &given_up = question_->given_up]() -> std::int64_t {
    return given_up ? 0 : (until_ns - env->monotonic_ns()) / 1'000'000;
  };
  const bool knows = mind_->knows_where_ranks_are();
  std::vector<LaunchHost>& hosts = question_->hosts;
  for (const LaunchHost& host : asked_) {
    if (host.answers && !(knows && mind_->has_ranks(host.name))) hosts.push_back(host);
  }
  const std::size_t newcomers = hosts.size();
  std::optional<ReadyQuestion> question = knows ? ready_question() : std::nullopt;
  if (question.has_value()) {
    for (const LaunchHost& host : hosts_to_meet()) hosts.push_back(host);
    question_->meeting = open_meeting(*question, hosts.size());
    if (question_->meeting == nullptr) hosts.resize(newcomers);
  }
  std::vector<std::vector<std::string>> words(hosts.size(),
                                              words_for(knows ? HostCommand::clean : HostCommand::look));
  const WordsOfHost ready = question.has_value() ? ready_words(*question, hosts) : WordsOfHost();
  for (std::size_t i = 0; question.has_value() && i < hosts.size(); ++i) {
    question->meeting.place = static_cast<int>(i);
    words[i] = i < newcomers ? ready(i) : meet_words(*question);
  }
  question_->answers.start(
      *env_, "host probe",
      [env = env_, asked = question_.get(), words, left_ms, knows]() -> Result<std::vector<HostAnswer>> {
        const auto words_of_host = [&](std::size_t index) { return words[index]; };
        return ask_hosts(*env, asked->hosts, words_of_host, left_ms, /*here_too=*/knows,
                         asked->meeting.get());
      });
}

// Returns hosts with ranks that newcomers are to reach: all of a few, and of many some.
std::vector<LaunchHost> Launcher::hosts_to_meet() const {
  constexpr std::size_t most = 8;
  std::vector<LaunchHost> running;
  std::ranges::copy_if(asked_, std::back_inserter(running),
                       [&](const LaunchHost& host) { return host.answers && mind_->has_ranks(host.name); });
  if (running.size() <= most) return running;
  std::vector<LaunchHost> chosen;
  for (std::size_t i = 0; i < most; ++i) chosen.push_back(running[i * running.size() / most]);
  return chosen;
}

std::vector<std::string> Launcher::meet_words(const ReadyQuestion& question) const {
  std::vector<std::string> words = {places_.program, "launch", "--on-host"};
  const std::vector<std::string> asked = words_of(MeetQuestion{question.nonce, question.meeting});
  words.insert(words.end(), asked.begin(), asked.end());
  return words;
}

void Launcher::give_up_asking() {
  if (question_ == nullptr) return;
  question_->given_up = true;
  question_.reset();  // waits until the asking ends
}

// Asks the run to end after its next step if LaunchMind finds that its hosts have room for a start with more ranks.
void Launcher::ask_for_another_start(const Question& question, const std::vector<HostAnswer>& given) {
  const std::int64_t now_ns = env_->monotonic_ns();
  std::vector<HostAnswer> answers(asked_.size(), HostAnswer{.code = 0});
  for (std::size_t i = 0; i < question.hosts.size(); ++i) {
    if (question.meeting != nullptr && mind_->has_ranks(question.hosts[i].name)) continue;
    const auto asked = std::ranges::find(asked_, question.hosts[i].name, &LaunchHost::name);
    HostAnswer& answer = answers[static_cast<std::size_t>(asked - asked_.begin())];
    answer = given[i];
    if (answer.code == something_lives) answer.code = 0;  // it is in use
  }
  const std::vector<LinkFault> links =
      question.meeting == nullptr ? std::vector<LinkFault>() : question.meeting->faults(question.hosts);
  if (!mind_->is_worth_another_start(now_ns, asked_, answers, links)) return;
  if (request_restart(*env_, paths_, /*hosts_leaving=*/0).ok()) {
    mind_->leaves();
  } else {
    mind_->postpone(now_ns);
  }
}

}  // namespace holdfast::launch
