#include "lockstep/forest/load.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <unordered_map>

#include "lockstep/base/log.h"
#include "lockstep/forest/gather.h"
#include "lockstep/forest/random.h"
#include "lockstep/forest/utf8.h"

namespace lockstep::forest {
namespace {

constexpr size_t kBlockRows = 65536;

Error bad(const std::string& message) {
  return Error(ErrorCode::kInvalidInput, message);
}

// Labels by name, numbered as they appear; numbers are looked up as such.
class Dictionary {
 public:
  int32_t of(double value) {
    const auto [at, added] =
        by_number_.try_emplace(value, static_cast<int32_t>(names_.size()));
    if (added) {
      names_.push_back(label_text(value));
    }
    return at->second;
  }
  int32_t of(const std::string& text) {
    const auto [at, added] =
        by_text_.try_emplace(text, static_cast<int32_t>(names_.size()));
    if (added) {
      names_.push_back(text);
    }
    return at->second;
  }
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::unordered_map<double, int32_t> by_number_;
  std::unordered_map<std::string, int32_t> by_text_;
  std::vector<std::string> names_;
};

constexpr auto kNumbersFix =
    "numbers are learned with forest.criterion=squared_error";

bool to_number(const std::string& text, double& value) {
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() &&
         std::isfinite(value);
}

// Where a label stands among classes: by its name, else by its number (0.0
// where a table of words has 0).
size_t place_of(
    const std::vector<std::string>& classes,
    const std::string& name) {
  auto at = std::ranges::find(classes, name);
  double value = 0;
  if (at == classes.end() && to_number(name, value)) {
    at = std::ranges::find(classes, label_text(value));
  }
  return static_cast<size_t>(at - classes.begin());
}

bool fractional(const std::string& label) {
  double value = 0;
  return to_number(label, value) && value != std::floor(value);
}

// As many as a line holds.
std::string first_of(const std::vector<std::string>& names) {
  constexpr size_t kShown = 10;
  const auto shown = std::span(names).first(std::min(kShown, names.size()));
  return names.size() <= kShown ? fmt::format("{}", fmt::join(shown, ", "))
                                : fmt::format(
                                      "{}, ... and {} more",
                                      fmt::join(shown, ", "),
                                      names.size() - kShown);
}

bool in_part(const LoadOptions& options, uint64_t row) {
  if (options.part == Part::kAll) {
    return true;
  }
  const uint64_t draw = mix(mix(options.seed ^ 0x5851f42d4c957f2d) + row) >> 11;
  const bool held = static_cast<double>(draw) * 0x1p-53 < options.held_out;
  return held == (options.part == Part::kHeldOut);
}

constexpr size_t kMostClasses = 1000;

Error too_many_classes(const std::string& place) {
  return bad(fmt::format(
                 "{}: more than {} different labels", place, kMostClasses))
      .with_fix(kNumbersFix);
}

struct Reader {
  TableFile& file;
  const LoadOptions& options;
  LoadedRows rows{};
  Dictionary dictionary{};

  Result<void> read(uint64_t first, uint64_t last) {
    for (uint64_t at = first; at < last; at += kBlockRows) {
      LOCKSTEP_ASSIGN(
          const RowBlock block,
          file.read(at, std::min<uint64_t>(kBlockRows, last - at)));
      for (size_t i = 0; i < block.rows; ++i) {
        // Rows to be held out are looked at too: what is wrong with them, and
        // classes of theirs alone, should not be met after trees are grown.
        const bool own = in_part(options, at + i);
        if (own || options.part == Part::kTraining) {
          LOCKSTEP_TRY(take(block, i, at + i, own));
        }
      }
    }
    return {};
  }

  Result<void> take(const RowBlock& block, size_t i, uint64_t row, bool own) {
    if (const auto lack = lack_of(block, i); !lack.empty()) {
      if (options.drop_missing) {
        rows.dropped += own ? 1 : 0;
        return {};
      }
      return bad(fmt::format("{}: {}", file.place(row), lack))
          .with_fix("data.missing=drop leaves such rows out");
    }
    if (own) {
      const size_t width = file.features().size();
      const float* values = block.features.data() + i * width;
      rows.values.insert(rows.values.end(), values, values + width);
      ++rows.num_rows;
    }
    return file.has_label() ? take_label(block, i, row, own) : Result<void>();
  }

  // What a row cannot be used for; empty: nothing.
  std::string lack_of(const RowBlock& block, size_t i) const {
    const size_t width = file.features().size();
    const float* values = block.features.data() + i * width;
    for (size_t f = 0; f < width; ++f) {
      if (!std::isfinite(values[f])) {
        return fmt::format(
            "column '{}' {}",
            file.features()[f],
            std::isnan(values[f])
                ? "has no number"
                : "is infinite or outside of float32 (3.4e38 at most)");
      }
    }
    const bool text = file.has_text();
    if (file.has_label() &&
        (text ? block.texts[i].empty() : !std::isfinite(block.numbers[i]))) {
      return fmt::format(
          "column '{}' has no {}",
          options.label,
          text ? "label" : "finite number");
    }
    return {};
  }

  Result<void>
  take_label(const RowBlock& block, size_t i, uint64_t row, bool own) {
    if (options.regression) {
      return take_number(block.numbers[i], row, own);
    }
    if (!file.has_text()) {
      LOCKSTEP_TRY(check_exact(block.numbers[i], row));
    }
    const int32_t place = file.has_text() ? dictionary.of(block.texts[i])
                                          : dictionary.of(block.numbers[i]);
    if (own) {
      rows.classes.push_back(place);
    }
    return check_class(dictionary.names()[static_cast<size_t>(place)], row);
  }

  // From 2^53 on doubles pass over whole numbers: two labels would be one
  // class.
  Result<void> check_exact(double number, uint64_t row) const {
    if (std::abs(number) < 0x1p53) {
      return {};
    }
    return bad(fmt::format(
                   "{}: column '{}': label {:.0f} cannot be told from its "
                   "neighbours; accepted: numbers below 2^53 "
                   "(9007199254740992)",
                   file.place(row),
                   options.label,
                   number))
        .with_fix("number the classes from 0, or put a letter before each");
  }

  // Leaves are floats, and squares of what is larger leave the doubles.
  Result<void> take_number(double number, uint64_t row, bool own) {
    if (std::abs(number) > std::numeric_limits<float>::max()) {
      return bad(
          fmt::format(
              "{}: label {} is outside of float32; accepted: from -3.4e38 to "
              "3.4e38",
              file.place(row),
              number));
    }
    if (own) {
      rows.numbers.push_back(number);
    }
    return {};
  }

  Result<void> check_class(const std::string& name, uint64_t row) const {
    if (!is_utf8(name)) {
      return bad(
          fmt::format(
              "{}: label '{}' is not UTF-8, as which tables are read",
              file.place(row),
              printable(name)));
    }
    const auto& accepted = options.classes;
    if (!accepted.empty() && place_of(accepted, name) == accepted.size()) {
      auto error =
          bad(fmt::format(
              "{}: label '{}' is not one of the classes; accepted: {}",
              file.place(row),
              name,
              first_of(accepted)));
      return fractional(name) ? std::move(error).with_fix(kNumbersFix)
                              : std::move(error);
    }
    return dictionary.names().size() > kMostClasses
               ? too_many_classes(file.place(row))
               : Result<void>();
  }
};

// Numbers in their order when all are numbers (1 and 01 as texts, in whatever
// order ranks saw them), else as text.
void sort_classes(std::vector<std::string>& names) {
  double a = 0;
  double b = 0;
  const bool numbers =
      std::all_of(names.begin(), names.end(), [&](const std::string& name) {
        return to_number(name, a);
      });
  std::sort(
      names.begin(), names.end(), [&](const auto& left, const auto& right) {
        if (!numbers) {
          return left < right;
        }
        to_number(left, a);
        to_number(right, b);
        return a != b ? a < b : left < right;
      });
  names.erase(std::unique(names.begin(), names.end()), names.end());
}

void warn_of_fractions(
    const std::vector<std::string>& names,
    const collective::Communicator& group) {
  const auto found = std::find_if(names.begin(), names.end(), fractional);
  if (found != names.end() && group.rank() == 0) {
    log_warning(
        fmt::format(
            "{} different labels are taken for classes, {} among them; {}",
            names.size(),
            *found,
            kNumbersFix));
  }
}

// The first fact that is not in both, as `text` has it.
std::string_view fact_that_differs(
    std::string_view text,
    std::string_view other) {
  const auto at = static_cast<size_t>(
      std::ranges::mismatch(text, other).in1 - text.begin());
  const size_t before = at == 0 ? at : text.rfind('\0', at - 1) + 1;
  return text.substr(before, text.find('\0', before) - before);
}

// The same names in the same order on all ranks.
Result<void> agree_on_classes(
    Reader& reader,
    const LoadOptions& options,
    collective::Communicator& group) {
  std::string text;
  for (const auto& name : reader.dictionary.names()) {
    text += name + '\n';
  }
  auto& names = reader.rows.class_names;
  names = options.classes;
  if (names.empty()) {
    for (const auto& part : gather_bytes(text, group)) {
      for (size_t at = 0; at < part.size();) {
        const size_t end = part.find('\n', at);
        names.emplace_back(part.substr(at, end - at));
        at = end + 1;
      }
    }
    sort_classes(names);
    if (names.size() > kMostClasses) {  // each rank had few enough
      return too_many_classes(reader.file.place(0));
    }
    warn_of_fractions(names, group);
  }
  std::vector<int32_t> place;
  for (const auto& name : reader.dictionary.names()) {
    place.push_back(static_cast<int32_t>(place_of(names, name)));
  }
  for (int32_t& value : reader.rows.classes) {
    value = place[static_cast<size_t>(value)];
  }
  return {};
}

}  // namespace

std::string label_text(double value) {
  return fmt::format("{}", value + 0.);  // -0 is 0
}

bool are_words(const std::vector<std::string>& classes) {
  return !std::ranges::all_of(classes, [](const std::string& name) {
    double value = 0;
    return to_number(name, value) && label_text(value) == name;
  });
}

std::vector<std::string> class_names(std::vector<std::string> classes) {
  double value = 0;
  const bool numbers = std::ranges::all_of(
      classes, [&](const auto& name) { return to_number(name, value); });
  for (auto& name : classes) {
    if (numbers && to_number(name, value)) {
      name = label_text(value);
    }
  }
  return classes;
}

Result<void> check_labels(const TableFile& file, bool regression) {
  if (regression && file.has_text()) {
    return bad(
        fmt::format(
            "{}: labels are words; squared_error needs numbers",
            file.place(file.first_text())));
  }
  return {};
}

Result<void> agree(const Result<void>& own, collective::Communicator& group) {
  const auto all =
      gather_bytes(own ? std::string() : own.error().to_string(), group);
  for (const auto& text : all) {
    if (!text.empty()) {
      return own ? bad(std::string(text)) : Error(own.error());
    }
  }
  return {};
}

Result<void> agree_on_facts(
    const std::string& what,
    const std::string& path,
    const std::vector<std::string>& facts,
    collective::Communicator& group) {
  std::string text = path + '\0';
  for (const auto& fact : facts) {
    text += fact + '\0';
  }
  const auto all = gather_bytes(text, group);
  const auto split = [](std::string_view part) {
    const size_t end = part.find('\0');
    return std::pair(part.substr(0, end), part.substr(end + 1));
  };
  const auto [first_path, first] = split(all[0]);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const auto [other_path, other] = split(all[rank]);
    if (other != first) {
      return bad(
          fmt::format(
              "rank {} sees another {} than rank 0: {} in {}, {} in {}; "
              "accepted: the same on every host",
              rank,
              what,
              fact_that_differs(other, first),
              other_path,
              fact_that_differs(first, other),
              first_path));
    }
  }
  return {};
}

void add_facts(
    std::vector<std::string>& facts,
    const std::string& kind,
    const std::vector<std::string>& names) {
  for (size_t i = 0; i < names.size(); ++i) {
    facts.push_back(fmt::format("{} {} is '{}'", kind, i + 1, names[i]));
  }
}

Result<void> agree_on_table(
    const TableFile& file,
    const std::string& path,
    collective::Communicator& group) {
  std::vector<std::string> facts = {
      fmt::format("{} rows", file.num_rows()),
      fmt::format("{} features", file.features().size()),
      !file.has_label() ? "no labels"
      : file.has_text() ? "labels that are words"
                        : "labels that are numbers"};
  add_facts(facts, "feature", file.features());
  return agree_on_facts("table", path, facts, group);
}

Result<LoadedRows> load_rows(
    TableFile& file,
    const LoadOptions& options,
    collective::Communicator& group) {
  LOCKSTEP_TRY(agree_on_table(file, options.table, group));
  Reader reader{file, options};
  reader.rows.features = file.features();
  const auto ranks = static_cast<uint64_t>(group.size());
  const auto rank = static_cast<uint64_t>(group.rank());
  const uint64_t rows = file.num_rows();
  Result<void> read = check_labels(file, options.regression);
  if (read) {
    read = reader.read(rows * rank / ranks, rows * (rank + 1) / ranks);
  }
  LOCKSTEP_TRY(agree(read, group));
  if (!options.regression && file.has_label()) {
    LOCKSTEP_TRY(agree_on_classes(reader, options, group));
  }
  LoadedRows result = std::move(reader.rows);
  std::vector<int64_t> kept(ranks);
  kept[rank] = static_cast<int64_t>(result.num_rows);
  group.all_gather(kept.data(), 1, collective::DataType::kInt64);
  for (uint64_t i = 0; i < ranks; ++i) {
    result.first_row += i < rank ? static_cast<uint64_t>(kept[i]) : 0;
    result.total_rows += static_cast<uint64_t>(kept[i]);
  }
  result.dropped = static_cast<uint64_t>(
      sum_over_ranks(static_cast<int64_t>(result.dropped), group));
  return result;
}

}  // namespace lockstep::forest
