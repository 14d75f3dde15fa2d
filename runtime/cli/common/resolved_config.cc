#include "runtime/cli/common/resolved_config.h"

#include "runtime/data/loader.h"

namespace holdfast::cli {

Result<void> resolve_with_data(Env& env, Config& config) {
  std::int64_t vocabulary_of_data = 0;
  if (config.model.vocabulary == 0 && config.model.preset.empty()) {
    HF_TRY(
        const std::shared_ptr<DataSet> data,
        DataSet::open(env, config.data.sources, config.training.sequence_length, data_options(config.data)));
    HF_TRY(vocabulary_of_data, data->vocabulary_of_format());
  }
  return resolve_config(config, vocabulary_of_data);
}

}  // namespace holdfast::cli
