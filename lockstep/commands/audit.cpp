#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/base/log.h"
#include "lockstep/cloud/ec2/ec2.h"
#include "lockstep/commands/cloud_access.h"
#include "lockstep/commands/command.h"
#include "lockstep/commands/table.h"

namespace lockstep::commands {
namespace {

struct AuditOptions {
  std::vector<std::string> regions;
  bool all = false;
};

struct RegionFindings {
  std::string region;
  std::vector<cloud::Resource> resources;
  std::optional<Error> error;
};

Result<void> look(RegionFindings& findings, bool all) {
  LOCKSTEP_ASSIGN(const auto client, open_aws(findings.region));
  cloud::ec2::Ec2 ec2({.client = client.get(), .region = findings.region});
  const cloud::Selection ours = {
      .tags = {{std::string(cloud::kClusterTag), ""}}, .ids = {}};
  for (const cloud::ResourceKind kind : cloud::kResourceKinds) {
    LOCKSTEP_ASSIGN(auto found, ec2.resources(kind, ours));
    for (cloud::Resource& one : found) {
      if (all || !one.is_over) {
        findings.resources.push_back(std::move(one));
      }
    }
  }
  return {};
}

std::string tag(const cloud::Resource& one, std::string_view key) {
  const auto found = one.tags.find(std::string(key));
  return found == one.tags.end() ? "" : found->second;
}

void print(const std::vector<RegionFindings>& regions, OutputFormat format) {
  const double now = os::real_clock().unix_seconds();
  nlohmann::json resources = nlohmann::json::array();
  nlohmann::json looked_at = nlohmann::json::array();
  Table table(
      {"region", "kind", "id", "what", "state", "cluster", "node", "age"});
  for (const RegionFindings& region : regions) {
    if (!region.error) {
      looked_at.push_back(region.region);
    }
    for (const cloud::Resource& one : region.resources) {
      const std::string kind(to_string(one.kind));
      const std::string cluster = tag(one, cloud::kClusterTag);
      const std::string node = tag(one, cloud::kNodeTag);
      if (format == OutputFormat::kQuiet) {
        fmt::print("{}\n", one.id);
      }
      resources.push_back(
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
           {"tags", one.tags}});
      table.add(
          {region.region,
           kind,
           one.id,
           one.name.empty() ? "-" : one.name,
           one.state,
           cluster,
           node.empty() ? "-" : node,
           one.created > 0 ? age_text(now - one.created) : "-"});
    }
  }
  if (format == OutputFormat::kJson) {
    const nlohmann::json told = {
        {"regions", looked_at}, {"resources", resources}};
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
  LOCKSTEP_ASSIGN(const auto names, chosen_regions(options.regions, settings));
  if (names.empty()) {
    return Error(ErrorCode::kInvalidInput, "no region is named")
        .with_fix(
            "give --region, set AWS_REGION, or 'regions' in the user file");
  }
  std::vector<RegionFindings> regions;
  for (const std::string& name : names) {
    regions.push_back({name, {}, {}});
  }
  std::vector<std::thread> threads;
  for (RegionFindings& one : regions) {
    threads.emplace_back([&one, &options] {
      if (auto done = look(one, options.all); !done) {
        one.error = std::move(done.error());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  print(regions, context.format());
  std::optional<Error> first;
  for (RegionFindings& one : regions) {
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
      "audit", "everything in the cloud that carries our tag");
  verb->footer("Example: lockstep audit --region us-west-2,eu-west-1");
  auto options = std::make_shared<AuditOptions>();
  verb->add_option("--region", options->regions, "of the cloud; a,b: several")
      ->delimiter(',')
      ->type_name("R");
  verb->add_flag("--all", options->all, "also what is over");
  set_action(*verb, context, [&context, options]() {
    return audit(*options, context);
  });
}

}  // namespace lockstep::commands
