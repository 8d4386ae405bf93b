
#include "lockstep/cloud/prices.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "lockstep/base/log.h"
#include "lockstep/cloud/ec2/pricing.h"
#include "lockstep/commands/cloud_access.h"
#include "lockstep/commands/command.h"
#include "lockstep/commands/table.h"

namespace lockstep::commands {
namespace {

struct PricesOptions {
  std::vector<std::string> types;
  std::vector<std::string> regions;
  std::string source = "all";
};

std::string date_text(double unix_seconds) {
  return fmt::format(
      "{:%Y-%m-%d}", fmt::gmtime(static_cast<std::time_t>(unix_seconds)));
}

// Dollars an hour with as many digits as they have, at least two.
std::string hourly_text(Money money) {
  std::string text = fmt::format("{:.6f}", money.dollars());
  while (text.ends_with('0') && text.find('.') + 3 < text.size()) {
    text.pop_back();
  }
  return "$" + text;
}

void print(
    const std::vector<cloud::Price>& prices,
    OutputFormat format,
    double now) {
  nlohmann::json all = nlohmann::json::array();
  Table table(
      {"type",
       "market",
       "an hour",
       "region",
       "zone",
       "source",
       "as of",
       "age"});
  for (const cloud::Price& one : prices) {
    const std::string market(to_string(one.market));
    const std::string source(to_string(one.source));
    if (format == OutputFormat::kQuiet) {
      fmt::print("{} {} {}\n", one.type, market, one.hourly.dollars());
    }
    all.push_back(
        {{"type", one.type},
         {"region", one.region},
         {"zone", one.zone},
         {"market", market},
         {"dollars_per_hour", one.hourly.dollars()},
         {"source", source},
         {"as_of", one.as_of},
         {"age_seconds", now - one.as_of}});
    table.add(
        {one.type,
         market,
         hourly_text(one.hourly),
         one.region,
         one.zone.empty() ? "-" : one.zone,
         source,
         date_text(one.as_of),
         age_text(now - one.as_of)});
  }
  if (format == OutputFormat::kJson) {
    fmt::print("{}\n", all.dump(2));
  } else if (format == OutputFormat::kTable && !table.empty()) {
    fmt::print("{}", table.to_string());
  }
}

Result<int> show(const PricesOptions& options, const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(auto regions, chosen_regions(options.regions, settings));
  if (regions.empty()) {
    regions = {"us-east-1"};
  }
  LOCKSTEP_ASSIGN(
      cloud::UserPrices mine,
      cloud::UserPrices::parse(
          settings.prices, settings_file().string(), settings.written));
  const bool all = options.source == "all";
  // There is a table to fall back to: no long waits for the cloud.
  LOCKSTEP_ASSIGN(const auto client, open_aws(regions.front(), 4));
  cloud::ec2::ApiPrices api(*client);
  cloud::PriceTable table = cloud::PriceTable::shipped();
  cloud::PriceBook book;
  if (all || options.source == "user") {
    book.add(mine);
  }
  if (all || options.source == "api") {
    book.add(api);
  }
  if (all || options.source == "table") {
    book.add(table);
  }
  std::vector<cloud::Price> found;
  std::optional<Error> unknown;
  for (const std::string& type : options.types) {
    for (const std::string& region : regions) {
      auto prices = book.prices(type, region);
      if (prices) {
        std::ranges::move(*prices, std::back_inserter(found));
      } else if (!unknown) {
        unknown = prices.error();
      }
    }
  }
  const auto problems = book.problems();
  print(found, context.format(), os::real_clock().unix_seconds());
  // The API alone was asked and said nothing: its own error is the answer.
  if (found.empty() && options.source == "api" && !problems.empty()) {
    return Error(problems.front());
  }
  if (unknown) {
    return Error(*unknown);
  }
  for (const Error& one : problems) {
    log_warning(fmt::format("not from the cloud: {}", one.to_string()));
  }
  return 0;
}

}  // namespace

void add_prices(CLI::App& app, Context& context) {
  CLI::App* verb =
      app.add_subcommand("prices", "what machines cost, from where, how old");
  verb->footer("Example: lockstep prices g4dn.xlarge --region us-west-2");
  auto options = std::make_shared<PricesOptions>();
  verb->add_option("types", options->types, "instance types")
      ->required()
      ->type_name("TYPE");
  verb->add_option("--region", options->regions, "of the cloud; a,b: several")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("R");
  verb->add_option("--source", options->source, "all, user, api or table")
      ->check(CLI::IsMember({"all", "user", "api", "table"}))
      ->type_name("S");
  set_action(*verb, context, [&context, options]() {
    return show(*options, context);
  });
}

}  // namespace lockstep::commands
