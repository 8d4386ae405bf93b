#pragma once

// What a classifier took for what: counts by true and predicted class, and
// what people make of them: a table by class, a CSV file, a picture. Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/record/png.h"

namespace lockstep::record {

struct Confusion {
  std::vector<std::string> classes;
  // classes x classes, row by row: [truth][predicted].
  std::vector<int64_t> counts;

  int64_t at(size_t truth, size_t predicted) const {
    return counts[truth * classes.size() + predicted];
  }
};

struct ClassRow {
  std::string name;
  int64_t count = 0;      // of this class
  int64_t predicted = 0;  // taken for this class
  int64_t right = 0;
  // Of those taken for it, how many are; of those that are, how many were
  // taken for it; their harmonic mean. NaN where there are none.
  double precision = 0, recall = 0, f1 = 0;
};
std::vector<ClassRow> class_rows(const Confusion& confusion);

// For a terminal: a line a class, and the most frequent mistakes.
std::string class_table(const Confusion& confusion);
// "class,count,predicted,right,precision,recall,f1".
std::string classes_csv(const Confusion& confusion);
// "truth\predicted,a,b,..." and a line a class.
std::string confusion_csv(const Confusion& confusion);
// A square a pair, darker for a larger share of the row, with its count where
// there is room. Rows are the truth.
Image confusion_image(const Confusion& confusion);

}  // namespace lockstep::record
