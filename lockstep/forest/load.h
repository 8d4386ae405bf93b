#pragma once

// This rank's share of a table, checked: rows with missing values are dropped
// or refused, labels become classes or numbers. All ranks of a group call
// together and end with the same error when one of them has any. Which rows a
// table keeps, and their order, do not depend on the number of ranks.

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/collective/communicator.h"
#include "lockstep/forest/table_file.h"

namespace lockstep::forest {

// Which rows of a table that is split at random.
enum class Part { kAll, kTraining, kHeldOut };

struct LoadOptions {
  bool regression = false;
  bool drop_missing = false;  // else a missing value is an error
  Part part = Part::kAll;
  double held_out = .3;  // share of rows
  uint64_t seed = 0;
  // Accepted classes; empty: all that appear, sorted, whatever the part.
  std::vector<std::string> classes{};
  // For messages.
  std::string label = "label";
  std::string table = "the table";  // its path
};

struct LoadedRows {
  std::vector<std::string> features;
  size_t num_rows = 0;  // here
  uint64_t first_row = 0;
  uint64_t total_rows = 0;
  uint64_t dropped = 0;       // on all ranks
  std::vector<float> values;  // row-major
  // One of them.
  std::vector<double> numbers;
  std::vector<int32_t> classes;
  std::vector<std::string> class_names{};
};

Result<LoadedRows> load_rows(
    TableFile& file,
    const LoadOptions& options,
    collective::Communicator& group);

// Words cannot be learned as numbers.
Result<void> check_labels(const TableFile& file, bool regression);

// "3" for 3.0: how a numeric label is named.
std::string label_text(double value);

// Such names for accepted classes, when all are numbers.
std::vector<std::string> class_names(std::vector<std::string> classes);

// One of the classes is not such a name: a table's labels are looked up as
// texts (TableOptions::words), even where all of them look like numbers.
bool are_words(const std::vector<std::string>& classes);

// The first error of any rank, on all.
Result<void> agree(const Result<void>& own, collective::Communicator& group);

// Refuses, on all ranks, what another rank sees otherwise: hosts may each have
// a file of this name. `facts` are phrases like "8 features", the same number
// of which need not be there everywhere; `what` they are of, and where it is.
Result<void> agree_on_facts(
    const std::string& what,
    const std::string& path,
    const std::vector<std::string>& facts,
    collective::Communicator& group);

// The same table on all ranks, but for the numbers in it. load_rows looks, too.
Result<void> agree_on_table(
    const TableFile& file,
    const std::string& path,
    collective::Communicator& group);

// "feature 1 is 'x'" and so on, as facts.
void add_facts(
    std::vector<std::string>& facts,
    const std::string& kind,
    const std::vector<std::string>& names);

}  // namespace lockstep::forest
