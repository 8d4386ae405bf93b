#include "lockstep/config/binder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "lockstep/base/nearest.h"
#include "lockstep/config/scalar.h"

namespace lockstep::config {
namespace {

template <class T>
struct Named;  // what the user calls the type

#define LOCKSTEP_NAMED(type, short_name, long_name)   \
  template <>                                         \
  struct Named<type> {                                \
    static constexpr const char* kShort = short_name; \
    static constexpr const char* kMust = long_name;   \
  }
using Texts = std::vector<std::string>;
using Numbers = std::vector<double>;
using TextMap = std::map<std::string, std::string>;
LOCKSTEP_NAMED(bool, "true or false", "true or false");
LOCKSTEP_NAMED(int, "integer", "an integer");
LOCKSTEP_NAMED(int64_t, "integer", "an integer");
LOCKSTEP_NAMED(double, "number", "a number");
LOCKSTEP_NAMED(std::string, "text", "text");
LOCKSTEP_NAMED(Duration, "duration", "a duration (90s, 1h30m, 250ms or 2d)");
LOCKSTEP_NAMED(Money, "money", "a sum of money (20 USD or $20)");
LOCKSTEP_NAMED(Bytes, "bytes", "a number of bytes (512MB, 64KiB or 2GiB)");
LOCKSTEP_NAMED(Texts, "list of texts", "a list of texts ([a, b])");
LOCKSTEP_NAMED(Numbers, "list of numbers", "a list of numbers ([1, 2.5])");
LOCKSTEP_NAMED(TextMap, "map of texts", "a map of texts ({name: value})");
#undef LOCKSTEP_NAMED

template <class T>
struct Unwrapped {
  using Type = T;
  static constexpr bool kOptional = false;
};
template <class T>
struct Unwrapped<std::optional<T>> {
  using Type = T;
  static constexpr bool kOptional = true;
};

std::vector<double> numbers_of(int value) {
  return {static_cast<double>(value)};
}
std::vector<double> numbers_of(int64_t value) {
  return {static_cast<double>(value)};
}
std::vector<double> numbers_of(double value) {
  return {value};
}
std::vector<double> numbers_of(Duration value) {
  return {to_seconds(value)};
}
std::vector<double> numbers_of(Money value) {
  return {value.dollars()};
}
std::vector<double> numbers_of(Bytes value) {
  return {static_cast<double>(value.count)};
}
const std::vector<double>& numbers_of(const Numbers& value) {
  return value;
}
template <class T>
std::vector<double> numbers_of(const T&) {
  return {};  // no bound applies
}

std::string shown(const Node& node) {
  switch (node.kind()) {
    case Node::Kind::kNull:
      return "null";
    case Node::Kind::kScalar:
      return fmt::format("'{}'", node.text());
    case Node::Kind::kList:
    case Node::Kind::kMap:
      break;
  }
  std::string text = to_flow_yaml(node);
  if (text.size() > 60) {
    text = text.substr(0, 57) + "...";
  }
  return fmt::format(
      "the {} {}", node.kind() == Node::Kind::kList ? "list" : "map", text);
}

// Without quotes where it is a plain number: "not 0" reads better.
std::string shown_number(const Node& node) {
  return node.kind() == Node::Kind::kScalar ? node.text() : shown(node);
}

}  // namespace

struct Binder::State {
  struct Level {
    std::string prefix;  // "" or "optim."
    const Node* node;    // null when nothing was given there
  };
  struct Problem {
    int order;
    std::string text;
  };

  Node root;
  std::vector<Level> levels;
  std::vector<FieldDoc> docs;
  std::vector<Problem> problems;
  std::vector<std::string> accepted;  // dotted, of values only
  std::set<std::string> leaves;
  std::set<std::string> groups;

  std::string full(const std::string& key) const {
    return levels.back().prefix + key;
  }
  // What was given for a key; null when nothing was.
  const Node* given(const std::string& key) const {
    const Node* node = levels.back().node;
    return node == nullptr ? nullptr : node->find(key);
  }
  void fail(const Place& place, const std::string& what) {
    problems.push_back(
        {place.line > 0 ? place.line : std::numeric_limits<int>::max(),
         place.source.empty() ? what : place.to_string() + ": " + what});
  }
  void know(const std::string& key) {
    if (leaves.insert(key).second) {
      accepted.push_back(key);
    }
  }
  std::string advice(
      const std::string& name,
      const std::string& prefix,
      const Node& value) const;
  void report_unknown(const Node& node, const std::string& prefix);
};

// A section was probably meant to be a section, a value a value.
std::string Binder::State::advice(
    const std::string& name,
    const std::string& prefix,
    const Node& value) const {
  std::vector<std::string> sections;
  for (const auto& group : groups) {
    // Those around it are right as they are.
    if (!name.starts_with(group + ".")) {
      sections.push_back(group);
    }
  }
  const bool has_section = !nearest_names(name, sections).empty();
  if (has_section && value.kind() == Node::Kind::kMap) {
    return suggest(name, sections);
  }
  if (!nearest_names(name, accepted).empty()) {
    return suggest(name, accepted);
  }
  if (has_section) {
    return suggest(name, sections);
  }
  std::vector<std::string> siblings;
  for (const auto& candidate : accepted) {
    if (candidate.starts_with(prefix)) {
      siblings.push_back(candidate);
    }
  }
  return siblings.empty() ? "no keys are accepted here"
                          : suggest(name, siblings);
}

void Binder::State::report_unknown(
    const Node& node,
    const std::string& prefix) {
  for (const auto& [key, value] : node.entries()) {
    const std::string name = prefix + key;
    if (leaves.contains(name)) {
      continue;
    }
    if (groups.contains(name)) {
      report_unknown(value, name + ".");
      continue;
    }
    fail(
        value.place(),
        fmt::format("unknown key '{}'; {}", name, advice(name, prefix, value)));
  }
}

Bound at_least(double minimum) {
  return {
      [=](double value) { return value >= minimum && std::isfinite(value); },
      "at least " + internal::yaml(minimum)};
}

Bound above(double minimum) {
  return {
      [=](double value) { return value > minimum && std::isfinite(value); },
      "above " + internal::yaml(minimum)};
}

Bound between(double minimum, double maximum) {
  return {
      [=](double value) { return value >= minimum && value <= maximum; },
      fmt::format(
          "between {} and {}",
          internal::yaml(minimum),
          internal::yaml(maximum))};
}

Binder Binder::reader(const Node& node) {
  Binder binder = describer();
  State& state = *binder.state_;
  state.root = node;
  state.levels.back().node = &state.root;
  if (node.kind() == Node::Kind::kScalar || node.kind() == Node::Kind::kList) {
    state.fail(
        node.place(),
        fmt::format("must be a map of keys, not {}", shown(node)));
  }
  return binder;
}

Binder Binder::describer() {
  Binder binder;
  binder.state_ = std::make_shared<State>();
  binder.state_->levels.push_back({"", nullptr});
  return binder;
}

template <class T>
void Binder::bind_value(
    const std::string& key,
    T& value,
    const std::string& meaning,
    const std::optional<Bound>& bound) {
  using Plain = typename Unwrapped<T>::Type;
  State& state = *state_;
  const std::string name = state.full(key);
  state.know(name);
  const Node* node = state.given(key);
  if (node != nullptr && node->kind() == Node::Kind::kNull) {
    if constexpr (Unwrapped<T>::kOptional) {
      value.reset();
    }
  } else if (node != nullptr) {
    Plain parsed{};
    if (!internal::parse(*node, parsed)) {
      state.fail(
          node->place(),
          fmt::format(
              "{} must be {}, not {}",
              name,
              Named<Plain>::kMust,
              shown(*node)));
    } else if (
        bound && !std::ranges::all_of(numbers_of(parsed), bound->holds)) {
      state.fail(
          node->place(),
          fmt::format(
              "{} must be {}, not {}", name, bound->text, shown_number(*node)));
    } else {
      value = std::move(parsed);
    }
  }
  std::string type = Named<Plain>::kShort;
  if (bound) {
    type += ", " + bound->text;
  }
  std::string text;
  if constexpr (Unwrapped<T>::kOptional) {
    text = value ? internal::yaml(*value) : "null";
  } else {
    text = internal::yaml(value);
  }
  state.docs.push_back({name, std::move(type), std::move(text), meaning});
}

template <class T>
void Binder::field(
    const std::string& key,
    T& value,
    const std::string& meaning,
    std::optional<Bound> bound) {
  bind_value(key, value, meaning, bound);
}

#define LOCKSTEP_FIELD(...)        \
  template void Binder::field(     \
      const std::string&,          \
      __VA_ARGS__&,                \
      const std::string&,          \
      std::optional<Bound>);       \
  template void Binder::field(     \
      const std::string&,          \
      std::optional<__VA_ARGS__>&, \
      const std::string&,          \
      std::optional<Bound>)
LOCKSTEP_FIELD(bool);
LOCKSTEP_FIELD(int);
LOCKSTEP_FIELD(int64_t);
LOCKSTEP_FIELD(double);
LOCKSTEP_FIELD(std::string);
LOCKSTEP_FIELD(Duration);
LOCKSTEP_FIELD(Money);
LOCKSTEP_FIELD(Bytes);
LOCKSTEP_FIELD(std::vector<std::string>);
LOCKSTEP_FIELD(std::vector<double>);
LOCKSTEP_FIELD(std::map<std::string, std::string>);
#undef LOCKSTEP_FIELD

void Binder::choice(
    const std::string& key,
    std::string& value,
    const std::vector<std::string>& accepted,
    const std::string& meaning) {
  State& state = *state_;
  const Node* node = state.given(key);
  const std::string before = value;
  bind_value(key, value, meaning, {});
  std::string list;
  for (const auto& name : accepted) {
    list += (list.empty() ? "" : ", ") + name;
  }
  state.docs.back().type = "one of: " + list;
  const bool scalar = node != nullptr && node->kind() == Node::Kind::kScalar;
  if (!scalar || std::ranges::count(accepted, value) > 0) {
    return;
  }
  std::string what = fmt::format(
      "{} must be one of: {}; not '{}'", state.full(key), list, value);
  if (!nearest_names(value, accepted).empty()) {
    what += "; " + suggest(value, accepted);
  }
  state.fail(node->place(), what);
  value = before;
}

void Binder::text(
    const std::string& key,
    std::string& value,
    const std::string& meaning,
    std::function<Result<void>(const std::string&)> check) {
  State& state = *state_;
  const Node* node = state.given(key);
  const std::string before = value;
  bind_value(key, value, meaning, {});
  if (node == nullptr || node->kind() != Node::Kind::kScalar) {
    return;
  }
  if (const auto checked = check(value); !checked) {
    state.fail(
        node->place(),
        fmt::format("{}: {}", state.full(key), checked.error().to_string()));
    value = before;
  }
}

void Binder::raw(
    const std::string& key,
    Node& value,
    const std::string& meaning) {
  State& state = *state_;
  const std::string name = state.full(key);
  state.know(name);
  const Node* node = state.given(key);
  if (node != nullptr && node->kind() != Node::Kind::kNull) {
    value = *node;
  }
  state.docs.push_back({name, "any", to_flow_yaml(value), meaning});
}

void Binder::enter(const std::string& key, const std::string& meaning) {
  State& state = *state_;
  const std::string name = state.full(key);
  const Node* node = state.given(key);
  const bool seen = !state.groups.insert(name).second;
  if (node != nullptr && node->kind() != Node::Kind::kMap) {
    if (node->kind() != Node::Kind::kNull && !seen) {
      state.fail(
          node->place(),
          fmt::format(
              "{} must be a map of keys ({}), not {}",
              name,
              meaning,
              shown(*node)));
    }
    node = nullptr;
  }
  state.levels.push_back({name + ".", node});
}

void Binder::leave() {
  state_->levels.pop_back();
}

Result<void> Binder::finish() {
  State& state = *state_;
  state.report_unknown(state.root, "");
  if (state.problems.empty()) {
    return {};
  }
  std::ranges::stable_sort(state.problems, {}, &State::Problem::order);
  std::string all;
  for (const auto& problem : state.problems) {
    all += (all.empty() ? "" : "\n") + problem.text;
  }
  return Error(ErrorCode::kInvalidInput, all);
}

const std::vector<FieldDoc>& Binder::docs() const {
  return state_->docs;
}

}  // namespace lockstep::config
