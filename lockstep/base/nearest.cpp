#include "lockstep/base/nearest.h"

#include <algorithm>
#include <numeric>

namespace lockstep {
namespace {

// Optimal string alignment: insert, delete, replace, swap neighbours.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1);
  std::vector<size_t> above(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  std::iota(above.begin(), above.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min(
          {above[j] + 1,
           row[j - 1] + 1,
           above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::string_view last_part(std::string_view name) {
  const auto dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

}  // namespace

std::vector<std::string> nearest_names(
    std::string_view name,
    const std::vector<std::string>& accepted,
    size_t most) {
  std::vector<std::pair<size_t, std::string>> scored;
  for (const auto& candidate : accepted) {
    size_t distance = edit_distance(name, candidate);
    const size_t limit =
        std::max<size_t>(1, std::max(name.size(), candidate.size()) / 3);
    const bool related =
        name.size() >= 3 &&
        (candidate.starts_with(name) || name.starts_with(candidate) ||
         last_part(candidate) == last_part(name));
    if (related) {
      distance = std::min<size_t>(distance, 1);
    }
    if (distance <= limit) {
      scored.emplace_back(distance, candidate);
    }
  }
  std::sort(scored.begin(), scored.end());
  std::vector<std::string> names;
  for (auto& [distance, candidate] : scored) {
    if (names.size() < most) {
      names.push_back(std::move(candidate));
    }
  }
  return names;
}

std::string suggest(
    std::string_view name,
    const std::vector<std::string>& accepted) {
  const auto near = nearest_names(name, accepted);
  std::string text;
  if (!near.empty()) {
    text = "did you mean ";
    for (size_t i = 0; i < near.size(); ++i) {
      text += (i == 0                 ? "'"
               : i + 1 == near.size() ? " or '"
                                      : ", '") +
              near[i] + "'";
    }
    return text + "?";
  }
  text = "accepted: ";
  for (size_t i = 0; i < accepted.size(); ++i) {
    text += (i == 0 ? "" : ", ") + accepted[i];
  }
  return text;
}

}  // namespace lockstep
