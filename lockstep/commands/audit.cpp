#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "lockstep/base/log.h"
#include "lockstep/cloud/ec2/ec2.h"
#include "lockstep/commands/audit_uploads.h"
#include "lockstep/commands/cloud_access.h"
#include "lockstep/commands/cluster_access.h"
#include "lockstep/commands/command.h"
#include "lockstep/commands/table.h"
#include "lockstep/fleet/audit.h"

namespace lockstep::commands {
namespace {

struct AuditOptions {
  std::vector<std::string> regions;
  std::vector<std::string> outputs;
  std::string stale = "24h";
  bool all = false;
  bool fix = false;
};

struct RegionFindings {
  std::string region;
  std::vector<fleet::Audited> resources;
  fleet::Ended ended;
  std::optional<Error> error;
};

// Clusters whose command on this machine died half-way: nobody holds their
// journal.
std::set<std::string> abandoned_clusters() {
  std::set<std::string> names;
  for (const std::string& name : known_clusters()) {
    const os::Path folder = clusters_folder() / name;
    const auto steps = fleet::Journal::read(folder);
    const bool is_open =
        steps && std::ranges::any_of(*steps, [](const auto& step) {
          return !step.outcome.has_value();
        });
    if (is_open && fleet::Journal::open({.folder = folder})) {
      names.insert(name);
    }
  }
  return names;
}

// A cluster file may have named a region that nothing else names.
void add_known_regions(std::vector<std::string>& regions) {
  for (const std::string& name : known_clusters()) {
    const auto cluster = known_cluster(name);
    if (cluster && *cluster &&
        std::ranges::count(regions, (*cluster)->region) == 0) {
      regions.push_back((*cluster)->region);
    }
  }
}

Result<void> look(
    RegionFindings& findings,
    const AuditOptions& options,
    const std::set<std::string>& abandoned) {
  LOCKSTEP_ASSIGN(const auto client, open_aws(findings.region));
  cloud::ec2::Ec2 ec2({.client = client.get(), .region = findings.region});
  LOCKSTEP_ASSIGN(const auto found, fleet::all_of_ours(ec2));
  auto audited =
      fleet::judge(found, {os::real_clock().unix_seconds(), abandoned});
  if (options.fix) {
    findings.ended = fleet::end_unowned(ec2, audited, os::real_clock());
  }
  for (fleet::Audited& one : audited) {
    if (options.all || one.owner != fleet::Ownership::kOver) {
      findings.resources.push_back(std::move(one));
    }
  }
  return {};
}

std::string tag(const cloud::Resource& one, std::string_view key) {
  const auto found = one.tags.find(std::string(key));
  return found == one.tags.end() ? "" : found->second;
}

// One thing that was found, as people and as programs see it.
struct Line {
  std::string id;
  nlohmann::json told;
  std::vector<std::string> cells;
};

std::string verdict(
    bool is_ended,
    bool is_left,
    std::string_view owner,
    const std::string& why) {
  return is_ended  ? "ended: " + why
         : is_left ? "could not be ended"
                   : fmt::format("{} ({})", owner, why);
}

Line line_of(
    const RegionFindings& region,
    const fleet::Audited& audited,
    bool fix,
    double now) {
  const cloud::Resource& one = audited.resource;
  const bool is_ended = std::ranges::count(region.ended.ended, one.id) > 0;
  const std::string kind(to_string(one.kind));
  const std::string cluster = tag(one, cloud::kClusterTag);
  const std::string node = tag(one, cloud::kNodeTag);
  return {
      one.id,
      {{"region", region.region},
       {"kind", kind},
       {"id", one.id},
       {"name", one.name},
       {"state", one.state},
       {"zone", one.zone},
       {"created", one.created},
       {"cluster", cluster},
       {"node", node},
       {"owner", tag(one, cloud::kOwnerTag)},
       {"over", one.is_over},
       {"owned_by", to_string(audited.owner)},
       {"why", audited.why},
       {"ended", is_ended},
       {"tags", one.tags}},
      {region.region,
       kind,
       one.id,
       one.name.empty() ? "-" : one.name,
       one.state,
       cluster,
       node.empty() ? "-" : node,
       one.created > 0 ? age_text(now - one.created) : "-",
       verdict(
           is_ended,
           fix && audited.owner == fleet::Ownership::kNobody,
           to_string(audited.owner),
           audited.why)}};
}

Line line_of(const AuditedUpload& one, bool fix, double now) {
  return {
      one.id,
      {{"region", ""},
       {"kind", "upload"},
       {"id", one.id},
       {"name", one.address.to_string()},
       {"state", "not completed"},
       {"created", one.begun},
       {"cluster", ""},
       {"over", false},
       {"owned_by", one.owner},
       {"why", one.why},
       {"ended", one.ended}},
      {"-",
       "upload",
       one.id,
       one.address.to_string(),
       "not completed",
       "-",
       "-",
       one.begun > 0 ? age_text(now - one.begun) : "-",
       verdict(one.ended, fix && !one.is_owned(), one.owner, one.why)}};
}

void print(
    const std::vector<RegionFindings>& regions,
    const UploadFindings& uploads,
    OutputFormat format,
    bool fix) {
  const double now = os::real_clock().unix_seconds();
  std::vector<Line> lines;
  nlohmann::json looked_at = nlohmann::json::array();
  for (const RegionFindings& region : regions) {
    if (!region.error) {
      looked_at.push_back(region.region);
    }
    for (const fleet::Audited& audited : region.resources) {
      lines.push_back(line_of(region, audited, fix, now));
    }
  }
  for (const AuditedUpload& upload : uploads.uploads) {
    lines.push_back(line_of(upload, fix, now));
  }
  nlohmann::json resources = nlohmann::json::array();
  nlohmann::json ended = nlohmann::json::array();
  Table table(
      {"region",
       "kind",
       "id",
       "what",
       "state",
       "cluster",
       "node",
       "age",
       fix ? "what was done" : "owned by"});
  for (Line& line : lines) {
    if (format == OutputFormat::kQuiet) {
      fmt::print("{}\n", line.id);
    }
    if (line.told.at("ended").get<bool>()) {
      ended.push_back(line.id);
    }
    resources.push_back(std::move(line.told));
    table.add(std::move(line.cells));
  }
  if (format == OutputFormat::kJson) {
    const nlohmann::json told = {
        {"regions", looked_at}, {"resources", resources}, {"ended", ended}};
    fmt::print(
        "{}\n",
        told.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else if (format == OutputFormat::kTable && !table.empty()) {
    fmt::print("{}", table.to_string());
  } else if (format == OutputFormat::kTable && !looked_at.empty()) {
    std::string names;
    for (const auto& name : looked_at) {
      names += (names.empty() ? "" : ", ") + name.get<std::string>();
    }
    fmt::print("nothing of lockstep in {}\n", names);
  }
}

Result<int> audit(const AuditOptions& options, const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(auto names, chosen_regions(options.regions, settings));
  if (options.regions.empty()) {
    add_known_regions(names);
  }
  if (names.empty()) {
    return Error(ErrorCode::kInvalidInput, "no region is named")
        .with_fix(
            "give --region, set AWS_REGION, or 'regions' in the user file");
  }
  std::vector<RegionFindings> regions;
  for (const std::string& name : names) {
    regions.push_back({name, {}, {}, {}});
  }
  LOCKSTEP_ASSIGN(
      const Duration stale,
      parse_duration(options.stale).with_context("--stale"));
  const auto abandoned = abandoned_clusters();
  std::vector<std::thread> threads;
  for (RegionFindings& one : regions) {
    threads.emplace_back([&] {
      if (auto done = look(one, options, abandoned); !done) {
        one.error = std::move(done.error());
      }
    });
  }
  auto uploads = audit_uploads(
      {.places = options.outputs,
       .runs_dir = settings.runs_dir,
       .stale = stale,
       .fix = options.fix});
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (!uploads) {
    return std::move(uploads.error());
  }
  print(regions, *uploads, context.format(), options.fix);
  std::optional<Error> first;
  for (Error& error : uploads->failed) {
    if (first) {
      log_error(error.to_string());
    } else {
      first = std::move(error);
    }
  }
  for (RegionFindings& one : regions) {
    for (Error& error : one.ended.failed) {
      if (!one.error) {
        one.error = std::move(error);
      } else {
        log_error(error.to_string());
      }
    }
    if (one.error) {
      Error error =
          std::move(*one.error).with_context("looking at " + one.region);
      if (first) {
        log_error(error.to_string());
      } else {
        first = std::move(error);
      }
    }
  }
  if (first) {
    return Error(std::move(*first));
  }
  return 0;
}

}  // namespace

void add_audit(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand(
      "audit", "everything in the cloud that is ours, and who owns it");
  verb->footer("Example: lockstep audit --region us-west-2,eu-west-1");
  auto options = std::make_shared<AuditOptions>();
  verb->add_option("--region", options->regions, "of the cloud; a,b: several")
      ->delimiter(',')
      ->type_name("R");
  verb->add_option(
          "--outputs",
          options->outputs,
          "also look for broken uploads below; a,b: several")
      ->delimiter(',')
      ->type_name("S3");
  verb->add_option(
          "--stale",
          options->stale,
          "the age of an upload that nobody goes on with (24h)")
      ->type_name("TIME");
  add_runs_dir(*verb, context);
  verb->add_flag("--all", options->all, "also what is over");
  verb->add_flag("--fix", options->fix, "end what nobody owns");
  set_action(*verb, context, [&context, options]() {
    return audit(*options, context);
  });
}

}  // namespace lockstep::commands
