#include "lockstep/cloud/prices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <regex>
#include <set>

#include "lockstep/base/check.h"
#include "lockstep/base/nearest.h"
#include "lockstep/base/text.h"
#include "lockstep/cloud/price_table.h"

namespace lockstep::cloud {
namespace {

Error bad_line(const std::string& file, int line, const std::string& what) {
  return Error(
      ErrorCode::kInvalidInput, fmt::format("{}:{}: {}", file, line, what));
}

// "2026-11-15" in Unix seconds.
std::optional<double> parse_date(std::string_view text) {
  std::tm date = {};
  int read = 0;
  const std::string copy(text);
  if (std::sscanf(
          copy.c_str(),
          "%4d-%2d-%2d%n",
          &date.tm_year,
          &date.tm_mon,
          &date.tm_mday,
          &read) != 3 ||
      static_cast<size_t>(read) != copy.size()) {
    return {};
  }
  date.tm_year -= 1900;
  date.tm_mon -= 1;
  return static_cast<double>(timegm(&date));
}

// "ondemand" of "c5.xlarge.ondemand": what follows a type as EC2 names them.
// Empty for a type alone, and for hosts, whose names have dots too.
std::string unknown_market(const std::string& name) {
  static const std::regex form(
      R"([a-z][a-z0-9-]*\.(?:nano|micro|small|medium|large|[0-9]*xlarge|metal)"
      R"((?:-[0-9a-z]+)?)\.(.+))");
  std::smatch found;
  return std::regex_match(name, found, form) ? found[1].str() : "";
}

void add_types(std::vector<std::string>& types, const PriceList& list) {
  for (const std::string& type : list.types()) {
    if (std::ranges::count(types, type) == 0) {
      types.push_back(type);
    }
  }
}

}  // namespace

std::string_view to_string(PriceSource source) {
  switch (source) {
    case PriceSource::kUser:
      return "user file";
    case PriceSource::kApi:
      return "api";
    case PriceSource::kTable:
      return "table";
  }
  return "unknown";
}

Result<PriceTable> PriceTable::parse(
    std::string_view text,
    const std::string& file) {
  constexpr std::string_view kDate = "# as of ";
  PriceTable table;
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.starts_with(kDate)) {
      const auto date = parse_date(line.substr(kDate.size()));
      if (!date) {
        return bad_line(file, number, "accepted: '# as of YYYY-MM-DD'");
      }
      table.as_of_ = *date;
    }
    if (line.empty() || line.starts_with('#')) {
      continue;
    }
    const size_t first = line.find(',');
    const size_t last = line.rfind(',');
    if (first == std::string_view::npos || last == first) {
      return bad_line(file, number, "accepted: 'region,type,dollars'");
    }
    const auto price = parse_money(line.substr(last + 1));
    if (!price || *price <= Money()) {
      return bad_line(file, number, "dollars must be a number above 0");
    }
    const auto [at, is_new] = table.prices_.emplace(
        std::pair(
            std::string(line.substr(first + 1, last - first - 1)),
            std::string(line.substr(0, first))),
        *price);
    if (!is_new) {
      return bad_line(file, number, "this type stands twice");
    }
  }
  if (table.as_of_ <= 0) {
    return bad_line(file, number, "'# as of YYYY-MM-DD' is missing");
  }
  return table;
}

const PriceTable& PriceTable::shipped() {
  static const PriceTable kTable = [] {
    auto table = parse(kPriceTable, "price_table.csv");
    LOCKSTEP_CHECK(table.has_value(), "a test reads the same text");
    return std::move(*table);
  }();
  return kTable;
}

Result<std::vector<Price>> PriceTable::prices(
    const std::string& type,
    const std::string& region) {
  const auto found = prices_.find({type, region});
  if (found == prices_.end()) {
    return std::vector<Price>();
  }
  Price price;
  price.type = type;
  price.region = region;
  price.hourly = found->second;
  price.source = PriceSource::kTable;
  price.as_of = as_of_;
  return std::vector<Price>{price};
}

std::vector<std::string> PriceTable::types() const {
  std::set<std::string> names;
  for (const auto& [key, price] : prices_) {
    names.insert(key.first);
  }
  return {names.begin(), names.end()};
}

Result<UserPrices> UserPrices::parse(
    const std::map<std::string, std::string>& entries,
    const std::string& file,
    double as_of) {
  constexpr std::string_view kSpot = ".spot";
  constexpr std::string_view kOnDemand = ".on_demand";
  UserPrices prices;
  prices.as_of_ = as_of;
  for (const auto& [key, value] : entries) {
    std::string type = key;
    Market market = Market::kOnDemand;
    if (type.ends_with(kSpot)) {
      type.resize(type.size() - kSpot.size());
      market = Market::kSpot;
    } else if (type.ends_with(kOnDemand)) {
      type.resize(type.size() - kOnDemand.size());
    }
    if (const std::string unknown = unknown_market(type); !unknown.empty()) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "{}: prices.{}: '{}' is no market; accepted: on_demand, spot",
              file,
              key,
              unknown));
    }
    const auto money = parse_money(value);
    if (!money || *money < Money() || type.empty()) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "{}: prices.{}: '{}' is no price; accepted: dollars an hour, as "
              "'TYPE: 0.17' or 'TYPE: {{on_demand: 0.17, spot: 0.06}}'",
              file,
              key,
              value));
    }
    if (!prices.prices_.emplace(std::pair(type, market), *money).second) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "{}: prices.{}: its {} price stands twice",
              file,
              type,
              to_string(market)));
    }
  }
  return prices;
}

Result<std::vector<Price>> UserPrices::prices(
    const std::string& type,
    const std::string& region) {
  std::vector<Price> found;
  for (const Market market : {Market::kOnDemand, Market::kSpot}) {
    const auto entry = prices_.find({type, market});
    if (entry != prices_.end()) {
      Price price;
      price.type = type;
      price.region = region;
      price.market = market;
      price.hourly = entry->second;
      price.source = PriceSource::kUser;
      price.as_of = as_of_;
      found.push_back(price);
    }
  }
  return found;
}

std::vector<std::string> UserPrices::types() const {
  std::vector<std::string> names;
  for (const auto& [key, price] : prices_) {
    if (names.empty() || names.back() != key.first) {
      names.push_back(key.first);
    }
  }
  return names;
}

Result<std::vector<Price>> PriceBook::prices(
    const std::string& type,
    const std::string& region) {
  std::vector<Price> found;
  std::set<Market> known;
  for (PriceList* list : lists_) {
    auto some = list->prices(type, region);
    if (!some) {
      const std::string text = some.error().to_string();
      if (std::ranges::none_of(problems_, [&](const Error& one) {
            return one.to_string() == text;
          })) {
        problems_.push_back(some.error());
      }
      continue;
    }
    std::set<Market> now;
    for (Price& price : *some) {
      now.insert(price.market);
      if (!known.contains(price.market)) {
        found.push_back(std::move(price));
      }
    }
    known.merge(now);
  }
  if (!found.empty()) {
    std::ranges::stable_sort(found, {}, &Price::market);
    return found;
  }
  std::vector<std::string> types;
  for (const PriceList* list : lists_) {
    add_types(types, *list);
  }
  const bool elsewhere = std::ranges::count(types, type) > 0;
  std::string near;
  for (const std::string& name : nearest_names(type, types)) {
    near += fmt::format("{}'{}'", near.empty() ? "" : ", ", name);
  }
  std::string text =
      fmt::format("no price of '{}' in {} is known", type, region);
  if (!elsewhere && !near.empty()) {
    text += "; near: " + near;
  }
  for (const Error& one : problems()) {
    text += " (" + one.message() + ")";
  }
  return Error(ErrorCode::kNotFound, text)
      .with_fix("'prices' in the user file can name one");
}

Result<Price> PriceBook::price(
    const std::string& type,
    const std::string& region,
    Market market,
    const std::string& zone) {
  LOCKSTEP_ASSIGN(const std::vector<Price> found, prices(type, region));
  const Price* best = nullptr;
  for (const Price& price : found) {
    if (price.market != market) {
      continue;
    }
    if (!zone.empty() && price.zone == zone) {
      return price;
    }
    if (best == nullptr || price.hourly > best->hourly) {
      best = &price;
    }
  }
  if (best == nullptr) {
    return Error(
               ErrorCode::kNotFound,
               fmt::format(
                   "no {} price of '{}' in {} is known",
                   to_string(market),
                   type,
                   region))
        .with_fix("'prices' in the user file can name one");
  }
  return *best;
}

std::vector<Error> PriceBook::problems() const {
  std::vector<Error> all = problems_;
  for (const PriceList* list : lists_) {
    std::ranges::copy(list->problems(), std::back_inserter(all));
  }
  return all;
}

}  // namespace lockstep::cloud
