#pragma once

// The file that 'predict' writes: under a temporary name beside its target
// until it is whole, so that a prediction that fails leaves what was there. A
// link to a file is followed. One thread.

#include <string>
#include <vector>

#include "lockstep/os/file.h"
#include "lockstep/record/pending_file.h"

namespace lockstep::recipes {

class PredictionFile {
 public:
  // Refuses a target that is one of `inputs` (every file that is read, and the
  // folders of tables), that lies in such a folder or in none, that is there
  // and no regular file, or whose name says that it holds something else.
  static Result<PredictionFile> open(
      const os::Path& target,
      const std::vector<os::Path>& inputs);
  PredictionFile(PredictionFile&& other) noexcept;
  PredictionFile& operator=(PredictionFile&&) = delete;
  ~PredictionFile();  // removes what was not finished

  Result<void> append(std::string_view text);
  // Puts the whole file in its place.
  Result<void> finish();

 private:
  PredictionFile(os::Path target, record::PendingFile file)
      : target_(std::move(target)), file_(std::move(file)) {}
  os::Path target_;
  record::PendingFile file_;
  bool open_ = true;
};

}  // namespace lockstep::recipes
