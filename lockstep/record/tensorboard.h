#pragma once

// TensorBoard event files: scalars, images, text and histograms, readable by
// TensorBoard itself. One writer, one thread; appended and flushed on demand.

#include <memory>
#include <span>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"
#include "lockstep/record/png.h"

namespace lockstep::record {

class TensorBoardWriter {
 public:
  // Makes a new file in `folder`, named as TensorBoard expects.
  static Result<std::unique_ptr<TensorBoardWriter>> open(
      os::FileSystem& files,
      const os::Path& folder);
  virtual ~TensorBoardWriter() = default;
  virtual Result<void>
  scalar(const std::string& tag, double value, int64_t step, double time) = 0;
  virtual Result<void> image(
      const std::string& tag,
      const Image& image,
      int64_t step,
      double time) = 0;
  virtual Result<void> histogram(
      const std::string& tag,
      std::span<const float> values,
      int64_t step,
      double time) = 0;
  virtual Result<void> flush() = 0;
};

// CRC-32C of the record framing (exposed for its tests).
uint32_t crc32c(std::string_view bytes);

}  // namespace lockstep::record
