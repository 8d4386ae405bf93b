#include "lockstep/commands/rented_candidates.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/log.h"
#include "lockstep/commands/cluster_access.h"
#include "lockstep/commands/run_optimised.h"

namespace lockstep::commands {
namespace {

class RentedCandidates : public Candidates {
 public:
  RentedCandidates(
      std::vector<Candidate> candidates,
      std::vector<std::string> types,
      const launch::Job& job)
      : candidates_(std::move(candidates)), types_(std::move(types)) {
    // The choice is ours: what the job file says about it is not for the run,
    // and a probe's results are nobody's.
    words_ = {"resources.candidates=[]"};
    if (is_optimised(job)) {
      words_.insert(
          words_.end(), {"optimise.goal=null", "optimise.candidates=[]"});
    }
    if (!job.outputs.empty()) {
      words_.emplace_back("outputs=null");
    }
  }
  const std::vector<Candidate>& list() const override { return candidates_; }
  Result<std::vector<std::string>> run_options(size_t index) override {
    std::vector<std::string> words = words_;
    words.push_back("resources.instance_type=" + types_[index]);
    words.insert(
        words.end(), {"--nodes", std::to_string(candidates_[index].nodes)});
    return words;
  }
  // Each run gave back what it had.
  Result<void> release(size_t /*index*/) override { return {}; }

 private:
  std::vector<Candidate> candidates_;
  std::vector<std::string> types_;  // of each
  std::vector<std::string> words_;  // for all
};

// "a+a" is two of a.
Result<std::pair<std::string, int>> type_and_count(const std::string& name) {
  const std::string type = name.substr(0, name.find('+'));
  int count = 0;
  bool is_one_type = true;
  for (size_t at = 0; at <= name.size(); ++count) {
    const size_t end = std::min(name.find('+', at), name.size());
    is_one_type = is_one_type && name.substr(at, end - at) == type;
    at = end + 1;
  }
  if (!is_one_type) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format(
                   "candidate '{}': rented machines of one candidate are of "
                   "one type",
                   name))
        .with_fix("as in c5.xlarge+c5.xlarge; optimise: mixes types");
  }
  return std::pair{type, count};
}

Result<void> set_price(
    Candidate& candidate,
    const std::string& type,
    CloudAccess& cloud,
    const std::string& region,
    bool is_spot) {
  const auto market = is_spot ? cloud::Market::kSpot : cloud::Market::kOnDemand;
  const auto known = cloud.book.price(type, region, market);
  if (known) {
    candidate.price = known->hourly;
    candidate.price_source = fmt::format(
        "{}, {}", is_spot ? "spot" : "on demand", to_string(known->source));
  } else if (known.error().code() != ErrorCode::kNotFound) {
    return known.error();
  } else {
    log_warning(
        "no price, so only times are compared: " + known.error().to_string());
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Candidates>> rented_candidates(
    const std::vector<std::string>& words,
    const launch::Job& job,
    const Settings& settings) {
  LOCKSTEP_ASSIGN(
      const std::string region, region_of({}, job.resources.region, settings));
  LOCKSTEP_ASSIGN(const auto cloud, open_cloud(region, settings));
  const bool is_spot = job.resources.use_spot == "true";
  std::vector<Candidate> candidates;
  std::vector<std::string> types;
  for (const std::string& word : words) {
    LOCKSTEP_ASSIGN(const CandidateWord parsed, parse_candidate_word(word));
    LOCKSTEP_ASSIGN(const auto rented, type_and_count(parsed.name));
    Candidate candidate;
    candidate.name = parsed.name;
    candidate.nodes = rented.second;
    candidate.keeps_setup = false;
    candidate.is_rented = true;
    candidate.price = parsed.price;
    candidate.price_source = "command line";
    if (!parsed.price) {
      LOCKSTEP_TRY(set_price(candidate, rented.first, *cloud, region, is_spot));
    }
    candidates.push_back(std::move(candidate));
    types.push_back(rented.first);
  }
  LOCKSTEP_TRY(check_unique(candidates));
  return std::make_unique<RentedCandidates>(
      std::move(candidates), std::move(types), job);
}

std::string offers_text(const std::vector<Candidate>& candidates) {
  std::string text;
  for (const Candidate& one : candidates) {
    text += one.price ? fmt::format(
                            "{}: {} an hour and node ({})\n",
                            one.name,
                            format_money(*one.price),
                            one.price_source)
                      : fmt::format("{}: its price is not known\n", one.name);
  }
  return text;
}

}  // namespace lockstep::commands
