// Subcommands of the `holdfast` program, one file each. A command gets the arguments after its name, prints
// its result on stdout and warnings on stderr, and returns the exit code (docs/errors.md). Every command has
// --help.
#pragma once

#include <string>
#include <vector>

namespace holdfast::cli {

int run_check_command(const std::vector<std::string>& arguments);
int run_clean_command(const std::vector<std::string>& arguments);
int run_collect_command(const std::vector<std::string>& arguments);
int run_config_command(const std::vector<std::string>& arguments);
int run_diff_command(const std::vector<std::string>& arguments);
int run_digest_command(const std::vector<std::string>& arguments);
int run_drain_command(const std::vector<std::string>& arguments);
int run_events_command(const std::vector<std::string>& arguments);
int run_evaluate_command(const std::vector<std::string>& arguments);
int run_export_command(const std::vector<std::string>& arguments);
int run_flight_command(const std::vector<std::string>& arguments);
int run_guard_command(const std::vector<std::string>& arguments);
int run_health_command(const std::vector<std::string>& arguments);
int run_hosts_command(const std::vector<std::string>& arguments);
int run_import_command(const std::vector<std::string>& arguments);
int run_inspect_command(const std::vector<std::string>& arguments);
int run_launch_command(const std::vector<std::string>& arguments);
int run_metrics_command(const std::vector<std::string>& arguments);
int run_plan_command(const std::vector<std::string>& arguments);
int run_preflight_command(const std::vector<std::string>& arguments);
int run_replay_command(const std::vector<std::string>& arguments);
int run_report_command(const std::vector<std::string>& arguments);
int run_sample_command(const std::vector<std::string>& arguments);
int run_save_command(const std::vector<std::string>& arguments);
int run_status_command(const std::vector<std::string>& arguments);
int run_stragglers_command(const std::vector<std::string>& arguments);
int run_taint_command(const std::vector<std::string>& arguments);
int run_timeline_command(const std::vector<std::string>& arguments);
int run_tokenize_command(const std::vector<std::string>& arguments);
int run_train_command(const std::vector<std::string>& arguments);
int run_untaint_command(const std::vector<std::string>& arguments);
int run_verify_command(const std::vector<std::string>& arguments);

}  // namespace holdfast::cli
