#include "lockstep/commands/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/cloud/prices.h"
#include "lockstep/launch/hosts.h"

namespace lockstep::commands {
namespace {

constexpr std::string_view kHere = "local";

struct HostGroup {
  Candidate candidate;
  std::string hosts;  // for --hosts; empty: this machine
};

class HostCandidates : public Candidates {
 public:
  HostCandidates(const std::vector<HostGroup>& groups, const launch::Job& job)
      : has_candidates_(!job.resources.candidates.empty()),
        has_hosts_(!job.resources.hosts.empty()),
        has_host_envs_(std::ranges::any_of(job.envs, [](const auto& one) {
          return one.first.contains('.');
        })) {
    for (const HostGroup& group : groups) {
      candidates_.push_back(group.candidate);
      hosts_.push_back(group.hosts);
      if (!group.hosts.empty()) {
        all_hosts_ += (all_hosts_.empty() ? "" : ",") + group.hosts;
      }
    }
  }
  const std::vector<Candidate>& list() const override { return candidates_; }
  Result<std::vector<std::string>> run_options(size_t index) override {
    std::vector<std::string> words;
    // The choice is ours: what the job file says about it is not for the run.
    if (has_candidates_) {
      words.emplace_back("resources.candidates=[]");
    }
    if (!hosts_[index].empty()) {
      words.insert(words.end(), {"--hosts", hosts_[index]});
      // `envs` of the others are no mistake.
      if (has_host_envs_) {
        words.push_back(fmt::format("resources.hosts=[{}]", all_hosts_));
      }
    } else if (has_hosts_) {
      words.emplace_back("resources.hosts=[]");
    }
    if (candidates_[index].price) {
      words.insert(
          words.end(),
          {"--price",
           fmt::format("{:.9f}", candidates_[index].price->dollars())});
    }
    return words;
  }
  Result<void> release(size_t /*index*/) override { return {}; }

 private:
  bool has_candidates_;
  bool has_hosts_;
  bool has_host_envs_;
  std::vector<Candidate> candidates_;
  std::vector<std::string> hosts_;
  std::string all_hosts_;
};

Result<void>
find_price(HostGroup& group, const launch::Job& job, const Settings& settings) {
  Candidate& candidate = group.candidate;
  LOCKSTEP_ASSIGN(
      cloud::UserPrices mine,
      cloud::UserPrices::parse(
          settings.prices, settings_file().string(), settings.written));
  LOCKSTEP_ASSIGN(const auto known, mine.prices(candidate.name, ""));
  if (!known.empty()) {
    candidate.price = known.front().hourly;
    candidate.price_source = "user file";
  } else if (job.resources.price) {
    candidate.price = job.resources.price;
    candidate.price_source = "job file";
  } else if (group.hosts.empty() && settings.price) {
    candidate.price = settings.price;
    candidate.price_source = "user file";
  }
  if (candidate.price && *candidate.price <= Money()) {
    candidate.price.reset();
  }
  return {};
}

Result<HostGroup> parse_group(
    const std::string& word,
    const launch::Job& job,
    const Settings& settings) {
  HostGroup group;
  LOCKSTEP_ASSIGN(const CandidateWord parsed, parse_candidate_word(word));
  group.candidate.name = parsed.name;
  if (group.candidate.name != kHere) {
    group.hosts = group.candidate.name;
    std::ranges::replace(group.hosts, '+', ',');
    LOCKSTEP_ASSIGN(
        const auto hosts,
        launch::parse_hosts(group.hosts, fmt::format("candidate '{}'", word)));
    group.candidate.nodes = static_cast<int>(hosts.size());
  }
  if (parsed.price) {
    group.candidate.price = parsed.price;
    group.candidate.price_source = "command line";
  } else {
    LOCKSTEP_TRY(find_price(group, job, settings));
  }
  return group;
}

}  // namespace

Result<CandidateWord> parse_candidate_word(const std::string& word) {
  CandidateWord parsed;
  const size_t equals = word.find('=');
  parsed.name = word.substr(0, equals);
  const bool has_price = equals != std::string::npos;
  const std::string price = has_price ? word.substr(equals + 1) : "";
  if (parsed.name.empty() || (has_price && price.empty())) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format("candidate '{}' is not HOST or HOST=PRICE", word))
        .with_fix("--candidates a=0.40,b=0.20");
  }
  if (has_price) {
    LOCKSTEP_ASSIGN(
        parsed.price,
        parse_money(price).with_context(fmt::format("candidate '{}'", word)));
    if (*parsed.price <= Money()) {
      return Error(
                 ErrorCode::kInvalidInput,
                 fmt::format("candidate '{}': a price is above 0", word))
          .with_fix("give what an hour of it is worth, as in host=0.40");
    }
  }
  return parsed;
}

Result<void> check_unique(const std::vector<Candidate>& candidates) {
  std::set<std::string> names;
  for (const Candidate& one : candidates) {
    if (!names.insert(one.name).second) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format("candidate '{}' is given twice", one.name));
    }
  }
  return {};
}

Result<std::unique_ptr<Candidates>> host_candidates(
    const std::vector<std::string>& words,
    const launch::Job& job,
    const Settings& settings) {
  std::vector<HostGroup> groups;
  for (const std::string& word : words) {
    LOCKSTEP_ASSIGN(HostGroup group, parse_group(word, job, settings));
    groups.push_back(std::move(group));
  }
  auto candidates = std::make_unique<HostCandidates>(groups, job);
  LOCKSTEP_TRY(check_unique(candidates->list()));
  return candidates;
}

}  // namespace lockstep::commands
