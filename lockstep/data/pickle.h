#pragma once

// Reads the one kind of Python pickle that CIFAR-10's batches are: a
// dictionary with a list or an array of small integers and a two-dimensional
// array of bytes, as protocols 2 to 5 write it. Nothing is ever called or
// imported: the names that build a NumPy array, and Python 3's way to write
// bytes in protocol 2, are recognised, any other is an error. Damaged or other
// pickles throw DataError with the file's name and the offset.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

struct PickledBatch {
  std::vector<uint8_t> labels;
  int64_t rows = 0;
  int64_t columns = 0;
  std::span<const uint8_t> data;  // rows x columns, inside `file` or `owned`
  std::vector<uint8_t> owned;     // where the file has them encoded
};

PickledBatch read_pickled_batch(
    std::span<const uint8_t> file,
    const std::string& name);

}  // namespace lockstep::data
