#pragma once

// The recipes by name. A recipe is prepared from an untyped configuration
// (checked, completed, printable) and then built for a group of ranks.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/config/binder.h"
#include "lockstep/config/groups.h"
#include "lockstep/record/event_log.h"
#include "lockstep/record/run_directory.h"
#include "lockstep/train/rank_environment.h"
#include "lockstep/train/recipe.h"

namespace lockstep::recipes {

// What a recipe without a step loop is run with, on every rank.
struct OwnRun {
  std::string verb;
  std::string config;  // resolved, as YAML
  collective::Communicator* group = nullptr;
  const train::RankEnvironment* environment = nullptr;
  double started = 0;  // Unix seconds
  // Of the verb 'train'; null for the others.
  const record::RunDirectory* directory = nullptr;
  // Called once, by all ranks together, when what was given is known to be
  // good: until then an old run in `directory` stays as it is.
  std::function<record::EventWriter&()> begin;
};

struct Prepared {
  std::string config;  // resolved, as YAML
  train::TrainerConfig trainer;
  std::string out;         // empty: a new folder under runs/
  std::string checkpoint;  // for `test`
  std::function<std::unique_ptr<train::Recipe>(const train::Context&)> build;
  // What else the recipe does, by verb; gives an exit code.
  std::map<std::string, std::function<int(const train::Context&)>> verbs;
  // Instead of build, for a recipe without a step loop: the exit code.
  std::function<int(const OwnRun&)> run;
};

struct Entry {
  std::string name;
  std::string summary;
  std::vector<std::string> verbs{};  // beside train and test
  // Its data.* and trainer.* are its own: the groups of the others are not for
  // it.
  bool own_keys = false;
  // Adds the recipe's own experiments.
  std::function<void(config::Groups&)> add_groups;
  std::function<Result<Prepared>(const config::Node&, int world_size)> prepare;
  std::function<std::vector<config::FieldDoc>()> describe;
};

const std::vector<Entry>& all_recipes();
// The error lists the nearest or all names.
Result<const Entry*> find_recipe(const std::string& name);

// data=..., trainer=..., experiment=... as every recipe has them, and
// `entry`'s.
config::Groups make_groups(const Entry& entry);

}  // namespace lockstep::recipes
