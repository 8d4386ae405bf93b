#pragma once

// What a machine costs an hour, from where, and how old that is. Three sources,
// asked in this order: the user's own file, the cloud's API, and the table that
// ships with lockstep (list prices of the usual types, no spot). A price never
// travels without its source and date; one that is not known is an error,
// never a guess. Prices are for the machine alone, without disks and traffic.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/cloud/machine.h"

namespace lockstep::cloud {

enum class PriceSource { kUser, kApi, kTable };
std::string_view to_string(PriceSource source);  // "user file", "api", "table"

struct Price {
  std::string type;
  std::string region;
  std::string zone;  // spot by the API; else empty
  Market market = Market::kOnDemand;
  Money hourly;
  PriceSource source = PriceSource::kTable;
  double as_of = 0;  // Unix seconds
};

// The types and prices of one source. Implementations may call the cloud.
class PriceList {
 public:
  virtual ~PriceList() = default;
  // On demand first, then spot by zone, the cheapest first. Empty: this source
  // does not know the type in that region.
  virtual Result<std::vector<Price>> prices(
      const std::string& type,
      const std::string& region) = 0;
  // That it knows without a call, for hints.
  virtual std::vector<std::string> types() const { return {}; }
  // What failed beside a part that did not, of all calls so far.
  virtual std::vector<Error> problems() const { return {}; }
};

// The table that ships with lockstep.
class PriceTable : public PriceList {
 public:
  // Lines "region,type,dollars" after one "# as of YYYY-MM-DD"; other lines
  // with '#' and blank ones are passed over. Errors name the line.
  static Result<PriceTable> parse(
      std::string_view text,
      const std::string& file);
  static const PriceTable& shipped();
  double as_of() const { return as_of_; }
  Result<std::vector<Price>> prices(
      const std::string& type,
      const std::string& region) override;
  std::vector<std::string> types() const override;

 private:
  double as_of_ = 0;
  std::map<std::pair<std::string, std::string>, Money> prices_;
};

// `prices` of the user's file: {TYPE: 0.17} or {TYPE: {on_demand: 0.17, spot:
// 0.06}}, also own hosts by name; in every region. `as_of`: when the file was
// last written.
class UserPrices : public PriceList {
 public:
  static Result<UserPrices> parse(
      const std::map<std::string, std::string>& entries,
      const std::string& file,
      double as_of);
  Result<std::vector<Price>> prices(
      const std::string& type,
      const std::string& region) override;
  std::vector<std::string> types() const override;

 private:
  std::map<std::pair<std::string, Market>, Money> prices_;
  double as_of_ = 0;
};

// Asks several lists, the first that knows a market wins for that market. A
// list that fails is passed over and its error kept: without any price the
// caller sees it. Not thread-safe.
class PriceBook {
 public:
  // Not owned; in order of trust.
  void add(PriceList& list) { lists_.push_back(&list); }
  // kNotFound, with the nearest types and what failed, when nobody knows it.
  Result<std::vector<Price>> prices(
      const std::string& type,
      const std::string& region);
  // The one that a budget counts with: of that market; for spot, of that zone
  // when it is named and known, else the dearest zone.
  Result<Price> price(
      const std::string& type,
      const std::string& region,
      Market market,
      const std::string& zone = "");
  // What lists said instead of answering, each once.
  std::vector<Error> problems() const;

 private:
  std::vector<PriceList*> lists_;
  std::vector<Error> problems_;
};

}  // namespace lockstep::cloud
