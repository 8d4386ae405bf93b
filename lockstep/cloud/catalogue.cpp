#include "lockstep/cloud/catalogue.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "lockstep/base/check.h"
#include "lockstep/base/nearest.h"
#include "lockstep/base/text.h"
#include "lockstep/cloud/failure.h"
#include "lockstep/cloud/price_table.h"

namespace lockstep::cloud {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr int kMost = 1'000'000;
constexpr size_t kShortList = 5;
constexpr size_t kNearest = 3;

std::optional<int> parse_count(std::string_view text) {
  int number = 0;
  const auto end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  const bool is_good = read.ec == std::errc() && read.ptr == end &&
                       number >= 1 && number <= kMost;
  return is_good ? std::optional(number) : std::nullopt;
}

std::optional<Amount> parse_amount(std::string_view text) {
  Amount amount;
  if (text.ends_with('+')) {
    amount.or_more = true;
    text.remove_suffix(1);
  }
  const auto number = parse_count(text);
  amount.number = number.value_or(0);
  return number ? std::optional(amount) : std::nullopt;
}

std::string text_of(const Amount& amount) {
  return fmt::format("{}{}", amount.number, amount.or_more ? "+" : "");
}

Error bad_key(const char* key, const std::string& text, const char* accepted) {
  return Error(
      ErrorCode::kInvalidInput,
      fmt::format("resources.{}: '{}'; accepted: {}", key, text, accepted));
}

int memory_of(const Offer& offer) {
  return static_cast<int>(offer.memory.count / kGiB);
}

int gpus_of(const Offer& offer, const std::string& name) {
  for (const Accelerator& one : offer.accelerators) {
    if (lower(one.name) == lower(name)) {
      return one.count;
    }
  }
  return 0;
}

// How far the machine is from the wish: 0 fits; a factor of two counts as one.
double distance(const Offer& offer, const MachineWish& wish) {
  double sum = 0;
  const auto add = [&](const std::optional<Amount>& amount, int given) {
    if (amount && !amount->holds(given)) {
      constexpr double kAbsent = 10;
      sum += given == 0
                 ? kAbsent
                 : std::abs(
                       std::log2(static_cast<double>(given) / amount->number));
    }
  };
  add(wish.cpus, offer.cpus);
  add(wish.memory, memory_of(offer));
  add(wish.accelerators, gpus_of(offer, wish.accelerator));
  return sum;
}

std::string describe(const Offer& offer) {
  std::string gpus;
  for (const Accelerator& one : offer.accelerators) {
    gpus += fmt::format(", {}:{}", one.name, one.count);
  }
  return fmt::format(
      "{} (cpus {}, memory {}{})",
      offer.type,
      offer.cpus,
      memory_of(offer),
      gpus);
}

std::optional<Offer> parse_line(std::string_view line) {
  std::vector<std::string_view> fields;
  while (true) {
    const size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) {
      break;
    }
    line.remove_prefix(comma + 1);
  }
  if (fields.size() != 4 || fields[0].empty()) {
    return {};
  }
  const auto cpus = parse_count(fields[1]);
  const auto memory = parse_count(fields[2]);
  if (!cpus || !memory) {
    return {};
  }
  Offer offer;
  offer.type = fields[0];
  offer.cpus = *cpus;
  offer.memory = Bytes{static_cast<uint64_t>(*memory) * kGiB};
  if (fields[3] != "-") {
    const size_t colon = fields[3].find(':');
    const auto count = colon == std::string_view::npos
                           ? std::nullopt
                           : parse_count(fields[3].substr(colon + 1));
    if (!count || colon == 0) {
      return {};
    }
    offer.accelerators.push_back(
        {std::string(fields[3].substr(0, colon)), *count, {}});
  }
  return offer;
}

// In that region, else where the table knows it: for an order alone.
double shipped_price(const std::string& type, const std::string& region) {
  PriceTable table = PriceTable::shipped();
  for (const std::string& where : {region, std::string("us-east-1")}) {
    if (const auto found = table.prices(type, where);
        found && !found->empty()) {
      return found->front().hourly.dollars();
    }
  }
  return std::numeric_limits<double>::max();
}

}  // namespace

std::string MachineWish::to_string() const {
  std::vector<std::string> words;
  if (cpus) {
    words.push_back("cpus " + text_of(*cpus));
  }
  if (memory) {
    words.push_back("memory " + text_of(*memory));
  }
  if (accelerators) {
    words.push_back(
        fmt::format("accelerators {}:{}", accelerator, text_of(*accelerators)));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

Result<MachineWish> parse_wish(
    const std::string& cpus,
    const std::string& memory,
    const std::string& accelerators) {
  MachineWish wish;
  if (!cpus.empty() && !(wish.cpus = parse_amount(cpus))) {
    return bad_key("cpus", cpus, "a number of cores, 4 or 4+");
  }
  if (!memory.empty() && !(wish.memory = parse_amount(memory))) {
    return bad_key("memory", memory, "a number of GB, 16 or 16+");
  }
  if (!accelerators.empty()) {
    const size_t colon = std::min(accelerators.find(':'), accelerators.size());
    wish.accelerator = accelerators.substr(0, colon);
    wish.accelerators = colon == accelerators.size()
                            ? Amount{1, false}
                            : parse_amount(accelerators.substr(colon + 1));
    if (wish.accelerator.empty() || !wish.accelerators) {
      return bad_key("accelerators", accelerators, "NAME:COUNT, T4:1 or T4:1+");
    }
  }
  return wish;
}

Result<Catalogue> Catalogue::parse(
    std::string_view text,
    const std::string& file) {
  Catalogue catalogue;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.starts_with('#')) {
      continue;
    }
    auto offer = parse_line(line);
    const bool is_twice =
        offer &&
        std::ranges::count(catalogue.types_, offer->type, &Offer::type) > 0;
    if (!offer || is_twice) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "{}:{}: {}",
              file,
              number,
              is_twice ? "this type stands twice"
                       : "accepted: 'type,cpus,GiB,NAME:COUNT' or '-'"));
    }
    catalogue.types_.push_back(std::move(*offer));
  }
  return catalogue;
}

const Catalogue& Catalogue::shipped() {
  static const Catalogue kCatalogue = [] {
    auto read = parse(kTypeTable, "type_table.csv");
    LOCKSTEP_CHECK(read.has_value(), "a test reads the same text");
    return std::move(*read);
  }();
  return kCatalogue;
}

Result<std::vector<Offer>> Catalogue::matching(const MachineWish& wish) const {
  if (!wish.accelerator.empty()) {
    std::vector<std::string> names;
    for (const Offer& offer : types_) {
      for (const Accelerator& one : offer.accelerators) {
        if (std::ranges::count(names, one.name) == 0) {
          names.push_back(one.name);
        }
      }
    }
    const auto is_it = [&](const std::string& name) {
      return lower(name) == lower(wish.accelerator);
    };
    if (std::ranges::none_of(names, is_it)) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "resources.accelerators: no known type has '{}'; {}",
              wish.accelerator,
              suggest(wish.accelerator, names)));
    }
  }
  std::vector<Offer> sorted = types_;
  std::ranges::stable_sort(
      sorted, {}, [&](const Offer& offer) { return distance(offer, wish); });
  std::vector<Offer> fitting;
  std::ranges::copy_if(
      sorted, std::back_inserter(fitting), [&](const Offer& offer) {
        return distance(offer, wish) == 0;
      });
  if (!fitting.empty()) {
    return fitting;
  }
  std::vector<std::string> near;
  for (const Offer& offer : sorted) {
    if (near.size() < kNearest) {
      near.push_back(describe(offer));
    }
  }
  return Error(
             ErrorCode::kNotFound,
             fmt::format(
                 "no known type has {}; the nearest: {}",
                 wish.to_string(),
                 fmt::join(near, ", ")))
      .with_fix("ask for other numbers, or name the type: instance_type");
}

Result<Chosen> choose_cheapest(
    Provider& provider,
    PriceBook& book,
    const Catalogue& catalogue,
    const MachineWish& wish,
    Market market) {
  LOCKSTEP_ASSIGN(std::vector<Offer> fitting, catalogue.matching(wish));
  const std::string region = provider.region();
  std::ranges::stable_sort(fitting, {}, [&](const Offer& offer) {
    return shipped_price(offer.type, region);
  });
  fitting.resize(std::min(fitting.size(), kShortList));
  std::vector<Chosen> priced;
  std::optional<Error> first;
  const auto keep = [&](Error error) {
    if (!first) {
      first = std::move(error);
    }
  };
  for (const Offer& offer : fitting) {
    if (auto price = book.price(offer.type, region, market)) {
      priced.push_back({offer, std::move(*price)});
    } else {
      keep(std::move(price.error()));
    }
  }
  std::ranges::stable_sort(
      priced, {}, [](const Chosen& one) { return one.price.hourly.nanos(); });
  for (Chosen& one : priced) {
    auto offered = provider.offers({one.offer.type});
    if (offered && !offered->empty()) {
      one.offer = std::move(offered->front());
      return one;
    }
    if (!offered && failure_of(offered.error()) != Failure::kBadRequest) {
      return Error(std::move(offered.error()));
    }
    if (!offered) {
      keep(std::move(offered.error()));
    }
  }
  std::vector<std::string> names;
  for (const Offer& offer : fitting) {
    names.push_back(offer.type);
  }
  return Error(
      ErrorCode::kNotFound,
      fmt::format(
          "of the types with {} ({}), {} offers none with a price: {}",
          wish.to_string(),
          fmt::join(names, ", "),
          region,
          first ? first->to_string() : "none is offered"));
}

}  // namespace lockstep::cloud
