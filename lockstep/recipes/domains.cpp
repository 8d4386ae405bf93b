#include "lockstep/recipes/domains.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "lockstep/data/image_folder.h"
#include "lockstep/data/tolerant.h"
#include "lockstep/recipes/same_on_ranks.h"
#include "lockstep/recipes/setup.h"
#include "lockstep/train/error.h"

namespace lockstep::recipes {
namespace {

namespace fs = std::filesystem;
using train::kBadInput;
using train::TrainError;

// Without the hidden ones, which tools leave anywhere.
std::vector<std::string> folders_in(const fs::path& root) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code ignored;
    const auto name = it->path().filename().string();
    if (!name.starts_with('.') && it->is_directory(ignored)) {
      names.push_back(name);
    }
  }
  std::ranges::sort(names);
  return names;
}

fs::path domain_folder(const std::string& root, const std::string& domain) {
  const fs::path folder = fs::path(root) / domain;
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    const auto there = folders_in(root);
    throw TrainError(
        kBadInput,
        fmt::format(
            "{} has no domain '{}'; it has: {}",
            root,
            domain,
            there.empty() ? "no folders"
                          : fmt::format("{}", fmt::join(there, ", "))));
  }
  // Office-31's own archive has one folder more.
  return folders_in(folder) == std::vector<std::string>{"images"}
             ? folder / "images"
             : folder;
}

std::shared_ptr<data::Dataset> open_domain(
    const DomainsConfig& config,
    const std::string& domain) {
  const auto folder = domain_folder(config.root, domain);
  std::shared_ptr<data::Dataset> dataset =
      data::open_class_folders(folder.string(), config.limit);
  const auto classes = dataset->classes();
  if (classes.size() < 2) {
    throw TrainError(
        kBadInput,
        fmt::format(
            "{}: {}; a classifier needs two and more, as folders "
            "<class>/*.jpg",
            folder.string(),
            classes.empty() ? "images without classes"
                            : "one class, " + classes.front()));
  }
  data::TolerantOptions tolerant;
  tolerant.share = config.max_skipped;
  tolerant.min_height = static_cast<int>(config.min_side);
  tolerant.min_width = tolerant.min_height;
  return data::tolerate(std::move(dataset), tolerant);
}

// Names that `some` has and `others` has not.
std::vector<std::string> only_in(
    const std::vector<std::string>& some,
    const std::vector<std::string>& others) {
  std::vector<std::string> result;
  std::ranges::set_difference(some, others, std::back_inserter(result));
  return result;
}

void check_classes(const DomainsConfig& config, const Domains& domains) {
  const auto ours = domains.source->classes();
  const auto theirs = domains.target->classes();
  if (ours == theirs) {
    return;
  }
  std::string what;
  const auto tell = [&](const std::string& domain,
                        const std::vector<std::string>& names) {
    if (!names.empty()) {
      what += fmt::format(
          "{}only {} has {}",
          what.empty() ? "" : "; ",
          domain,
          fmt::join(names, ", "));
    }
  };
  tell(config.source, only_in(ours, theirs));
  tell(config.target, only_in(theirs, ours));
  throw TrainError(
      kBadInput,
      fmt::format(
          "{}: the domains '{}' and '{}' have different classes ({} and {}): "
          "{}; both need the same, each with an image",
          config.root,
          config.source,
          config.target,
          ours.size(),
          theirs.size(),
          what));
}

}  // namespace

void DomainsConfig::bind(config::Binder& b) {
  DataConfig::bind(b);
  b.field("source", source, "domain with labels: a folder of data.root");
  b.field("target", target, "domain to adapt to: another one");
  b.field(
      "resize",
      resize,
      "side that random crops of image_size are cut out of; 0: 8/7 of it",
      config::between(0, 4096));
  b.field("flip", flip, "random horizontal flips in training");
  b.field(
      "min_side",
      min_side,
      "pixels; images with a smaller side are passed over, as unreadable ones",
      config::at_least(1));
}

int DomainsConfig::crop_from() const {
  return static_cast<int>(resize > 0 ? resize : (image_size * 8 + 3) / 7);
}

Domains open_domains(
    const DomainsConfig& config,
    const train::Context& context) {
  if (config.name == "synthetic") {
    auto other = context.trainer;
    ++other.seed;
    return {
        open_split(config, context.trainer, true),
        open_split(config, other, true)};
  }
  Domains domains;
  domains.source = open_domain(config, config.source);
  domains.target = open_domain(config, config.target);
  check_classes(config, domains);
  // Before models are built: other classes would make them differ.
  check_same_data({domains.source, domains.target}, *context.group);
  return domains;
}

}  // namespace lockstep::recipes
