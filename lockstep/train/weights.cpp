#include "lockstep/train/weights.h"

#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstring>
#include <map>
#include <optional>

#include "lockstep/record/safetensors.h"
#include "lockstep/train/error.h"

namespace lockstep::train {
namespace {

constexpr std::string_view kOurs = "lockstep.";  // state of a checkpoint

std::string shape_text(at::IntArrayRef sizes) {
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

std::optional<at::ScalarType> floating_type(const std::string& name) {
  static const std::map<std::string, at::ScalarType> types = {
      {"F64", at::kDouble},
      {"F32", at::kFloat},
      {"F16", at::kHalf},
      {"BF16", at::kBFloat16}};
  const auto found = types.find(name);
  return found == types.end() ? std::nullopt : std::optional(found->second);
}

at::Tensor copy_of(const record::TensorView& view, at::ScalarType type) {
  auto tensor = at::empty(view.shape, type);
  if (!view.bytes.empty()) {
    std::memcpy(tensor.data_ptr(), view.bytes.data(), view.bytes.size());
  }
  return tensor;
}

// A whole square root, or -1.
int64_t side_of(int64_t patches) {
  const auto side = static_cast<int64_t>(std::llround(
      std::sqrt(static_cast<double>(std::max<int64_t>(0, patches)))));
  return side > 0 && side * side == patches ? side : -1;
}

// A head for another number of classes, of a model of the same width.
bool differs_in_classes(at::IntArrayRef ours, at::IntArrayRef theirs) {
  return !ours.empty() && ours.size() == theirs.size() &&
         ours.slice(1) == theirs.slice(1);
}

class Loading {
 public:
  Loading(const std::filesystem::path& path, const WeightsOptions& options)
      : options_(options) {
    report.file = path.string();
  }

  void load(
      const std::string& name,
      const at::Tensor& tensor,
      const record::TensorView* view) {
    const bool head = !options_.head.empty() && name.starts_with(options_.head);
    const std::string ours = shape_text(tensor.sizes());
    if (view == nullptr) {
      if (head) {
        report.kept.push_back(
            fmt::format("{} {}: not in the file", name, ours));
      } else {
        report.missing.push_back(fmt::format("{} {}", name, ours));
      }
      return;
    }
    const std::string theirs = shape_text(view->shape);
    const bool same = at::IntArrayRef(view->shape) == tensor.sizes();
    if (tensor.scalar_type() == at::kLong && view->dtype == "I64" && same) {
      tensor.copy_(copy_of(*view, at::kLong));  // a count of batches
      report.loaded.push_back(name + " " + ours);
      return;
    }
    const auto type = floating_type(view->dtype);
    if (!type || !tensor.is_floating_point()) {
      throw TrainError(
          kBadInput,
          fmt::format(
              "{}: tensor '{}' {} has type {}; accepted: F32, BF16, F16, F64",
              report.file,
              name,
              theirs,
              view->dtype));
    }
    if (head && !same && differs_in_classes(tensor.sizes(), view->shape)) {
      report.kept.push_back(
          fmt::format("{} {}: the file has {}", name, ours, theirs));
      return;
    }
    auto source = copy_of(*view, *type);
    std::string how;
    if (!same) {
      how = adapt(name, tensor, source);
    }
    if (*type != tensor.scalar_type()) {
      how += fmt::format("{}from {}", how.empty() ? "" : ", ", view->dtype);
    }
    tensor.copy_(source);
    if (!at::isfinite(tensor).all().item<bool>()) {
      throw TrainError(
          kBadInput,
          fmt::format(
              "{}: tensor '{}' {} has values that are no numbers",
              report.file,
              name,
              theirs));
    }
    if (how.empty()) {
      report.loaded.push_back(name + " " + ours);
    } else {
      report.adapted.push_back(
          fmt::format("{} {} -> {}: {}", name, theirs, ours, how));
    }
  }

  WeightsReport report;

 private:
  // Makes `source` as large as `tensor`, and says how; throws when it cannot.
  std::string adapt(
      const std::string& name,
      const at::Tensor& tensor,
      at::Tensor& source) const {
    if (name == options_.positions && source.dim() == 3 && tensor.dim() == 3 &&
        source.size(0) == 1 && source.size(2) == tensor.size(2)) {
      const int64_t before = side_of(source.size(1) - options_.prefix);
      const int64_t after = side_of(tensor.size(1) - options_.prefix);
      if (before > 0 && after > 0) {
        source = resample_positions(source, options_.prefix, after);
        return fmt::format(
            "interpolated from {0}x{0} to {1}x{1} patches", before, after);
      }
    }
    if (name == options_.patches && source.dim() == 4 && tensor.dim() == 4 &&
        source.size(1) == 3 && tensor.size(1) == 1 &&
        source.sizes().slice(2) == tensor.sizes().slice(2) &&
        source.size(0) == tensor.size(0)) {
      source = source.sum(1, true);
      return "three channels summed into one";
    }
    throw TrainError(
        kBadInput,
        fmt::format(
            "{}: tensor '{}' is {}, but the model has {}; take the model.* "
            "keys "
            "that the file was trained with",
            report.file,
            name,
            shape_text(source.sizes()),
            shape_text(tensor.sizes())));
  }

  const WeightsOptions& options_;
};

// Lines that differ only in numbers between dots, like those of a model's
// blocks, as one: "blocks.*.norm1.weight [24] (x12)".
std::vector<std::string> gathered(const std::vector<std::string>& lines) {
  std::vector<std::string> order;
  std::map<std::string, std::pair<int, std::string>> counts;
  for (const auto& line : lines) {
    std::string pattern;
    const size_t name_end = line.find(' ');
    for (size_t i = 0; i < line.size(); ++i) {
      const bool digit = i < name_end && std::isdigit(line[i]) != 0;
      const bool starts = digit && i > 0 && line[i - 1] == '.';
      size_t end = i;
      while (starts && end < name_end && std::isdigit(line[end]) != 0) {
        ++end;
      }
      if (starts && end < name_end && line[end] == '.') {
        pattern += '*';
        i = end - 1;
      } else {
        pattern += line[i];
      }
    }
    auto& [count, first] = counts[pattern];
    if (count++ == 0) {
      order.push_back(pattern);
      first = line;
    }
  }
  std::vector<std::string> result;
  for (const auto& pattern : order) {
    const auto& [count, first] = counts[pattern];
    result.push_back(
        count == 1 ? first : fmt::format("{} (x{})", pattern, count));
  }
  return result;
}

}  // namespace

std::string WeightsReport::to_string() const {
  std::string text = fmt::format(
      "weights from {}: {} tensors loaded, {} adapted, {} kept as initialised, "
      "{} missing, {} skipped",
      file,
      loaded.size(),
      adapted.size(),
      kept.size(),
      missing.size(),
      skipped.size());
  const auto add =
      [&text](const char* word, const std::vector<std::string>& lines) {
        for (const auto& line : gathered(lines)) {
          text += fmt::format("\n  {:<8} {}", word, line);
        }
      };
  add("loaded", loaded);
  add("adapted", adapted);
  add("kept", kept);
  add("missing", missing);
  add("skipped", skipped);
  return text;
}

WeightsReport load_weights(
    const std::filesystem::path& path,
    const parallel::NamedTensors& tensors,
    const WeightsOptions& options) {
  const at::NoGradGuard no_grad;
  if (std::error_code absent; std::filesystem::is_directory(path, absent)) {
    throw TrainError(
        kBadInput,
        fmt::format(
            "{} is a folder; weights are one safetensors file: name one in "
            "it, or, where it is a checkpoint in shards, train with "
            "trainer.checkpoint_format=full, or merge it",
            path.string()));
  }
  const auto file = record::SafetensorsFile::open(path);
  if (!file) {
    throw TrainError(kBadInput, file.error().to_string());
  }
  Loading loading(path, options);
  std::map<std::string, bool> known;
  for (const auto& [name, tensor] : tensors) {
    known[name] = true;
    loading.load(name, tensor, file->find(name));
  }
  auto& report = loading.report;
  for (const auto& view : file->tensors()) {
    if (!known.contains(view.name) && !view.name.starts_with(kOurs)) {
      report.skipped.push_back(
          fmt::format("{} {}", view.name, shape_text(view.shape)));
    }
  }
  if (report.loaded.empty() && report.adapted.empty()) {
    throw TrainError(
        kBadInput,
        fmt::format(
            "{}: none of its {} tensors is one of the model's (looked for {} "
            "and others, as {} names them)",
            path.string(),
            file->tensors().size(),
            tensors.empty() ? "" : tensors.front().first,
            options.names));
  }
  return std::move(report);
}

at::Tensor
resample_positions(const at::Tensor& positions, int64_t prefix, int64_t side) {
  const auto wide = positions.to(at::kFloat);
  const int64_t dim = wide.size(2);
  const int64_t old = side_of(wide.size(1) - prefix);
  const auto grid = wide.slice(1, prefix)
                        .reshape({1, old, old, dim})
                        .permute({0, 3, 1, 2})
                        .contiguous();
  const auto resized = at::_upsample_bicubic2d_aa(
                           grid,
                           {side, side},
                           /*align_corners=*/false,
                           std::nullopt,
                           std::nullopt)
                           .permute({0, 2, 3, 1})
                           .reshape({1, side * side, dim});
  return at::cat({wide.slice(1, 0, prefix), resized}, 1);
}

}  // namespace lockstep::train
