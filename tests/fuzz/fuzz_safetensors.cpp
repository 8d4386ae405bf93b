// Checkpoint files: the header of a safetensors file.

#include <limits>

#include "lockstep/record/safetensors.h"
#include "tests/fuzz/driver.h"

namespace {

using namespace lockstep;

void run(std::string_view input) {
  auto bytes = std::as_bytes(std::span(input.data(), input.size()));
  std::vector<record::TensorView> tensors;
  record::Metadata metadata;
  if (!record::parse_safetensors(bytes, tensors, metadata)) {
    return;
  }
  unsigned sum = 0;
  for (const record::TensorView& tensor : tensors) {
    size_t size = record::dtype_size(tensor.dtype);
    fuzz::expect(size > 0, "a tensor has a known type");
    for (int64_t side : tensor.shape) {
      fuzz::expect(side >= 0, "a side is not negative");
      size *= static_cast<size_t>(side);
    }
    fuzz::expect(size == tensor.bytes.size(), "the shape fits the bytes");
    // Every byte that is handed out may be read.
    for (std::byte byte : tensor.bytes) {
      sum += std::to_integer<unsigned>(byte);
    }
  }
  fuzz::expect(sum < std::numeric_limits<unsigned>::max(), "small files");
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::fuzz_main(
      argc,
      argv,
      {.name = "safetensors",
       .run = run,
       .dictionary =
           {"\"dtype\":",
            "\"shape\":",
            "\"data_offsets\":",
            "__metadata__",
            "\"F32\"",
            "\"BF16\"",
            "\"F64\"",
            "\"F16\"",
            "\"I64\"",
            "\"I32\"",
            "\"U8\"",
            "\"BOOL\"",
            "[0,4]",
            "[2,2]",
            "[]",
            "{}",
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"",
            "-1",
            "4294967296",
            "9223372036854775807",
            "18446744073709551615",
            " ",
            "null"},
       .max_size = 4096});
}
