#include "lockstep/forest/load.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "lockstep/forest/gather.h"
#include "lockstep/forest/random.h"

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

bool in_part(const LoadOptions& options, uint64_t row) {
  if (options.part == Part::kAll) {
    return true;
  }
  const uint64_t draw = mix(mix(options.seed ^ 0x5851f42d4c957f2d) + row) >> 11;
  const bool held = static_cast<double>(draw) * 0x1p-53 < options.held_out;
  return held == (options.part == Part::kHeldOut);
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
        if (in_part(options, at + i)) {
          LOCKSTEP_TRY(take(block, i, at + i));
        }
      }
    }
    return {};
  }

  Result<void> take(const RowBlock& block, size_t i, uint64_t row) {
    const size_t width = file.features().size();
    const float* values = block.features.data() + i * width;
    size_t missing = width;
    for (size_t f = 0; f < width && missing == width; ++f) {
      missing = std::isfinite(values[f]) ? width : f;
    }
    const bool text = file.has_text();
    const bool no_label =
        file.has_label() &&
        (text ? block.texts[i].empty() : !std::isfinite(block.numbers[i]));
    if (missing < width || no_label) {
      if (options.drop_missing) {
        ++rows.dropped;
        return {};
      }
      return bad(fmt::format(
                     "{}: column '{}' has no {}",
                     file.place(row),
                     missing < width ? file.features()[missing] : options.label,
                     missing == width && text ? "label" : "number"))
          .with_fix("data.missing=drop leaves such rows out");
    }
    rows.values.insert(rows.values.end(), values, values + width);
    ++rows.num_rows;
    if (!file.has_label()) {
      return {};
    }
    if (options.regression) {
      rows.numbers.push_back(block.numbers[i]);
      return {};
    }
    rows.classes.push_back(
        text ? dictionary.of(block.texts[i]) : dictionary.of(block.numbers[i]));
    const auto& name =
        dictionary.names()[static_cast<size_t>(rows.classes.back())];
    const auto& accepted = options.classes;
    if (!accepted.empty() &&
        std::find(accepted.begin(), accepted.end(), name) == accepted.end()) {
      return bad(
          fmt::format(
              "{}: label '{}' is not one of the classes; accepted: {}",
              file.place(row),
              name,
              fmt::join(accepted, ", ")));
    }
    if (dictionary.names().size() > kMostClasses) {
      return bad(fmt::format(
                     "{}: more than {} different labels",
                     file.place(row),
                     kMostClasses))
          .with_fix("numbers are learned with forest.criterion=squared_error");
    }
    return {};
  }
  static constexpr size_t kMostClasses = 1000;
};

// Numbers in their order when all are numbers, else as text.
void sort_classes(std::vector<std::string>& names) {
  const auto number = [](const std::string& text, double& value) {
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
  };
  double a = 0;
  double b = 0;
  const bool numbers =
      std::all_of(names.begin(), names.end(), [&](const std::string& name) {
        return number(name, a);
      });
  std::sort(
      names.begin(), names.end(), [&](const auto& left, const auto& right) {
        if (!numbers) {
          return left < right;
        }
        number(left, a);
        number(right, b);
        return a < b;
      });
  names.erase(std::unique(names.begin(), names.end()), names.end());
}

// The same names in the same order on all ranks.
void agree_on_classes(
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
  }
  std::vector<int32_t> place;
  for (const auto& name : reader.dictionary.names()) {
    place.push_back(
        static_cast<int32_t>(
            std::find(names.begin(), names.end(), name) - names.begin()));
  }
  for (int32_t& value : reader.rows.classes) {
    value = place[static_cast<size_t>(value)];
  }
}

}  // namespace

std::string label_text(double value) {
  return fmt::format("{}", value);
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

Result<LoadedRows> load_rows(
    TableFile& file,
    const LoadOptions& options,
    collective::Communicator& group) {
  Reader reader{file, options};
  reader.rows.features = file.features();
  const auto ranks = static_cast<uint64_t>(group.size());
  const auto rank = static_cast<uint64_t>(group.rank());
  const uint64_t rows = file.num_rows();
  Result<void> read;
  if (options.regression && file.has_text()) {
    read =
        bad(fmt::format(
            "{}: labels are words; squared_error needs numbers",
            file.place(file.first_text())));
  } else {
    read = reader.read(rows * rank / ranks, rows * (rank + 1) / ranks);
  }
  LOCKSTEP_TRY(agree(read, group));
  if (!options.regression && file.has_label()) {
    agree_on_classes(reader, options, group);
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
