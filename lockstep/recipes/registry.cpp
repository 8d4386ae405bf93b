#include "lockstep/recipes/registry.h"

#include <fmt/format.h>

#include "lockstep/base/nearest.h"
#include "lockstep/data/dataset.h"
#include "lockstep/recipes/dcgan.h"
#include "lockstep/recipes/deepcoral.h"
#include "lockstep/recipes/esrgan.h"
#include "lockstep/recipes/forest.h"
#include "lockstep/recipes/vit.h"

namespace lockstep::recipes {

const std::vector<Entry>& all_recipes() {
  static const std::vector<Entry> entries = {
      dcgan_entry(),
      deepcoral_entry(),
      esrgan_entry(),
      forest_entry(),
      vit_entry()};
  return entries;
}

Result<const Entry*> find_recipe(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& entry : all_recipes()) {
    if (entry.name == name) {
      return &entry;
    }
    names.push_back(entry.name);
  }
  return Error(
      ErrorCode::kInvalidInput,
      fmt::format("unknown recipe '{}'; {}", name, suggest(name, names)));
}

config::Groups make_groups(const Entry& entry) {
  config::Groups groups;
  groups.add("experiment");
  if (entry.own_keys) {
    entry.add_groups(groups);
    return groups;
  }
  for (const auto& name : data::dataset_names()) {
    groups.add("data", name, fmt::format("data: {{name: {}}}", name));
  }
  for (const char* strategy : {"single", "ddp", "fsdp"}) {
    groups.add(
        "trainer",
        strategy,
        fmt::format("trainer: {{strategy: {}}}", strategy));
  }
  entry.add_groups(groups);
  return groups;
}

}  // namespace lockstep::recipes
