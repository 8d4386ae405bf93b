#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "lockstep/base/crc32c.h"
#include "lockstep/record/safetensors.h"
#include "lockstep/record/safetensors_format.h"

namespace lockstep::record {

namespace {

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The JSON of the header, padded so that the data starts aligned, with room for
// the sums. The metadata comes last; other writers put it first.
Result<std::string> make_header(
    const std::vector<const TensorView*>& ordered,
    const Metadata& metadata) {
  std::string text = "{";
  try {
    const auto quoted = [](const std::string& value) {
      return nlohmann::json(value).dump();
    };
    const auto separate = [&text] {
      if (text.size() > 1) {
        text += ',';
      }
    };
    uint64_t offset = 0;
    for (const TensorView* tensor : ordered) {
      separate();
      const uint64_t end = offset + tensor->bytes.size();
      text += fmt::format(
          R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
          quoted(tensor->name),
          tensor->dtype,
          fmt::join(tensor->shape, ","),
          offset,
          end);
      offset = end;
    }
    separate();
    text += fmt::format("\"{}\":{{", kMetadataName);
    for (const auto& [key, value] : metadata) {
      if (key != kSumName) {
        text += quoted(key) + ":" + quoted(value) + ",";
      }
    }
    text += fmt::format("\"{}\":\"{}\"}}", kSumName, kNoSum);
  } catch (const nlohmann::json::exception&) {
    return Error(
        ErrorCode::kInvalidInput,
        "a tensor name or metadata text is not valid UTF-8");
  }
  text += '}';
  text.append(
      (kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment,
      ' ');
  if (text.size() > kMaxHeader) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "a header of {} bytes; the format allows {}",
            text.size(),
            kMaxHeader));
  }
  return text;
}

Result<void> check_views(const std::vector<TensorView>& tensors) {
  std::unordered_set<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    const auto refuse = [&tensor](std::string what) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format("tensor '{}' {}", shown(tensor.name), what));
    };
    if (tensor.name == kMetadataName) {
      return refuse("has a name that the format reserves");
    }
    if (!names.insert(tensor.name).second) {
      return refuse("is given twice");
    }
    const size_t element = dtype_size(tensor.dtype);
    if (element == 0) {
      return refuse(fmt::format("has the unknown type '{}'", tensor.dtype));
    }
    const auto expected = byte_count(tensor.shape, element);
    if (!expected || *expected != tensor.bytes.size()) {
      return refuse(
          fmt::format(
              "has {} bytes, its shape [{}] of {} needs another number",
              tensor.bytes.size(),
              fmt::join(tensor.shape, ", "),
              tensor.dtype));
    }
  }
  return {};
}

}  // namespace

Result<void> write_safetensors(
    os::FileSystem& files,
    const os::Path& path,
    const std::vector<TensorView>& tensors,
    const Metadata& metadata) {
  const std::string context = fmt::format("writing {}", path.string());
  if (auto checked = check_views(tensors); !checked) {
    return std::move(checked.error()).with_context(context);
  }
  std::vector<const TensorView*> ordered;
  ordered.reserve(tensors.size());
  for (const TensorView& tensor : tensors) {
    ordered.push_back(&tensor);
  }
  std::stable_sort(
      ordered.begin(),
      ordered.end(),
      [](const TensorView* left, const TensorView* right) {
        return dtype_size(left->dtype) > dtype_size(right->dtype);
      });
  auto header = make_header(ordered, metadata);
  if (!header) {
    return std::move(header.error()).with_context(context);
  }
  uint32_t sum = 0;
  for (const TensorView* tensor : ordered) {
    sum = crc32c(as_text(tensor->bytes), sum);
  }
  const auto around = around_sum(*header);
  header->replace(around->before.size(), kNoSum.size(), make_sum(sum, *around));
  const uint64_t length = header->size();
  std::vector<std::string_view> parts;
  parts.reserve(tensors.size() + 2);
  parts.emplace_back(reinterpret_cast<const char*>(&length), kLengthBytes);
  parts.emplace_back(*header);
  for (const TensorView* tensor : ordered) {
    if (!tensor->bytes.empty()) {
      parts.emplace_back(as_text(tensor->bytes));
    }
  }
  return files.write_atomic(path, parts).with_context(context);
}

}  // namespace lockstep::record
