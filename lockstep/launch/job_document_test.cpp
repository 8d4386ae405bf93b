// The table of job keys in docs/configuration.md against the keys of the code.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "lockstep/base/text.h"
#include "lockstep/launch/job.h"

namespace lockstep::launch {
namespace {

struct Row {
  std::string key, type, value, meaning, users;
};

// The rows of the table in the section "## The job file".
std::vector<Row> documented() {
  const std::string text =
      os::real_files().read(LOCKSTEP_CONFIGURATION_DOCUMENT).value();
  std::vector<Row> rows;
  bool inside = false;
  for (const std::string& line : lines_of(text)) {
    if (line.starts_with("## ")) {
      inside = line == "## The job file";
    }
    if (!inside || !line.starts_with("| `")) {
      continue;
    }
    std::vector<std::string> cells;
    size_t at = 1;
    for (size_t end = line.find('|', at); end != std::string::npos;
         end = line.find('|', at)) {
      cells.emplace_back(trim(line.substr(at, end - at)));
      at = end + 1;
    }
    cells.resize(5);
    rows.push_back({cells[0], cells[1], cells[2], cells[3], cells[4]});
  }
  return rows;
}

std::string shown(const std::string& value) {
  static const std::set<std::string> kNone = {"null", "\"\"", "[]", "{}", ""};
  return kNone.contains(value) ? "none" : fmt::format("`{}`", value);
}

TEST(JobDocument, NamesEveryKeyWithItsTypeAndDefault) {
  const auto rows = documented();
  const auto docs = config::describe<Job>();
  for (size_t i = 0; i < std::max(rows.size(), docs.size()); ++i) {
    const Row row = i < rows.size() ? rows[i] : Row{};
    ASSERT_LT(i, docs.size()) << row.key << " is no key of a job";
    ASSERT_EQ(row.key, fmt::format("`{}`", docs[i].key))
        << "the next row must be: | `" << docs[i].key << "` | " << docs[i].type
        << " | " << shown(docs[i].value) << " | " << docs[i].meaning << " | |";
    EXPECT_EQ(row.type, docs[i].type) << row.key;
    EXPECT_EQ(row.value, shown(docs[i].value)) << row.key;
    EXPECT_FALSE(row.meaning.empty()) << row.key;
  }
}

TEST(JobDocument, SaysWhoUsesAKey) {
  for (const Row& row : documented()) {
    EXPECT_THAT(
        row.users,
        ::testing::MatchesRegex(
            "all|not yet|(local|ssh|mpi|slurm|cloud)"
            "(, (local|ssh|mpi|slurm|cloud))*"))
        << row.key;
  }
}

}  // namespace
}  // namespace lockstep::launch
