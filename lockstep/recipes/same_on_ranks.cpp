#include "lockstep/recipes/same_on_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <vector>

#include "lockstep/base/crc32c.h"
#include "lockstep/config/node.h"
#include "lockstep/train/error.h"
#include "lockstep/train/group.h"

namespace lockstep::recipes {
namespace {

using train::kBadInput;
using train::TrainError;

// A host's own: where things lie, and how its ranks read and print.
constexpr std::array<std::string_view, 6> kOwn = {
    "out",
    "checkpoint",
    "data.root",
    "data.workers",
    "model.weights",
    "model.vgg"};

// Of the loop only what decides what is computed.
constexpr std::array<std::string_view, 12> kOfTheLoop = {
    "trainer.strategy",
    "trainer.precision",
    "trainer.accumulate",
    "trainer.seed",
    "trainer.max_epochs",
    "trainer.min_epochs",
    "trainer.max_steps",
    "trainer.early_stop",
    "trainer.recompute",
    "trainer.balance",
    "trainer.rehearse",
    "trainer.checkpoint_every"};

bool must_agree(const std::string& key) {
  return key.starts_with("trainer.") ? std::ranges::count(kOfTheLoop, key) > 0
                                     : std::ranges::count(kOwn, key) == 0;
}

using Settings = std::map<std::string, std::string>;

void add_settings(
    const config::Node& node,
    const std::string& key,
    Settings& settings) {
  if (node.kind() != config::Node::Kind::kMap) {
    if (must_agree(key)) {
      settings[key] = config::to_flow_yaml(node);
    }
    return;
  }
  for (const auto& [name, value] : node.entries()) {
    add_settings(value, key.empty() ? name : key + "." + name, settings);
  }
}

Settings settings_of(const std::string& text) {
  Settings settings;
  if (const auto tree = config::parse_yaml(text, "the configuration")) {
    add_settings(*tree, "", settings);
  }
  return settings;
}

// "optim.lr is 0.1, on rank 0 0.2"; empty: all are the same.
std::string difference(const Settings& own, const Settings& first) {
  for (const auto& [key, value] : own) {
    const auto found = first.find(key);
    if (found == first.end() || found->second != value) {
      return fmt::format(
          "{} is {} here, on rank 0 {}",
          key,
          value,
          found == first.end() ? "absent" : found->second);
    }
  }
  return own.size() == first.size() ? "" : "rank 0 has more keys";
}

// Of each rank.
std::vector<int64_t> gathered(int64_t own, collective::Communicator& group) {
  std::vector<int64_t> all(static_cast<size_t>(group.size()));
  all[static_cast<size_t>(group.rank())] = own;
  group.all_gather(all.data(), 1, collective::DataType::kInt64);
  return all;
}

}  // namespace

void check_same_config(
    const std::string& config,
    collective::Communicator& group) {
  if (group.size() == 1) {
    return;
  }
  const auto first = train::broadcast_text(config, group);
  const auto own = difference(settings_of(config), settings_of(first));
  const auto differs = gathered(own.empty() ? 0 : 1, group);
  const auto other = std::ranges::find(differs, 1);
  if (!own.empty()) {
    throw TrainError(
        kBadInput,
        fmt::format("{}; all ranks need the same configuration", own));
  }
  if (other != differs.end()) {
    throw TrainError(
        kBadInput,
        fmt::format(
            "rank {} has another configuration than rank 0, and says which; "
            "all ranks need the same",
            other - differs.begin()));
  }
}

void check_same_data(
    const train::Datasets& datasets,
    collective::Communicator& group) {
  if (group.size() == 1) {
    return;
  }
  std::string text;
  int64_t images = 0;
  for (const auto& dataset : datasets) {
    if (!dataset) {
      text += "none/";
      continue;
    }
    images += dataset->size();
    text += fmt::format("{}/{}/", dataset->size(), dataset->channels());
    for (const auto& name : dataset->classes()) {
      text += name + "/";
    }
    std::vector<int64_t> labels;
    for (int64_t i = 0; i < dataset->size(); ++i) {
      labels.push_back(dataset->label(i));
    }
    text.append(
        reinterpret_cast<const char*>(labels.data()),
        labels.size() * sizeof(int64_t));
  }
  const auto digests = gathered(crc32c(text), group);
  const auto sizes = gathered(images, group);
  const auto other = std::ranges::find_if(
      digests, [&](int64_t digest) { return digest != digests.front(); });
  if (other != digests.end()) {
    const auto rank = static_cast<size_t>(other - digests.begin());
    throw TrainError(
        kBadInput,
        fmt::format(
            "the data of rank {} is not that of rank 0 ({} and {} images, or "
            "other classes or labels); every host needs the same files",
            rank,
            sizes[rank],
            sizes.front()));
  }
}

}  // namespace lockstep::recipes
