#include <fmt/format.h>

#include "lockstep/cloud/failure.h"
#include "lockstep/commands/cluster_access.h"
#include "lockstep/commands/doctor.h"
#include "lockstep/fleet/audit.h"

namespace lockstep::commands {
namespace {

Finding broken_by(const std::string& what, const Error& error) {
  return {
      what,
      cloud::failure_of(error) == cloud::Failure::kTransient ||
              cloud::failure_of(error) == cloud::Failure::kNotFound
          ? Grade::kLacking
          : Grade::kBroken,
      error.message(),
      error.fix()};
}

}  // namespace

std::vector<Finding> look_at_cloud(
    const std::string& region,
    const Settings& settings) {
  std::vector<Finding> findings;
  findings.push_back({"region", Grade::kGood, region, ""});
  auto access = open_cloud(region, settings);
  if (!access) {
    findings.push_back(broken_by("settings", access.error()));
    return findings;
  }
  cloud::ec2::Ec2& ec2 = *(*access)->provider;
  const auto keys = (*access)->client->credentials();
  if (!keys) {
    findings.push_back(
        {"credentials",
         Grade::kBroken,
         keys.error().message(),
         keys.error().fix()});
    return findings;
  }
  // Only the cloud knows whether they are good.
  const auto ours = fleet::all_of_ours(ec2);
  if (!ours &&
      cloud::failure_of(ours.error()) == cloud::Failure::kCredentials) {
    findings.push_back(broken_by("credentials", ours.error()));
    return findings;
  }
  if (!ours && cloud::failure_of(ours.error()) == cloud::Failure::kTransient) {
    // Nothing more can be asked, and nobody has said that the keys are good.
    findings.push_back(
        {"cloud", Grade::kBroken, ours.error().message(), ours.error().fix()});
    return findings;
  }
  findings.push_back({"credentials", Grade::kGood, keys->source, ""});
  if (ours) {
    findings.push_back({"permission to look", Grade::kGood, "granted", ""});
  } else {
    findings.push_back(broken_by("permission to look", ours.error()));
  }
  for (const char* action :
       {"RunInstances", "CreateSecurityGroup", "ImportKeyPair"}) {
    const std::string what = fmt::format("permission ec2:{}", action);
    const auto may = ec2.may(action);
    if (!may) {
      findings.push_back(broken_by(what, may.error()));
    } else if (*may) {
      findings.push_back({what, Grade::kGood, "granted", ""});
    } else {
      findings.push_back(
          {what,
           Grade::kBroken,
           "refused",
           "give the account the policy of docs/aws.md"});
    }
  }
  const std::pair<const char*, cloud::Market> quotas[] = {
      {"c5.xlarge", cloud::Market::kOnDemand},
      {"c5.xlarge", cloud::Market::kSpot},
      {"g4dn.xlarge", cloud::Market::kOnDemand},
      {"g4dn.xlarge", cloud::Market::kSpot},
  };
  for (const auto& [type, market] : quotas) {
    const std::string what =
        fmt::format("quota, {} like {}", to_string(market), type);
    cloud::Offer offer;
    offer.type = type;
    const auto quota = ec2.quota(offer, market);
    if (!quota) {
      Finding finding = broken_by(what, quota.error());
      finding.grade = Grade::kLacking;
      findings.push_back(std::move(finding));
      continue;
    }
    const std::string detail = fmt::format(
        "{} of {} {} left ({})",
        quota->left(),
        quota->limit,
        quota->unit,
        quota->name);
    constexpr double kOneMachine = 4;
    findings.push_back(
        {what,
         quota->left() < kOneMachine ? Grade::kLacking : Grade::kGood,
         detail,
         quota->left() < kOneMachine ? "ask for more under Service Quotas"
                                     : ""});
  }
  if (const auto price =
          (*access)->book.price("c5.xlarge", region, cloud::Market::kOnDemand);
      price && price->source != cloud::PriceSource::kTable) {
    findings.push_back(
        {"prices", Grade::kGood, std::string(to_string(price->source)), ""});
  } else {
    const auto problems = (*access)->book.problems();
    findings.push_back(
        {"prices",
         Grade::kLacking,
         problems.empty() ? "only the shipped table knows them"
                          : problems.front().message(),
         "allow pricing:GetProducts, or name prices in the user file"});
  }
  return findings;
}

}  // namespace lockstep::commands
