#pragma once

// Text in columns for people. Pure.

#include <string>
#include <vector>

namespace lockstep::commands {

class Table {
 public:
  explicit Table(std::vector<std::string> header)
      : header_(std::move(header)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }
  // Columns two spaces apart; numbers to the right. The last column is free.
  std::string to_string() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace lockstep::commands
