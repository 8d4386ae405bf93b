#include "lockstep/commands/sweep_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "lockstep/config/binder.h"

namespace lockstep::commands {
namespace {

using config::Node;

bool is_train(const launch::Job& job) {
  return job.train.kind() != Node::Kind::kNull;
}

// A whole number from 1; 0 when it is none.
int64_t count_of(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value > 0 ? value : 0;
}

// Parts at commas that stand in no bracket and no quote.
std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      quote = c == quote ? 0 : quote;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',' && depth == 0) {
      parts.emplace_back();
      continue;
    }
    parts.back() += c;
  }
  return parts;
}

// `name` with a mark of the whole text (FNV-1a).
std::string marked(const std::string& name, const std::string& text) {
  uint32_t mark = 2166136261U;
  for (const char c : text) {
    mark = (mark ^ static_cast<unsigned char>(c)) * 16777619U;
  }
  return fmt::format("{}-{:08x}", name, mark);
}

// A part of a file name. One that had to be changed gets a mark of its whole
// text, so that two values never share a file.
std::string name_part(const std::string& text) {
  std::string name;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       (c >= '0' && c <= '9') || c == '.' || c == '+' ||
                       c == '-' || c == '_';
    name += plain ? c : '-';
  }
  return name == text ? name : marked(name, text);
}

std::string stem_of(
    int nodes,
    int procs,
    const std::string& batch_size,
    const std::vector<std::pair<std::string, std::string>>& keys) {
  std::string stem = fmt::format(
      "nnode-{}_nproc-{}_batch_size-{}", nodes, procs, name_part(batch_size));
  for (const auto& [key, value] : keys) {
    stem += fmt::format("_{}-{}", name_part(key), name_part(value));
  }
  constexpr size_t kLongest = 160;  // file systems take 255 with what follows
  return stem.size() <= kLongest ? stem
                                 : marked(stem.substr(0, kLongest), stem);
}

Result<std::string> rank_batch(
    const SweepSpec& spec,
    const std::string& batch_size,
    int nodes,
    int procs) {
  if (batch_size == "0") {
    return std::string();
  }
  if (spec.scaling == Scaling::kWeak) {
    return batch_size;
  }
  const int ranks = nodes * procs;
  const int64_t whole = count_of(batch_size);
  if (whole == 0) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "--scaling strong divides the batch, and '{}' is no number",
            batch_size));
  }
  if (whole % ranks != 0) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format(
                   "--scaling strong: a batch of {} does not divide by {} "
                   "ranks ({} x {})",
                   whole,
                   ranks,
                   nodes,
                   procs))
        .with_fix(
            fmt::format(
                "choose a multiple of {}, for example {}",
                ranks,
                (whole / ranks + 1) * ranks));
  }
  return std::to_string(whole / ranks);
}

// All choices of values for the keys, the first key slowest.
std::vector<std::vector<std::pair<std::string, std::string>>> choices(
    const std::vector<SweepKey>& keys) {
  std::vector<std::vector<std::pair<std::string, std::string>>> all(1);
  for (const SweepKey& key : keys) {
    decltype(all) longer;
    for (const auto& begun : all) {
      for (const std::string& value : key.values) {
        longer.push_back(begun);
        longer.back().emplace_back(key.key, value);
      }
    }
    all = std::move(longer);
  }
  return all;
}

// As an override: a text that would be read as YAML is quoted.
std::string override_word(const std::string& key, const std::string& text) {
  const bool plain =
      !text.empty() &&
      std::string_view("[{\"'").find(text[0]) == std::string_view::npos &&
      text != "null" && text != "~";
  return key + "=" + (plain ? text : config::quote_yaml(text));
}

}  // namespace

std::string_view to_string(Scaling scaling) {
  return scaling == Scaling::kWeak ? "weak" : "strong";
}

Result<SweepKey> parse_sweep_key(const std::string& word) {
  const size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format("'{}' is not key=value", word))
        .with_fix("write key=value, or key=a,b,c to sweep over values");
  }
  SweepKey key;
  key.key = word.substr(0, equals);
  for (std::string& value : split(word.substr(equals + 1))) {
    if (std::ranges::find(key.values, value) == key.values.end()) {
      key.values.push_back(std::move(value));
    }
  }
  if (key.values.size() > 1 &&
      std::ranges::find(key.values, "") != key.values.end()) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("'{}': a value between the commas is empty", word));
  }
  return key;
}

Result<std::vector<int>> parse_counts(
    const std::string& text,
    const std::string& option) {
  constexpr int64_t kMost = 100000;
  std::vector<int> counts;
  for (const std::string& part : split(text)) {
    const int64_t value = count_of(part);
    if (value == 0 || value > kMost) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "{} {}: '{}' is no number from 1 to {}; write {} 1,2,4",
              option,
              text,
              part,
              kMost,
              option));
    }
    if (std::ranges::find(counts, value) == counts.end()) {
      counts.push_back(static_cast<int>(value));
    }
  }
  return counts;
}

std::string Configuration::stem() const {
  return stem_of(nodes, procs, batch_size, keys);
}

std::string Configuration::baseline_stem() const {
  return stem_of(1, 1, batch_size, keys);
}

std::string Configuration::to_string() const {
  std::string text = fmt::format("{} x {}", nodes, procs);
  if (batch_size != "0") {
    text += ", batch " + batch_size;
  }
  for (const auto& [key, value] : keys) {
    text += fmt::format(", {}={}", key, value);
  }
  return text;
}

Result<std::vector<Configuration>> make_grid(const SweepSpec& spec) {
  std::vector<Configuration> baselines;
  std::vector<Configuration> others;
  for (const auto& keys : choices(spec.keys)) {
    for (const std::string& batch_size : spec.batch_sizes) {
      const auto make = [&](int nodes, int procs) -> Result<Configuration> {
        LOCKSTEP_ASSIGN(
            std::string part, rank_batch(spec, batch_size, nodes, procs));
        return Configuration{nodes, procs, batch_size, std::move(part), keys};
      };
      LOCKSTEP_ASSIGN(Configuration baseline, make(1, 1));
      baselines.push_back(std::move(baseline));
      for (const int nodes : spec.nodes) {
        for (const int procs : spec.procs) {
          if (nodes * procs > 1) {
            LOCKSTEP_ASSIGN(Configuration one, make(nodes, procs));
            others.push_back(std::move(one));
          }
        }
      }
    }
  }
  std::ranges::move(others, std::back_inserter(baselines));
  return baselines;
}

std::string batch_key(const launch::Job& job) {
  return is_train(job) ? "data.batch_size" : "batch_size";
}

std::string fill_places(
    const std::string& text,
    const std::map<std::string, std::string>& values) {
  std::string filled;
  size_t at = 0;
  while (at < text.size()) {
    const size_t open = text.find('{', at);
    const size_t close =
        open == std::string::npos ? open : text.find('}', open);
    if (close == std::string::npos) {
      break;
    }
    const auto value = values.find(text.substr(open + 1, close - open - 1));
    const bool variable = open > 0 && text[open - 1] == '$';
    if (variable || value == values.end()) {
      filled += text.substr(at, open + 1 - at);
      at = open + 1;
      continue;
    }
    filled += text.substr(at, open - at) + value->second;
    at = close + 1;
  }
  return filled + text.substr(at);
}

bool takes_place(const launch::Job& job, const std::string& key) {
  const std::string top = key.substr(0, key.find('.'));
  return !is_train(job) &&
         std::ranges::none_of(
             config::describe<launch::Job>(), [&](const config::FieldDoc& doc) {
               return doc.key.substr(0, doc.key.find('.')) == top;
             });
}

Result<std::vector<std::string>> run_words(
    const launch::Job& job,
    const Configuration& configuration,
    const std::map<std::string, std::string>& fixed) {
  std::vector<std::string> words;
  std::map<std::string, std::string> places = fixed;
  for (const auto& [key, value] : configuration.keys) {
    if (takes_place(job, key)) {
      places[key] = value;
    } else {
      words.push_back(key + "=" + value);
    }
  }
  if (is_train(job)) {
    if (!configuration.rank_batch.empty()) {
      words.push_back("data.batch_size=" + configuration.rank_batch);
    }
    return words;
  }
  if (!configuration.rank_batch.empty()) {
    places["batch_size"] = configuration.rank_batch;
  }
  // What a key changed is told from the texts: one that is nowhere would be
  // swept without effect.
  std::map<std::string, bool> used;
  const auto fill = [&](const std::string& text) {
    for (const auto& [key, value] : places) {
      used[key] = used[key] || text.find("{" + key + "}") != std::string::npos;
    }
    return fill_places(text, places);
  };
  if (job.run.kind() == Node::Kind::kScalar) {
    const std::string filled = fill(job.run.text());
    if (filled != job.run.text()) {
      words.push_back(override_word("run", filled));
    }
  } else if (job.run.kind() == Node::Kind::kList) {
    Node filled = Node::list(job.run.place());
    bool changed = false;
    for (const Node& item : job.run.items()) {
      const std::string text = fill(item.text());
      changed = changed || text != item.text();
      filled.append(Node::scalar(text, item.place(), true));
    }
    if (changed) {
      words.push_back("run=" + config::to_flow_yaml(filled));
    }
  } else if (job.run.kind() == Node::Kind::kMap) {
    for (const auto& [role, program] : job.run.entries()) {
      if (program.kind() == Node::Kind::kScalar) {
        const std::string filled = fill(program.text());
        if (filled != program.text()) {
          words.push_back(override_word("run." + role, filled));
        }
      }
    }
  }
  for (const auto& [name, value] : job.envs) {
    const std::string filled = fill(value);
    if (filled != value) {
      words.push_back(override_word("envs." + name, filled));
    }
  }
  for (const auto& [key, value] : places) {
    if (!used[key]) {
      return Error(
                 ErrorCode::kInvalidInput,
                 fmt::format(
                     "'{}' is no key of the job, and {{{}}} stands nowhere in "
                     "its 'run' or 'envs'",
                     key,
                     key))
          .with_fix(
              fmt::format(
                  "write it where the program takes it: 'run: python3 "
                  "train.py --{0} {{{0}}}'",
                  key));
    }
  }
  return words;
}

}  // namespace lockstep::commands
