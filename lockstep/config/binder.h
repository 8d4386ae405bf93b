#pragma once

// Typed configuration: a struct lists its fields once, in `bind`, and that
// one list serves reading, validating, printing and the help text.
//
//   struct OptimConfig {
//     double lr = 2e-4;
//     std::string schedule = "constant";
//     void bind(config::Binder& b) {
//       b.field("lr", lr, "learning rate", config::above(0));
//       b.choice("schedule", schedule, {"constant", "cosine"}, "how lr moves");
//     }
//   };
//   struct Job {
//     OptimConfig optim;
//     void bind(config::Binder& b) { b.group("optim", optim, "optimiser"); }
//   };
//   LOCKSTEP_ASSIGN(Job job, config::read<Job>(node));
//
// Errors are collected, not only the first: each has the place (file:line or
// the argument), the dotted key, what was wrong, the accepted values or the
// nearest accepted keys. A null value (`key:`) keeps the default; for an
// optional it means none.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/config/node.h"

namespace lockstep::config {

// A numeric bound that a value must satisfy, with its text for the user.
struct Bound {
  std::function<bool(double)> holds;
  std::string text;  // "at least 1"
};
Bound at_least(double minimum);
Bound above(double minimum);
Bound between(double minimum, double maximum);  // inclusive

struct FieldDoc {
  std::string key;    // dotted
  std::string type;   // "integer", "number", "one of: a, b", "duration", ...
  std::string value;  // as YAML: the default in help, the value in print
  std::string meaning;
};

class Binder {
 public:
  // Field types: bool, int, int64_t, double, std::string, Duration, Money,
  // Bytes, std::vector<std::string>, std::vector<double>,
  // std::map<std::string, std::string>, and std::optional of each. A bound on
  // a Duration is in seconds, on Money in dollars; on a list, for each item. In
  // a map of texts null is "" and nested maps become dotted keys.
  template <class T>
  void field(
      const std::string& key,
      T& value,
      const std::string& meaning,
      std::optional<Bound> bound = {});
  void choice(
      const std::string& key,
      std::string& value,
      const std::vector<std::string>& accepted,
      const std::string& meaning);
  // Any text that `check` accepts; its error goes to the user as "<place>:
  // <key>: <message>", so it should say what is accepted.
  void text(
      const std::string& key,
      std::string& value,
      const std::string& meaning,
      std::function<Result<void>(const std::string&)> check);
  // The untyped subtree, for keys another component reads later.
  void raw(const std::string& key, Node& value, const std::string& meaning);
  // A nested struct with a bind() of its own. Two components may bind the same
  // group; each takes its keys.
  template <class T>
  void group(const std::string& key, T& value, const std::string& meaning) {
    enter(key, meaning);
    value.bind(*this);
    leave();
  }

  // Modes; users call read(), describe() and print() below instead.
  static Binder reader(const Node& node);
  static Binder describer();
  // All errors, one a line, or success. Reports keys nobody asked for.
  Result<void> finish();
  const std::vector<FieldDoc>& docs() const;

 private:
  struct State;
  template <class T>
  void bind_value(
      const std::string& key,
      T& value,
      const std::string& meaning,
      const std::optional<Bound>& bound);
  void enter(const std::string& key, const std::string& meaning);
  void leave();
  std::shared_ptr<State> state_;
};

template <class T>
Result<T> read(const Node& node, T value = {}) {
  Binder binder = Binder::reader(node);
  value.bind(binder);
  LOCKSTEP_TRY(binder.finish());
  return value;
}

// One line a key: type, default (those of `value`), meaning.
template <class T>
std::vector<FieldDoc> describe(T value = {}) {
  Binder binder = Binder::describer();
  value.bind(binder);
  return binder.docs();
}

std::string help_text(const std::vector<FieldDoc>& docs);
// The resolved configuration as YAML that read() takes back.
std::string print_yaml(const std::vector<FieldDoc>& docs);

}  // namespace lockstep::config
