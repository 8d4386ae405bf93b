#pragma once

// Machines by what they have instead of by name: `cpus: 4+, memory: 16+,
// accelerators: T4:1` of a job. The catalogue is the table of types that ships
// with lockstep, those of the price table; what the cloud has beyond it can be
// had by name. The cheapest that fits is taken, at today's prices. Plain
// values; errors name the key, what is accepted, and what comes nearest.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/cloud/machine.h"
#include "lockstep/cloud/prices.h"
#include "lockstep/cloud/provider.h"

namespace lockstep::cloud {

// "4": so many; "4+": or more.
struct Amount {
  int number = 0;
  bool or_more = false;
  bool holds(int given) const {
    return or_more ? given >= number : given == number;
  }
};

struct MachineWish {
  std::optional<Amount> cpus;
  std::optional<Amount> memory;        // GiB
  std::string accelerator;             // "T4"; empty: none is asked for
  std::optional<Amount> accelerators;  // of that name
  bool is_empty() const { return !cpus && !memory && !accelerators; }
  std::string to_string() const;  // "cpus 4+, memory 16+"
};

// Of the three keys of a job's resources; an empty text asks for nothing.
Result<MachineWish> parse_wish(
    const std::string& cpus,
    const std::string& memory,
    const std::string& accelerators);

class Catalogue {
 public:
  // Lines "type,cpus,GiB,NAME:COUNT" ("-" without GPUs); '#' and blank ones are
  // passed over. Errors name the line.
  static Result<Catalogue> parse(
      std::string_view text,
      const std::string& file);
  static const Catalogue& shipped();

  const std::vector<Offer>& types() const { return types_; }
  // All that fit. kNotFound, with the nearest ones, when none does; a GPU that
  // no type has is kInvalidInput with its neighbours.
  Result<std::vector<Offer>> matching(const MachineWish& wish) const;

 private:
  std::vector<Offer> types_;
};

struct Chosen {
  Offer offer;
  Price price;
};

// The cheapest that fits, is offered in the provider's region and has a price
// there. The shipped prices make a short list, `book` tells what those cost
// now: asking for all would take a call a type.
Result<Chosen> choose_cheapest(
    Provider& provider,
    PriceBook& book,
    const Catalogue& catalogue,
    const MachineWish& wish,
    Market market);

}  // namespace lockstep::cloud
