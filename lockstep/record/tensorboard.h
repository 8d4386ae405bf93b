#pragma once

// TensorBoard event files: scalars, images, text and histograms, readable by
// TensorBoard itself. One writer, one thread. Records are gathered in memory
// and appended when there are many, on flush() and at the end; a failed append
// is tried again with the next one. `time` is in Unix seconds.

#include <memory>
#include <span>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"
#include "lockstep/record/png.h"

namespace lockstep::record {

class TensorBoardWriter {
 public:
  // Makes a new file in `folder` (made if absent), named as TensorBoard
  // expects: events.out.tfevents.<time>.<host>.<pid>.
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
  // Values that are not finite are left out.
  virtual Result<void> histogram(
      const std::string& tag,
      std::span<const float> values,
      int64_t step,
      double time) = 0;
  // Markdown, shown on TensorBoard's text page.
  virtual Result<void> text(
      const std::string& tag,
      const std::string& markdown,
      int64_t step,
      double time) = 0;
  virtual Result<void> flush() = 0;
  virtual const os::Path& path() const = 0;
};

}  // namespace lockstep::record
